"""One Expert of a definition file: its table read and checked, by itself and with the other Experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from perstack.config.check import read_table, suggestion
from perstack.config.key_path import KeyPath, spell
from perstack.config.results import check_results
from perstack.config.runtimes import warn_of_runtime, without_list
from perstack.config.skills import check_skills
from perstack.config.source import Reporter, TomlValue
from perstack.config.written_secrets import warn_of_secrets
from perstack.core.context import CompactionExpert, ContextKeys
from perstack.core.cycles import cycles
from perstack.core.definitions import AgentSkill, Expert, ExpertEvaluator
from perstack.core.rules import key_and_version
from perstack.dataclass import dataclass
from perstack.errors import Problem


@dataclass(slots=True)
class Draft:
    """An Expert as far as it could be read; whether it may be used is known when all files have been."""

    expert: Expert
    report: Reporter
    at: KeyPath
    delegates: dict[str, KeyPath] = field(default_factory=dict[str, KeyPath])
    """The Experts that it may call, and where each is named; known when all files have been read."""
    patterns: list[tuple[Path, str]] = field(default_factory=list[tuple[Path, str]])
    """Those of its Agent Skills, each with the folder that it is seen from."""
    tests: TomlValue | None = None
    """As they are written: no Run reads them, and `config.expert_tests` does for those who ask."""

    def problem_of(self, delegate: str) -> Problem:
        """Why this Expert cannot be run if that delegate cannot."""
        at = self.delegates[delegate]
        source = self.report.source
        message = f"delegates to `{delegate}`, which has errors"
        return Problem(message, str(source.path), source.lines.of(at), spell(at), expert=self.expert.key)


def read_expert(key: str, raw: TomlValue, report: Reporter) -> Draft:
    """Reads `[experts.KEY]` and everything below it."""
    at: KeyPath = ("experts", key)
    tests: TomlValue | None = None
    if isinstance(raw, dict):
        raw = without_list(raw, at, report)
        tests = raw.get("tests")
        raw = {name: value for name, value in raw.items() if name != "tests"}
    expert = read_table(Expert, raw, at, report, key=key) or Expert(key=key, instruction="")
    warn_of_runtime(expert.runtime, (*at, "runtime"), report)
    check_skills(expert, (*at, "skills"), report)
    patterns: list[tuple[Path, str]] = []
    if expert.agent_skills or any(isinstance(skill, AgentSkill) for skill in expert.skills):
        from perstack.config.agent_skills import patterns_of, with_agent_skills  # few Experts have any

        patterns = patterns_of(expert, report)
        expert = with_agent_skills(expert, at, report)
    check_results(expert, at, report)
    warn_of_secrets(expert, at, report)
    return Draft(expert, report, at, patterns=patterns, tests=tests)


def resolve_delegates(draft: Draft, drafts: Mapping[str, Draft]) -> None:
    """Every delegate must be an Expert that there is, in the version asked for, and is kept once."""
    kept: dict[str, str] = {}
    for index, wanted in enumerate(draft.expert.delegates):
        at = (*draft.at, "delegates", index)
        name, version = key_and_version(wanted)
        found = drafts.get(name)
        if found is None:
            draft.report.error(at, f"there is no Expert `{name}`{suggestion(name, drafts)}")
        elif version is not None and found.expert.version != version:
            draft.report.error(at, f"`{name}` is defined with version {found.expert.version}, not {version}")
        elif name in kept:
            draft.report.warn(at, f"`{name}` is named twice: take one out")
        else:
            kept[name] = wanted
            draft.delegates[name] = at
    draft.expert = draft.expert.model_copy(update={"delegates": tuple(kept.values())})


def warn_of_cycles(drafts: Mapping[str, Draft]) -> None:
    """Experts may delegate to each other, or to themselves, as in the original; but seldom is that meant without end.

    Of a project that lifts both limits, `maxSteps` and `maxDepth`: one of an Expert on the way is a bound too.
    """
    edges = {
        key: list(draft.delegates)
        for key, draft in drafts.items()
        if not draft.expert.max_steps and not draft.expert.max_depth
    }
    for cycle in cycles(edges):
        first, *others = cycle
        draft = drafts[first]
        way = f"these Experts may delegate to each other without end, {' → '.join([*cycle, first])}"
        what = way if others else "this Expert may delegate to itself without end"
        at = draft.delegates[others[0] if others else first]
        draft.report.warn(at, f"{what}: bound it with `maxSteps`, in an Expert on the way or at the top of the file")


def resolve_evaluator(draft: Draft, drafts: Mapping[str, Draft]) -> None:
    """An Expert that evaluates must be there."""
    iterate = draft.expert.iterate
    if iterate is None or not isinstance(iterate.evaluator, ExpertEvaluator):
        return
    wanted = iterate.evaluator.expert
    name, version = key_and_version(wanted)
    if name not in drafts or (version is not None and drafts[name].expert.version != version):
        at = (*draft.at, "iterate", "evaluator", "expert")
        draft.report.error(at, f"there is no Expert `{wanted}`{suggestion(name, drafts)}")


def resolve_compaction(written: ContextKeys, at: KeyPath, report: Reporter, drafts: Mapping[str, Draft]) -> None:
    """An Expert that writes summaries must be there."""
    if not isinstance(written.compaction, CompactionExpert):
        return
    wanted = written.compaction.expert
    name, version = key_and_version(wanted)
    if name not in drafts or (version is not None and drafts[name].expert.version != version):
        report.error((*at, "compaction", "expert"), f"there is no Expert `{wanted}`{suggestion(name, drafts)}")
