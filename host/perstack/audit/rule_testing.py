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
from perstack.recordings.past_calls import PastCall, PastRun, read_past_run
from perstack.recordings.recorded_calls import RecordedCalls, expert_key_of, host_skills, known_tools
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
class _JobLogs:
    """The unparsed logs of a Job by Run, or the reason why they cannot be read."""

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

    async def run(self, storage: Storage, since: int = 0) -> AsyncGenerator[BacktestResult]:
        """Yield the result for every Job written to since a time (milliseconds since 1970; 0 for all), latest first."""
        after: str | None = None
        while True:
            page = await storage.jobs(limit=_JOBS_PER_PAGE, after=after)
            batch: list[_JobLogs] = []
            for job_id in page.ids:
                if since and await _is_older(storage, job_id, since):
                    page = Page(())
                    break
                batch.append(await _read_logs(storage, job_id))
                if len(batch) == _JOBS_PER_BATCH:
                    for result in await asyncio.to_thread(self._backtest_batch, batch, since):
                        yield result
                    batch = []
            for result in await asyncio.to_thread(self._backtest_batch, batch, since):
                yield result
            if page.next is None:
                return
            after = page.next

    def _backtest_batch(self, batch: Sequence[_JobLogs], since: int) -> list[BacktestResult]:
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
        runs = {run_id: read_past_run(run_id, lines) for run_id, lines in logs.items()}
        chains: dict[str, Sequence[RuleSet]] = {}
        calls, unknown = 0, 0
        changed: list[ChangedRuling] = []
        for run_past_run in runs.values():
            chain = chains[run_past_run.id] = self._chain(run_past_run, runs)
            key = expert_key_of(run_past_run)
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
            key = expert_key_of(current)
            callers[current.id] = self._project.expert(key) or Expert(key=key, instruction="")
            current = runs.get(current.works_for or "")
        expert, *parents = callers.values()
        return chain_of(self._project, expert, parents)


async def _read_logs(storage: Storage, job_id: str) -> _JobLogs:
    try:
        ids = await run_ids(storage, job_id)
        return _JobLogs(job_id, {run_id: await storage.read(RunRef(job_id, run_id)) for run_id in ids})
    except StorageError as error:
        return _JobLogs(job_id, {}, str(error))


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
    parents: Iterable[str] = (),
) -> RuleTestResult:
    """Decide about a call in an Expert's Run; `parents` are the Experts of its parent Runs.

    Raises UsageError for an unknown Expert or tool, and DefinitionError for a file with errors.
    """
    project = definition.to_project(strict=False).project
    expert = _find_expert(project, expert_key)
    runs = dict.fromkeys([*(_find_expert(project, key).key for key in parents), expert.key])
    callers = [project.experts[key] for key in runs if key != expert.key]
    chain = chain_of(project, expert, callers)
    policy_call = make_call(project, factories, expert, tool, args, workspace)
    ruling = decide_offer(chain, policy_call) if policy_call.skill == PROVIDER else decide_call(chain, policy_call)
    granted_rule_sets = (rule_set for rule_set in chain if rule_set.source != UNGRANTED)
    permissions_by_source = {
        rule_set.source: _find_permissions(definition, rule_set.expert) for rule_set in granted_rule_sets
    }
    source, _, name = ruling.source.rpartition(".")
    permissions_place = permissions_by_source.get(source) or permissions_by_source.get(ruling.source)
    if permissions_place is None:
        return RuleTestResult(ruling)
    reporter, at, permissions = permissions_place
    return RuleTestResult(
        ruling, str(reporter.source.path), reporter.source.lines.of(_rule_path(at, permissions, ruling, name))
    )


