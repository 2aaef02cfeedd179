"""Test permission rules on the calls of stored Jobs, or on a described call. Runs and writes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from perstack.config.resolved_settings import chain_of
from perstack.core.base.records import JsonObject
from perstack.core.base.text import suggestion
from perstack.core.definitions.exec_grant import UNGRANTED
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.keys import KeyPath
from perstack.core.definitions.permissions import DELEGATE, PROVIDER, Permissions, RuleSet
from perstack.core.definitions.project import Project
from perstack.core.definitions.skills import ToolSpec, apply_definition, tool_skills
from perstack.core.jobs.summary import JobSummary
from perstack.core.permissions.decide_call import Ruling, decide_call, decide_offer
from perstack.core.permissions.policy_calls import PolicyCall, policy_call
from perstack.dataclass import dataclass
from perstack.engine.log.event_log import run_ids
from perstack.engine.permissions.rulings import path_resolver
from perstack.engine.plugins.tool_catalogue import delegate_tools
from perstack.errors import StorageError, UsageError
from perstack.ports.skill import SkillFactory
from perstack.ports.storage import Page, RunRef, Storage
from perstack.recordings.past_calls import PastCall, PastRun, past_run
from perstack.recordings.recorded_calls import RecordedCalls, host_skills, key_of, known_tools
from perstack.toml_reader.definition_with_includes import DefinitionFile
from perstack.toml_reader.source import Reporter

_JOBS_PER_PAGE = 200
_JOBS_PER_BATCH = 20  # Jobs that are held in memory and judged in one call of a thread


@dataclass(frozen=True, slots=True)
class ChangedRuling:
    """A recorded call that would be decided differently."""

    job_id: str
    run_id: str
    expert_key: str
    past_call: PastCall
    ruling: Ruling


@dataclass(frozen=True, slots=True)
class BacktestResult:
    """The result of testing the rules on one Job."""

    job_id: str
    calls: int = 0
    unknown: int = 0  # calls whose arguments were redacted
    otherwise: tuple[ChangedRuling, ...] = ()
    problem: str | None = None  # reason why the Job cannot be read; None if it can


@dataclass(frozen=True, slots=True)
class _ReadLogs:
    job_id: str
    logs: Mapping[str, Sequence[bytes]]
    problem: str | None = None


class Backtest:
    """A test of today's rules, or of replacement rules, on recorded calls."""

    def __init__(
        self,
        project: Project,
        factories: Sequence[SkillFactory],
        workspace: Path,
        rules: tuple[str, Permissions] | None = None,
    ) -> None:
        """Create the test; `rules`, with the name of their file, replace the project's, but not the Experts' own."""
        updates = {} if rules is None else {"path": rules[0], "permissions": rules[1]}
        self._project = project.model_copy(update=updates)
        self._calls = RecordedCalls(self._project, factories, workspace)

    async def of(self, storage: Storage, since: int = 0) -> AsyncGenerator[BacktestResult]:
        """Yield the result for every Job written to since a time (milliseconds since 1970; 0 for all), latest first."""
        after: str | None = None
        while True:
            page = await storage.jobs(limit=_JOBS_PER_PAGE, after=after)
            batch: list[_ReadLogs] = []
            for job_id in page.ids:
                if since and await _is_older(storage, job_id, since):
                    page = Page(())
                    break
                batch.append(await _logs(storage, job_id))
                if len(batch) == _JOBS_PER_BATCH:
                    for result in await asyncio.to_thread(self._backtest_batch, batch, since):
                        yield result
                    batch = []
            for result in await asyncio.to_thread(self._backtest_batch, batch, since):
                yield result
            if page.next is None:
                return
            after = page.next

    def _backtest_batch(self, batch: Sequence[_ReadLogs], since: int) -> list[BacktestResult]:
        results: list[BacktestResult] = []
        for job_logs in batch:
            try:
                results.append(
                    self._backtest_job(job_logs.job_id, job_logs.logs, since)
                    if job_logs.problem is None
                    else BacktestResult(job_logs.job_id, problem=job_logs.problem)
                )
            except ValueError as error:
                results.append(BacktestResult(job_logs.job_id, problem=str(error)))
        return results

    def _backtest_job(self, job_id: str, logs: Mapping[str, Sequence[bytes]], since: int) -> BacktestResult:
        runs = {run_id: past_run(run_id, lines) for run_id, lines in logs.items()}
        chains: dict[str, Sequence[RuleSet]] = {}
        calls, unknown = 0, 0
        changed: list[ChangedRuling] = []
        for run_past_run in runs.values():
            chain = chains[run_past_run.id] = self._chain(run_past_run, runs)
            key = key_of(run_past_run)
            to_policy_call = self._calls.of(run_past_run)
            for past_call in run_past_run.calls:
                if past_call.timestamp < since:
                    continue
                calls += 1
                if past_call.args is None:
                    unknown += 1
                    continue
                ruling = decide_call(chain, to_policy_call(past_call, past_call.args))
                if ruling.decision != past_call.decision:
                    changed.append(ChangedRuling(job_id, run_past_run.id, key, past_call, ruling))
        return BacktestResult(job_id, calls, unknown, tuple(changed))

    def _chain(self, past_run: PastRun, runs: Mapping[str, PastRun]) -> Sequence[RuleSet]:
        callers: dict[str, Expert] = {}
        current: PastRun | None = past_run
        while current is not None and current.id not in callers:
            key = key_of(current)
            callers[current.id] = self._project.expert(key) or Expert(key=key, instruction="")
            current = runs.get(current.works_for or "")
        expert, *parents = callers.values()
        return chain_of(self._project, expert, parents)


