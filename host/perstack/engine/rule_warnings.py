"""Permission rules of a definition file that can never match, or never win: a rule that does nothing misleads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from perstack.config.check import suggestion
from perstack.config.key_path import KeyPath
from perstack.config.load import DefinitionFile
from perstack.config.source import Reporter
from perstack.core.definitions import Expert
from perstack.core.policy.calls import is_exempt
from perstack.core.policy.globs import Glob
from perstack.core.policy.permissions import Permissions
from perstack.core.policy.rules import PermissionRule, read_rule
from perstack.core.rules import key_and_version
from perstack.core.tools import ToolSpec, legal_tool_name
from perstack.dataclass import dataclass
from perstack.engine.known_tools import known_tools
from perstack.ports.skill import SkillFactory

_TIE = "never decides anything: the same rule is in ask, and of two that are equal the one that asks wins"
_LISTS = ("deny", "ask", "allow")


@dataclass(slots=True)
class _Reach:
    """What the calls of some Experts can be."""

    delegates: set[str] = field(default_factory=set[str])
    skills: dict[str, list[tuple[ToolSpec, ...] | None]] = field(
        default_factory=dict[str, "list[tuple[ToolSpec, ...] | None]"]
    )

    def add(self, expert: Expert, known: Mapping[str, tuple[ToolSpec, ...] | None]) -> None:
        self.delegates.update(key_and_version(key)[0] for key in expert.delegates)
        for name, specs in known.items():
            self.skills.setdefault(name, []).append(specs)


def warn_of_rules(definition: DefinitionFile, factories: Sequence[SkillFactory]) -> None:
    """Report each rule that does nothing, with file and line."""
    every = _Reach()
    own: dict[str, _Reach] = {}
    for key, draft in definition.drafts.items():
        known = known_tools(factories, draft.expert)
        every.add(draft.expert, known)
        own.setdefault(key, _Reach()).add(draft.expert, known)
    project = definition.project.permissions
    if project is not None and definition.report is not None and definition.drafts:
        _warn(project, ("permissions",), definition.report, every, ())
    denied = () if project is None else project.deny
    for key, draft in definition.drafts.items():
        if draft.expert.permissions is not None:
            _warn(draft.expert.permissions, (*draft.at, "permissions"), draft.report, own[key], denied)


def _warn(table: Permissions, at: KeyPath, report: Reporter, reach: _Reach, denied_above: Sequence[str]) -> None:
    for name in _LISTS:
        rules: tuple[str, ...] = getattr(table, name)
        for index, text in enumerate(rules):
            denied = [*denied_above, *(table.deny[:index] if name == "deny" else table.deny)]
            found = _problem(read_rule(text), reach) or _shadow(text, denied)
            if found is None and name == "allow" and text in table.ask:
                found = _TIE
            if found is not None:
                report.warn((*at, name, index), f"`{text}` {found}")


def _problem(rule: PermissionRule, reach: _Reach) -> str | None:
    """Why no call is ever one that the rule is about."""
    if rule.is_delegate:
        if any(rule.tool.matches(key) for key in reach.delegates):
            return None
        return f"never matches: no Expert here delegates to it{suggestion(rule.tool.text, reach.delegates)}"
    if rule.skill is not None and not any(map(rule.skill.matches, reach.skills)):
        return f"never matches: there is no such skill{suggestion(rule.skill.text, reach.skills)}"
    return _problem_of_tool(rule, reach)


def _problem_of_tool(rule: PermissionRule, reach: _Reach) -> str | None:
    skills = [each for name, each in reach.skills.items() if rule.skill is None or rule.skill.matches(name)]
    variants = [specs for each in skills for specs in each]
    known = [spec for specs in variants for spec in specs or ()]
    tools = [spec for spec in known if rule.tool.matches(spec.name)]
    if None in variants and not rule.tool.is_literal:
        return None
    subject = [spec for spec in tools if not is_exempt(spec.kind, spec.subject)]
    is_delegate = rule.skill is None and any(rule.tool.matches(legal_tool_name(key)) for key in reach.delegates)
    if is_delegate or (not tools and None in variants):
        return None
    if not tools:
        names = sorted({spec.name for spec in known})
        return f"never matches: there is no such tool{suggestion(rule.tool.text, names)}"
    if not subject:
        return "never matches: no rule holds for the loop's own tools and for questions to a person"
    return _problem_of_arguments(rule, subject)


def _problem_of_arguments(rule: PermissionRule, tools: Sequence[ToolSpec]) -> str | None:
    wanted = {name for name, _ in rule.named}
    offered = [set(_properties(spec)) for spec in tools]
    if any(wanted <= names for names in offered):
        return None
    missing = sorted(wanted - set[str]().union(*offered)) or sorted(wanted)
    names = sorted(set[str]().union(*offered))
    runs_programs = any(spec.subject is not None and spec.subject.program for spec in tools)
    hint = f"; in a command line write `{missing[0]}\\=`" if runs_programs else suggestion(missing[0], names)
    return f"never matches: the tool has no argument `{missing[0]}`{hint}"


def _properties(spec: ToolSpec) -> Iterator[str]:
    properties = spec.input_schema.get("properties")
    if isinstance(properties, dict):
        yield from properties


def _shadow(text: str, denied: Sequence[str]) -> str | None:
    """Which other rule always decides before this one does."""
    rule = read_rule(text)
    for other in denied:
        if other == text or _covers(read_rule(other), rule):
            return f"never decides anything: `{other}` in deny holds for all that it names"
    return None


def _covers(wide: PermissionRule, narrow: PermissionRule) -> bool:
    """Whether all that the one rule is about, the other is about as well; False where that is hard to tell."""
    if wide.is_delegate != narrow.is_delegate and not (wide.tool.text == "*" and wide.skill is None):
        return False
    if wide.skill is not None and (narrow.skill is None or not _is_within(wide.skill.text, narrow.skill.text)):
        return False
    if not _is_within(wide.tool.text, narrow.tool.text):
        return False
    if not wide.has_arguments:
        return True
    if wide.bare is not None and narrow.bare is not None:
        return wide.bare.text in ("*", "**", narrow.bare.text)
    return bool(wide.named) and wide.named == narrow.named


def _is_within(wide: str, narrow: str) -> bool:
    """Whether every name that the one glob of names matches, the other matches as well."""
    return wide == narrow or Glob(wide).matches(narrow)
