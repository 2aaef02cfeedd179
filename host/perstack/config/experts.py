"""One Expert of a definition file: its table read, checked, and made into an `Expert`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from perstack.config.check import read_table, suggestion
from perstack.config.runtimes import check_runtimes
from perstack.config.schema import EXPERT, ITERATE, MAX_NAME, PROVIDER
from perstack.config.skills import read_skills
from perstack.config.source import KeyPath, Reporter, TomlTable, TomlValue, spell
from perstack.config.written_secrets import warn_of_evaluator
from perstack.core.cycles import cycles
from perstack.core.definitions import EXPERT_KEY, Expert
from perstack.errors import Problem

RUNTIME_LEVEL = (1, 0, 0)
"""What `minRuntimeVersion` is compared with: the level of the original's runtime, not this package's version."""

_KEY = re.compile(EXPERT_KEY)
_VERSION = re.compile(r"(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)(?:-[\w.-]+)?(?:\+[\w.-]+)?", re.ASCII)
_ENTRY = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*")
_LEVEL = re.compile(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?(?:[-+][0-9A-Za-z.+-]+)?", re.ASCII)


@dataclass(slots=True)
class Draft:
    """An Expert as far as it could be read; whether it may be used is known when all files have been."""

    key: str
    fields: TomlTable
    report: Reporter
    at: KeyPath
    delegates: dict[str, KeyPath] = field(default_factory=dict[str, KeyPath])
    """The Experts that it may call, and where each is named; known when all files have been read."""

    @property
    def version(self) -> str:
        """The version it says, or the one it has when it says none."""
        version = self.fields.get("version")
        return version if isinstance(version, str) else "1.0.0"

    def problem_of(self, delegate: str) -> Problem:
        """Why this Expert cannot be run if that delegate cannot."""
        at = self.delegates[delegate]
        source = self.report.source
        message = f"delegates to `{delegate}`, which has errors"
        return Problem(message, str(source.path), source.lines.of(at), spell(at), expert=self.key)

    def finish(self) -> Expert:
        """The Expert; only for drafts without errors."""
        return Expert.model_validate({**self.fields, "key": self.key})


def read_expert(key: str, raw: TomlValue, report: Reporter) -> Draft:
    """Reads `[experts.KEY]` and everything below it."""
    at: KeyPath = ("experts", key)
    if not _KEY.fullmatch(key) or len(key) > MAX_NAME:
        report.error(at, _illegal_key(key))
    if isinstance(raw, dict) and not check_runtimes(raw.get("runtime"), (*at, "runtime"), report):
        raw = {name: value for name, value in raw.items() if name != "runtime"}
    fields = read_table(raw, EXPERT, at, report) or {}
    _check_versions(fields, at, report)
    provider = fields.get("provider")
    if provider is not None:
        fields["provider"] = read_table(provider, PROVIDER, (*at, "provider"), report) or {}
    iterate = fields.get("iterate")
    if iterate is not None:
        good = read_table(iterate, ITERATE, (*at, "iterate"), report) or {}
        warn_of_evaluator(good.get("evaluator", ""), (*at, "iterate", "evaluator"), report)
        fields["iterate"] = good
    skills = fields.get("skills")
    if isinstance(skills, dict):
        fields["skills"] = read_skills(skills, (*at, "skills"), report)
    return Draft(key, fields, report, at)


def resolve_delegates(draft: Draft, drafts: Mapping[str, Draft]) -> None:
    """Every delegate must be an Expert that there is, in the version asked for, and is kept once."""
    delegates = draft.fields.get("delegates")
    kept: dict[str, TomlValue] = {}
    for index, wanted in enumerate(delegates if isinstance(delegates, list) else ()):
        if not isinstance(wanted, str):
            continue
        at = (*draft.at, "delegates", index)
        name, version = _split(wanted)
        found = drafts.get(name)
        if found is None:
            draft.report.error(at, f"there is no Expert `{name}`{suggestion(name, drafts)}")
        elif version is not None and found.version != version:
            draft.report.error(at, f"`{name}` is defined with version {found.version}, not {version}")
        elif name in kept:
            draft.report.warn(at, f"`{name}` is named twice: take one out")
        else:
            kept[name] = wanted
            draft.delegates[name] = at
    if delegates is not None:
        draft.fields["delegates"] = list(kept.values())


def warn_of_cycles(drafts: Mapping[str, Draft]) -> None:
    """Experts may delegate to each other, or to themselves, as in the original; but seldom is that meant without end.

    Of a project without a `maxSteps` of its own: one of an Expert on the way is a bound too.
    """
    edges = {key: list(draft.delegates) for key, draft in drafts.items() if "maxSteps" not in draft.fields}
    for cycle in cycles(edges):
        first, *others = cycle
        draft = drafts[first]
        way = f"these Experts may delegate to each other without end, {' → '.join([*cycle, first])}"
        what = way if others else "this Expert may delegate to itself without end"
        at = draft.delegates[others[0] if others else first]
        draft.report.warn(at, f"{what}: bound it with `maxSteps`, in an Expert on the way or at the top of the file")


def resolve_evaluator(draft: Draft, drafts: Mapping[str, Draft]) -> None:
    """The Expert that evaluates must be there, and a function must be named as one."""
    iterate = draft.fields.get("iterate")
    evaluator = iterate.get("evaluator") if isinstance(iterate, dict) else None
    at = (*draft.at, "iterate", "evaluator")
    if not isinstance(evaluator, dict):
        return
    expert, entry = evaluator.get("expert"), evaluator.get("entry")
    if isinstance(expert, str):
        name, version = _split(expert)
        if name not in drafts or (version is not None and drafts[name].version != version):
            draft.report.error((*at, "expert"), f"there is no Expert `{expert}`{suggestion(name, drafts)}")
    if isinstance(entry, str) and not _ENTRY.fullmatch(entry):
        draft.report.error((*at, "entry"), f'must be "package.module:function", not "{entry}"')


def _split(delegate: str) -> tuple[str, str | None]:
    # the @ of a scope stands first and starts no version
    name, separator, version = delegate.rpartition("@")
    return (name, version) if separator and name else (delegate, None)


def _illegal_key(key: str) -> str:
    name, version = _split(key)
    if version is not None and _KEY.fullmatch(name):
        return f'an Expert\'s key bears no version: name it `{name}` and write version = "{version}"'
    if len(key) > MAX_NAME:
        return f"an Expert's key has at most {MAX_NAME} characters, this one {len(key)}"
    return (
        "is no legal Expert key: `name` or `@org/name`, of letters, digits, `.`, `_` and `-`, a letter or digit first"
    )


def _check_versions(fields: TomlTable, at: KeyPath, report: Reporter) -> None:
    version = fields.get("version")
    if isinstance(version, str) and not _VERSION.fullmatch(version):
        report.error((*at, "version"), f'must be a semantic version such as "1.0.0", not "{version}"')
    wanted = fields.get("minRuntimeVersion")
    if not isinstance(wanted, str):
        return
    level = _LEVEL.fullmatch(wanted)
    if level is None:
        report.error((*at, "minRuntimeVersion"), f'must be a version such as "v1.0", not "{wanted}"')
    elif tuple(int(part or 0) for part in level.groups()) > RUNTIME_LEVEL:
        here = ".".join(map(str, RUNTIME_LEVEL[:2]))
        report.error(
            (*at, "minRuntimeVersion"), f"needs a runtime of {wanted}, this one is v{here}: install a newer one"
        )