async def _logs(storage: Storage, job_id: str) -> _ReadLogs:
    try:
        ids = await run_ids(storage, job_id)
        return _ReadLogs(job_id, {run_id: await storage.read(RunRef(job_id, run_id)) for run_id in ids})
    except StorageError as error:
        return _ReadLogs(job_id, {}, str(error))


async def _is_older(storage: Storage, job_id: str, since: int) -> bool:
    """Return whether a Job was last written to before a time, according to its summary; False if it cannot tell."""
    data = await storage.summary(job_id)
    if data is None:
        return False
    try:
        summary = JobSummary.model_validate_json(data)
    except ValidationError:
        return False
    return summary.status != "running" and 0 < summary.updated_at < since


# The decision of a definition file's rules about a call that a person describes.


@dataclass(frozen=True, slots=True)
class RuleTestResult:
    """The decision about one described call, and where its rule is written."""

    ruling: Ruling
    file: str | None = None
    line: int | None = None


def judge_call(
    definition: DefinitionFile,
    factories: Sequence[SkillFactory],
    workspace: Path,
    expert_key: str,
    tool: str,
    args: JsonObject,
    *,
    above: Iterable[str] = (),
) -> RuleTestResult:
    """Decide about a call in an Expert's Run; `above` are the Experts of its parent Runs.

    Raises UsageError for an unknown Expert or tool, and DefinitionError for a file with errors.
    """
    project = definition.to_project(strict=False).project
    expert = _expert(project, expert_key)
    runs = dict.fromkeys([*(_expert(project, key).key for key in above), expert.key])
    callers = [project.experts[key] for key in runs if key != expert.key]
    chain = chain_of(project, expert, callers)
    policy_call = make_call(project, factories, expert, tool, args, workspace)
    ruling = decide_offer(chain, policy_call) if policy_call.skill == PROVIDER else decide_call(chain, policy_call)
    granted = (rule_set for rule_set in chain if rule_set.source != UNGRANTED)
    places = {rule_set.source: _place(definition, rule_set.expert) for rule_set in granted}
    source, _, name = ruling.source.rpartition(".")
    place = places.get(source) or places.get(ruling.source)
    if place is None:
        return RuleTestResult(ruling)
    reporter, at, permissions = place
    return RuleTestResult(
        ruling, str(reporter.source.path), reporter.source.lines.of(_key(at, permissions, ruling, name))
    )


