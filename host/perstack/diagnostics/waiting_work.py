"""Work that waits in a state: the page that its user sees before agreeing that the host may act on it.

Everything is folded from the logs, as it is when it runs, and shown whole, as ASCII: no character of it can be
invisible or move a cursor. Texts that models have seen (queries, instructions, messages) run nothing and are left out.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from typing import TypeVar

from pydantic import BaseModel, JsonValue, ValidationError

from perstack.core.base.chain import open_line
from perstack.core.base.ids import Owner, OwnerKind
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.recorded_definition import SeriesDefinition
from perstack.core.definitions.sandbox import SandboxPolicy
from perstack.core.definitions.skills import AgentSkill, is_base_skill
from perstack.core.runs.state import Phase, Run, latest_reply
from perstack.engine.log.event_log import job_ids
from perstack.engine.log.run_log import load_job
from perstack.engine.log.storage_access import OWNER_KINDS, log_of, space_of
from perstack.errors import PerstackError, StorageError
from perstack.iterations.evolve import evolve_series
from perstack.iterations.state import SeriesState, parse_series_event
from perstack.ports.storage import Storage
from perstack.posted_texts.mailboxes import Mailboxes
from perstack.schedules.schedule import ScheduleState, evolve_schedule, parse_schedule_event
from perstack.tasks.events import parse_task_event
from perstack.tasks.evolve import evolve_task
from perstack.tasks.state import TaskState

_S = TypeVar("_S")
_E = TypeVar("_E")


async def waiting_work(storage: Storage, owners: Collection[Owner] | None = None) -> list[str]:
    """Return the lines of the page: everything that would run from this state, or a line that nothing would.

    With `owners` the page has only these, each with a line even if nothing of it would run.
    """
    lines = [f"{storage.location}:"]
    try:
        async for line in _lines(storage) if owners is None else _lines_of(storage, owners):
            lines.append(f"  {line}")
    except StorageError as error:  # no list: then nothing of this state can be found to be run, either
        lines.append(f"  cannot be read: {_ascii(error.message)}")
    return lines if len(lines) > 1 else [*lines, "  nothing waits there"]


async def _lines(storage: Storage) -> AsyncIterator[str]:
    completed_count = 0
    for job_id in await job_ids(storage):
        lines = await _job_lines(storage, job_id)
        completed_count += not lines
        for line in lines:
            yield line
    if completed_count:
        yield f"completed Jobs, of which nothing runs: {completed_count}"
    for kind in _READERS:
        for owner_id in await job_ids(space_of(storage, kind)):
            for line in await _owner_lines(storage, Owner(kind, owner_id)):
                yield line
    async for line in _unsent_lines(storage):
        yield line


async def _lines_of(storage: Storage, owners: Collection[Owner]) -> AsyncIterator[str]:
    for owner in owners:
        lines = await (_job_lines(storage, owner.id) if owner.kind == "job" else _owner_lines(storage, owner))
        for line in lines or [
            f"{OWNER_KINDS[owner.kind].singular} {owner.id}: it is completed, and nothing of it runs"
        ]:
            yield line


async def _unsent_lines(storage: Storage) -> AsyncIterator[str]:
    for kind in OWNER_KINDS.values():
        unsent_ids = await job_ids(storage.space(kind.outbox))
        if unsent_ids:
            yield f"records of the heads of {len(unsent_ids)} {kind.plural} to send to the project's anchor"


async def _job_lines(storage: Storage, job_id: str) -> list[str]:
    try:
        job = await load_job(storage, job_id)
        waiting_runs = [run for run in job.runs.values() if run.status != "completed" or _grants_permission(run)]
        lines = [line for run in waiting_runs for line in _run_lines(run)]
        for run in waiting_runs if job.closed is None else ():
            texts = (
                await Mailboxes(storage).list_waiting(run) if run is job.coordinator or not run.is_coordinator else ()
            )
            lines += [f"  {_ascii(str(text.by))} tells {run.id}: {_ascii(text.text)}" for text in texts if text.text]
        for digest in dict.fromkeys(run.queued_definition for run in waiting_runs if run.queued_definition):
            lines += _definition_lines(f"Job {job_id}, as it was queued", await storage.blob(job_id, digest))
    except (PerstackError, ValueError, LookupError) as error:
        return [f"Job {job_id}: cannot be read, and is not driven until it can: {_ascii(str(error))}"]
    return lines


def _grants_permission(run: Run) -> bool:
    """Return whether a Run that continues this completed one inherits a permission that a person gave it."""
    return bool(run.widenings or run.standing_approvals) or run.start.exec_grant == "open"


def _run_lines(run: Run) -> Iterator[str]:
    start = run.start
    yield f"Run {run.id} ({run.status}): Expert {_ascii(start.expert_key)} on {_ascii(run.active_model)}"
    if run.phase is Phase.REPLIED:
        for part in latest_reply(run).tool_calls:
            yield f"  calls: {_ascii(part.tool_name)} {_json(part.args)}"
    for call in run.open_calls:
        note = " (approved)" if call.approval is not None else ""
        name = f"{_ascii(call.decided.skill_name)}/{_ascii(call.decided.tool_name)}"
        yield f"  calls: {name} {_json(call.part.args)}{note}"
    yield f"  programs run {_GRANTS[start.exec_grant]}, in {_sandbox(start.sandbox)}"
    for rules in run.permissions:
        yield f"  rules of {_ascii(rules.source)}: {_model(rules.permissions)}"
    for permission in (*run.widenings, *run.standing_approvals):
        yield f"  approved for the Job: {_model(permission)}"
    yield from _experts_lines((start.expert,))


_GRANTS = {
    None: "without a question",
    "open": "without a question",
    "named": "by its rules",
    "asks": "after a question",
}


def _sandbox(policy: SandboxPolicy | None) -> str:
    return "no sandbox" if policy is None else f"the sandbox {_model(policy)}"


def _definition_lines(title: str, data: bytes) -> Iterator[str]:
    try:
        definition = SeriesDefinition.model_validate_json(data)
    except ValidationError:  # it has a newer field: show it unparsed
        yield f"{title}: {_ascii(data.decode('utf-8', 'replace'))}"
        return
    yield title
    yield from _recorded_lines(definition)


def _recorded_lines(definition: SeriesDefinition) -> Iterator[str]:
    for name in ("sandbox", "permissions"):
        value = getattr(definition, name)
        if value is not None:
            yield f"  {name}: {_model(value)}"
    if definition.chosen.open:
        yield "  programs: without a question"
    yield from _experts_lines(definition.experts)


def _experts_lines(experts: Iterable[Expert]) -> Iterator[str]:
    for expert in experts:
        for skill in expert.skills:
            if isinstance(skill, AgentSkill) or not is_base_skill(skill):
                yield f"  skill {_ascii(skill.name)} of {_ascii(expert.key)}: {_model(skill)}"
        if expert.provider_tools:
            yield f"  tools of the provider for {_ascii(expert.key)}: {_ascii(', '.join(expert.provider_tools))}"
        if expert.iterate is not None:
            yield f"  evaluator of {_ascii(expert.key)}: {_model(expert.iterate)}"


def _task_lines(task: TaskState) -> Iterator[str]:
    if task.status == "completed" or task.archived_at is not None:
        return
    yield f"task {task.task_id} ({task.status}){f': agent {_ascii(task.agent_id)}' if task.agent_id else ''}"
    if task.waiting_for is not None and task.waiting_for.command:
        yield f"  runs: {_json(list(task.waiting_for.command))}"


def _series_lines(series: SeriesState) -> Iterator[str]:
    if series.status == "completed":
        return
    yield f"iterations {series.id} ({series.status}): Expert {_ascii(series.expert_key)}"
    yield f"  evaluator: {_model(series.settings)}"
    if series.definition is not None:
        yield from _recorded_lines(series.definition)


def _schedule_lines(schedule_state: ScheduleState) -> Iterator[str]:
    yield f"schedule {schedule_state.name}: its past occurrences"


def _log_reader(
    parse: Callable[[bytes], _E], evolve: Callable[[_S | None, _E], _S], describe: Callable[[_S], Iterable[str]]
) -> Callable[[Iterable[bytes]], list[str]]:
    def lines(records: Iterable[bytes]) -> list[str]:
        state: _S | None = None
        for record in records:
            state = evolve(state, parse(open_line(record).payload))
        return [] if state is None else [*describe(state)]

    return lines


_READERS: Mapping[OwnerKind, Callable[[Iterable[bytes]], list[str]]] = {
    "task": _log_reader(parse_task_event, evolve_task, _task_lines),
    "iterations": _log_reader(parse_series_event, evolve_series, _series_lines),
    "schedule": _log_reader(parse_schedule_event, evolve_schedule, _schedule_lines),
}


async def _owner_lines(storage: Storage, owner: Owner) -> list[str]:
    try:
        return _READERS[owner.kind](await space_of(storage, owner.kind).read(log_of(owner.id)))
    except (PerstackError, ValueError, LookupError) as error:
        title = f"{OWNER_KINDS[owner.kind].singular} {owner.id}"
        return [f"{title}: cannot be read, and nothing is done to it until it can: {_ascii(str(error))}"]


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=True)


def _model(value: BaseModel) -> str:
    return _json(value.model_dump(mode="json", by_alias=True, exclude_defaults=True))


def _ascii(text: str) -> str:
    return _json(text)[1:-1].replace('\\"', '"')