def make_call(
    project: Project, factories: Sequence[SkillFactory], expert: Expert, tool: str, args: JsonObject, workspace: Path
) -> PolicyCall:
    """Return a call of an Expert's tool as rules see it. Raises UsageError if the Expert has no tool of that name."""
    resolve = path_resolver(workspace)
    spec = (
        _find_delegate(project, expert, tool)
        if tool.startswith(f"{DELEGATE}/")
        else _find_tool(factories, expert, tool)
    )
    if spec is None:
        by_name = {delegate.spec.name: delegate.spec for delegate in delegate_tools(expert, project.experts)}
        spec = by_name.get(tool)
    if spec is None:
        raise UsageError(f"{expert.key} has no tool `{tool}`{suggestion(tool, _list_tool_names(factories, expert))}")
    is_host = spec.skill_name in host_skills(expert)
    return policy_call(spec, spec.name, args, resolve, str(workspace), is_host=is_host)


def _find_expert(project: Project, key: str) -> Expert:
    project.check_broken(key)
    expert = project.expert(key)
    if expert is None:
        raise UsageError(f"there is no Expert `{key}`{suggestion(key, project.experts)}")
    return expert


def _find_delegate(project: Project, expert: Expert, tool: str) -> ToolSpec:
    key = tool.removeprefix(f"{DELEGATE}/")
    for delegate in delegate_tools(expert, project.experts):
        if key in (delegate.spec.target, delegate.spec.skill_name.removeprefix(f"{DELEGATE}/")):
            return delegate.spec
    raise UsageError(f"{expert.key} does not delegate to `{key}`{suggestion(key, expert.delegates)}")


def _find_tool(factories: Sequence[SkillFactory], expert: Expert, tool: str) -> ToolSpec | None:
    """Return a tool by `name` or `skill/name`; None if no skill has it. Raises UsageError if it is ambiguous.

    If only one skill's tools are unknown (its server was not asked), the tool is taken to be of that skill.
    """
    skill_tools = known_tools(factories, expert)
    skill, separator, name = tool.rpartition("/")
    if separator and skill not in skill_tools:
        raise UsageError(f"{expert.key} has no skill `{skill}`{suggestion(skill, skill_tools)}")
    searched_skills: Mapping[str, tuple[ToolSpec, ...] | None] = (
        {skill: skill_tools[skill]} if separator else skill_tools
    )
    matches = [spec for specs in searched_skills.values() for spec in specs or () if spec.name == name]
    if matches:
        return matches[0]
    skills_with_unknown_tools = [skill for skill, specs in searched_skills.items() if specs is None]
    if len(skills_with_unknown_tools) > 1:
        raise UsageError(
            f"which skill has `{tool}`? Write SKILL/{tool}, with one of: {', '.join(skills_with_unknown_tools)}"
        )
    if not skills_with_unknown_tools:
        return None
    definition = next(
        candidate for candidate in tool_skills(expert.skills) if candidate.name == skills_with_unknown_tools[0]
    )
    return apply_definition(ToolSpec(name=name, skill_name=skills_with_unknown_tools[0]), definition)


def _list_tool_names(factories: Sequence[SkillFactory], expert: Expert) -> list[str]:
    return [spec.name for specs in known_tools(factories, expert).values() for spec in specs or ()]


def _find_permissions(definition: DefinitionFile, expert: str) -> tuple[Reporter, KeyPath, Permissions] | None:
    """Return the rules of an Expert, or of the project if `expert` is empty, and their location; None without rules."""
    if not expert:
        permissions, reporter = definition.project.permissions, definition.report
        return None if permissions is None or reporter is None else (reporter, ("permissions",), permissions)
    draft = definition.drafts[expert]
    permissions = draft.expert.permissions
    return None if permissions is None else (draft.report, (*draft.at, "permissions"), permissions)


def _rule_path(at: KeyPath, permissions: Permissions, ruling: Ruling, name: str) -> KeyPath:
    if not ruling.rule:
        return (*at, name) if name == "default" else at
    rules: tuple[str, ...] = getattr(permissions, ruling.list)
    return (*at, ruling.list, rules.index(ruling.rule))