def make_call(
    project: Project, factories: Sequence[SkillFactory], expert: Expert, tool: str, args: JsonObject, workspace: Path
) -> PolicyCall:
    """Return a call of an Expert's tool as rules see it. Raises UsageError if the Expert has no tool of that name."""
    resolve = path_resolver(workspace)
    spec = _delegate(project, expert, tool) if tool.startswith(f"{DELEGATE}/") else _tool(factories, expert, tool)
    if spec is None:
        by_name = {delegate.spec.name: delegate.spec for delegate in delegate_tools(expert, project.experts)}
        spec = by_name.get(tool)
    if spec is None:
        raise UsageError(f"{expert.key} has no tool `{tool}`{suggestion(tool, _names(factories, expert))}")
    is_host = spec.skill_name in host_skills(expert)
    return policy_call(spec, spec.name, args, resolve, str(workspace), is_host=is_host)


def _expert(project: Project, key: str) -> Expert:
    project.check_broken(key)
    expert = project.expert(key)
    if expert is None:
        raise UsageError(f"there is no Expert `{key}`{suggestion(key, project.experts)}")
    return expert


def _delegate(project: Project, expert: Expert, tool: str) -> ToolSpec:
    key = tool.removeprefix(f"{DELEGATE}/")
    for delegate in delegate_tools(expert, project.experts):
        if key in (delegate.spec.target, delegate.spec.skill_name.removeprefix(f"{DELEGATE}/")):
            return delegate.spec
    raise UsageError(f"{expert.key} does not delegate to `{key}`{suggestion(key, expert.delegates)}")


def _tool(factories: Sequence[SkillFactory], expert: Expert, tool: str) -> ToolSpec | None:
    skill_tools = known_tools(factories, expert)
    skill, separator, name = tool.rpartition("/")
    if separator and skill not in skill_tools:
        raise UsageError(f"{expert.key} has no skill `{skill}`{suggestion(skill, skill_tools)}")
    searched: Mapping[str, tuple[ToolSpec, ...] | None] = {skill: skill_tools[skill]} if separator else skill_tools
    matches = [spec for specs in searched.values() for spec in specs or () if spec.name == name]
    if matches:
        return matches[0]
    unknown = [skill for skill, specs in searched.items() if specs is None]
    if len(unknown) > 1:
        raise UsageError(f"which skill has `{tool}`? Write SKILL/{tool}, with one of: {', '.join(unknown)}")
    if not unknown:
        return None
    definition = next(candidate for candidate in tool_skills(expert.skills) if candidate.name == unknown[0])
    return apply_definition(ToolSpec(name=name, skill_name=unknown[0]), definition)


def _names(factories: Sequence[SkillFactory], expert: Expert) -> list[str]:
    return [spec.name for specs in known_tools(factories, expert).values() for spec in specs or ()]


def _place(definition: DefinitionFile, expert: str) -> tuple[Reporter, KeyPath, Permissions] | None:
    if not expert:
        permissions, reporter = definition.project.permissions, definition.report
        return None if permissions is None or reporter is None else (reporter, ("permissions",), permissions)
    draft = definition.drafts[expert]
    permissions = draft.expert.permissions
    return None if permissions is None else (draft.report, (*draft.at, "permissions"), permissions)


def _key(at: KeyPath, permissions: Permissions, ruling: Ruling, name: str) -> KeyPath:
    if not ruling.rule:
        return (*at, name) if name == "default" else at
    rules: tuple[str, ...] = getattr(permissions, ruling.list)
    return (*at, ruling.list, rules.index(ruling.rule))
