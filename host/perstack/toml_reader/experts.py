"""Read and check the table of one Expert, by itself and against the other Experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from perstack.core.base.text import suggestion
from perstack.core.definitions.experts import Expert, ExpertEvaluator
from perstack.core.definitions.keys import KeyPath, delegation_problem, hint_for_scoped_key, key_and_version, spell
from perstack.core.definitions.models import NAMED, Models, UnknownName, resolve_models
from perstack.core.definitions.sandbox import IGNORED_RUNTIMES
from perstack.core.definitions.settings import CompactionExpert, ContextKeys
from perstack.core.definitions.skills import AgentSkill
from perstack.core.schemas.result_schemas import schema_fault
from perstack.dataclass import dataclass
from perstack.errors import Problem
from perstack.ports.parts import Part
from perstack.toml_reader.skills import check_skills, warn_of_secrets, with_named_tools
from perstack.toml_reader.source import Reporter, TomlTable, TomlValue
from perstack.toml_reader.tables import read_table

# Names of models: `[models]` itself, and each `models.NAME`.


def check_named_models(named_models: Mapping[str, Models], report: Reporter) -> None:
    """Report names in `[models]` that refer to other names."""
    for name, models in named_models.items():
        for model in models if isinstance(models, tuple) else (models,):
            if model.startswith(NAMED):
                report.error(("models", name), f"must be a model, or several, not another name: `{model}`")


def check_models(models: Models | None, at: KeyPath, named_models: Mapping[str, Models], report: Reporter) -> None:
    """Report names of models that do not exist."""
    if models is None:
        return
    for index, model in enumerate(models if isinstance(models, tuple) else (models,)):
        try:
            resolve_models(model, named_models)
        except UnknownName as error:
            place = (*at, "model", index) if isinstance(models, tuple) else (*at, "model")
            report.error(place, f"{error}{suggestion(model, [NAMED + name for name in named_models])}")


def check_results(expert: Expert, at: KeyPath, report: Reporter) -> None:
    """Report problems of the schemas `returns` and `output`."""
    for key, schema in (("returns", expert.returns), ("output", expert.output)):
        if schema is None:
            continue
        fault = schema_fault(schema)
        if fault is not None:
            report.error((*at, key), fault)


# Runtimes as far as definition files know them; which ones exist is up to plugins.


def warn_of_runtime(runtime: str | None, at: KeyPath, report: Reporter) -> None:
    """Report a runtime of the original, which has no effect."""
    if runtime in IGNORED_RUNTIMES:
        report.warn(at, f"`{runtime}` has no effect: programs run locally, without its isolation")


def drop_runtime_list(raw: TomlTable, at: KeyPath, report: Reporter) -> TomlTable:
    """Return the table without a list in `runtime`, which the original allows; it does not select a runtime."""
    if not isinstance(raw.get("runtime"), list):
        return raw
    report.warn((*at, "runtime"), "a list has no effect: name the one runtime that programs are to run in")
    return {name: value for name, value in raw.items() if name != "runtime"}


@dataclass(slots=True)
class Draft:
    """Valid parts of an Expert's table; whether it is usable is known once all files are read."""

    expert: Expert
    report: Reporter
    at: KeyPath
    delegates: dict[str, KeyPath] = field(default_factory=dict[str, KeyPath])  # place of each; filled last
    patterns: list[tuple[Path, str]] = field(
        default_factory=list[tuple[Path, str]]
    )  # patterns of Agent Skills, each with its folder
    tests: TomlValue | None = None  # tests as written; they are read on request, and not by Runs

    def problem_of(self, delegate: str) -> Problem:
        """Return the problem of this Expert that follows from a broken delegate."""
        at = self.delegates[delegate]
        source = self.report.source
        message = f"delegates to `{delegate}`, which has errors"
        return Problem(message, str(source.path), source.lines.of(at), spell(at), expert=self.expert.key)


def commands_of(draft: Draft) -> Iterator[str | tuple[str, ...]]:
    """Yield the commands of an Expert's tests as written, to protect the files that they run before tests are read."""
    for test in draft.tests if isinstance(draft.tests, list) else ():
        expect = test.get("expect") if isinstance(test, dict) else None
        command = expect.get("command") if isinstance(expect, dict) else None
        if isinstance(command, str):
            yield command
        elif isinstance(command, list):
            yield tuple(word for word in command if isinstance(word, str))


AGENT_SKILLS: Part[Callable[[Expert, KeyPath, Reporter], tuple[Expert, list[tuple[Path, str]]]]] = Part("Agent Skills")
"""Returns an Expert with the Agent Skills that it declares, and their patterns, each with the folder to start from."""


def read_expert(key: str, raw: TomlValue, report: Reporter) -> Draft:
    """Read `[experts.KEY]` and everything below it."""
    at: KeyPath = ("experts", key)
    tests: TomlValue | None = None
    if isinstance(raw, dict):
        raw = drop_runtime_list(raw, at, report)
        tests = raw.get("tests")
        raw = {name: value for name, value in raw.items() if name != "tests"}
    expert = read_table(Expert, raw, at, report, key=key) or Expert(key=key, instruction="")
    warn_of_runtime(expert.runtime, (*at, "runtime"), report)
    check_skills(expert, (*at, "skills"), report)
    expert = with_named_tools(expert)
    patterns: list[tuple[Path, str]] = []
    if expert.agent_skills or any(isinstance(skill, AgentSkill) for skill in expert.skills):
        expert, patterns = report.parts.get(AGENT_SKILLS)(expert, at, report)
    check_results(expert, at, report)
    warn_of_secrets(expert, at, report)
    return Draft(expert, report, at, patterns=patterns, tests=tests)


def resolve_delegates(draft: Draft, drafts: Mapping[str, Draft]) -> None:
    """Report delegates that do not exist, are not the Expert's, or are named twice; keep the valid ones."""
    valid: dict[str, str] = {}
    for index, delegate in enumerate(draft.expert.delegates):
        at = (*draft.at, "delegates", index)
        name, version = key_and_version(delegate)
        target = drafts.get(name)
        if target is None:
            hint = suggestion(name, drafts) or hint_for_scoped_key(name, drafts)
            draft.report.error(at, f"there is no Expert `{name}`{hint}")
        elif version is not None and target.expert.version != version:
            draft.report.error(at, f"`{name}` is defined with version {target.expert.version}, not {version}")
        elif (problem := delegation_problem(draft.expert.key, name, drafts)) is not None:
            draft.report.error(at, problem)
        elif name in valid:
            draft.report.warn(at, f"`{name}` is named twice: take one out")
        else:
            valid[name] = delegate
            draft.delegates[name] = at
    draft.expert = draft.expert.model_copy(update={"delegates": tuple(valid.values())})


def warn_of_cycles(drafts: Mapping[str, Draft]) -> None:
    """Warn of delegation cycles that no `maxSteps` or `maxDepth` of an Expert bounds, if the project lifts both."""
    edges = {
        key: list(draft.delegates)
        for key, draft in drafts.items()
        if not draft.expert.max_steps and not draft.expert.max_depth
    }
    for cycle in cycles(edges):
        first, *rest = cycle
        draft = drafts[first]
        cycle_path = f"these Experts may delegate to each other without end, {' → '.join([*cycle, first])}"
        message = cycle_path if rest else "this Expert may delegate to itself without end"
        at = draft.delegates[rest[0] if rest else first]
        draft.report.warn(at, f"{message}: bound it with `maxSteps`, in an Expert on the way or at the top of the file")


def cycles(edges: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """Yield cycles without common nodes, at least one if there is any. Each begins with its first node of `edges`."""
    remaining, order = dict(edges), {node: index for index, node in enumerate(edges)}
    while True:
        try:
            TopologicalSorter(remaining).prepare()
        except CycleError as error:
            cycle: list[str] = error.args[1][:0:-1]  # reversed: it names a node after those that it leads to
            first = cycle.index(min(cycle, key=order.__getitem__))
            yield cycle[first:] + cycle[:first]
            remaining = {node: targets for node, targets in remaining.items() if node not in cycle}
        else:
            return


def resolve_evaluator(draft: Draft, drafts: Mapping[str, Draft]) -> None:
    """Report an evaluating Expert that does not exist."""
    iterate = draft.expert.iterate
    if iterate is None or not isinstance(iterate.evaluator, ExpertEvaluator):
        return
    at = (*draft.at, "iterate", "evaluator", "expert")
    check_expert(iterate.evaluator.expert, at, draft.report, drafts)


def resolve_compaction(keys: ContextKeys, at: KeyPath, report: Reporter, drafts: Mapping[str, Draft]) -> None:
    """Report an Expert for summaries that does not exist."""
    if isinstance(keys.compaction, CompactionExpert):
        check_expert(keys.compaction.expert, (*at, "compaction", "expert"), report, drafts)


def check_expert(reference: str, at: KeyPath, report: Reporter, drafts: Mapping[str, Draft]) -> None:
    """Report an Expert, `name` or `name@version`, that does not exist."""
    name, version = key_and_version(reference)
    if name not in drafts or version not in (None, drafts[name].expert.version):
        report.error(at, f"there is no Expert `{reference}`{suggestion(name, drafts)}")
