"""Schedules: start their occurrences, each exactly once.

`decide.next_step` decides from the state, the calendar and the observed Job; `Schedules.process_due` carries out the
step. The event is appended at the version on which it was decided, before the Job is started under the id that the
event names: of several processes one wins, and a Job whose process died before it began is started again by that id.
`JobLauncher` drives a Job here or queues it for workers. A new event needs a model and a transition in `schedule`, and
a case in `_changes` there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from pydantic import ValidationError

from perstack.core.base.ids import Owner
from perstack.core.definitions.project import Schedule
from perstack.core.jobs.due import NeedJob, is_resumable
from perstack.core.jobs.summary import JobSummary
from perstack.dataclass import dataclass
from perstack.engine.context.audit_trail import AuditTrail
from perstack.engine.context.host_setup import SetupSource
from perstack.engine.jobs.jobs import Jobs
from perstack.engine.log.event_log import AppendedState, LoadedState
from perstack.engine.log.storage_access import log_of
from perstack.errors import Conflict, NotAllowed, NotFound, PerstackError, StorageError, UsageError
from perstack.feature_logs.indexed_log import IndexedLog, IndexedLogFormat, IndexEntries, StoredSummary
from perstack.iterations.state import SeriesState
from perstack.next_steps import Inspect
from perstack.ports.storage import Storage
from perstack.schedules.calendar import Calendar, calendar_of
from perstack.schedules.decide import (
    AppendEvents,
    BeginJob,
    ContinueJob,
    ScheduleAction,
    ScheduleContext,
    next_step,
    settle_occurrence,
)
from perstack.schedules.schedule import (
    LABEL,
    Occurrence,
    ScheduleState,
    StoredScheduleEvent,
    check_schedule_name,
    damaged_schedule,
    evolve_schedule,
    parse_schedule_event,
)
from perstack.system.concurrency import leaf_errors, shield_until_done
from perstack.tasks.due_tasks import EXPERT_LABEL, Action
from perstack.tasks.state import TaskState

if TYPE_CHECKING:
    from perstack.iterations.iterations import Iterations


# Launch what is due: drive it in this process, or queue it for workers.

SERIES_LABEL = "iterations"  # label with the id of the series, in an order for iterations


class JobLauncher:
    """Launches Jobs and series: drives them in this process, or queues them for workers, which also resume them."""

    def __init__(self, jobs: Jobs, iterations: Callable[[], Iterations], source: SetupSource, *, queue: bool) -> None:
        """Create; `source` has the context in force. With `queue`, everything is left to workers."""
        self._jobs = jobs
        self._iterations = iterations
        self._source = source
        self.resumes = not queue  # True if this launcher resumes interrupted Jobs

    async def check(self, expert_key: str) -> None:
        """Raise the error that would prevent a Job of the Expert from starting.

        For a queued Job only the Expert is checked; keys, plugins and programs are checked by its worker.
        """
        setup = self._source.setup
        if self.resumes:
            await setup.check_sandbox(setup.check_ready(expert_key))
        else:
            setup.expert(expert_key)

    async def start(self, expert_key: str, query: str, *, job_id: str, labels: Mapping[str, str]) -> JobSummary:
        """Start a Job; return when it is queued, has ended, or has stopped.

        Only one Job is ever started under an id: a later caller gets its state, UsageError or Conflict.
        """
        start = self._jobs.run if self.resumes else self._jobs.submit
        return await start(expert_key, query, job_id=job_id, labels=labels)

    async def resume(self, job_id: str) -> JobSummary:
        """Drive an existing Job until it ends or stops; queue it if it was never queued."""
        if not self.resumes:
            summary = await self._jobs.job(job_id)
            if summary.queued is not None or not is_resumable(summary):
                return summary
        try:
            return await self._jobs.resume(job_id, drive=self.resumes)
        except UsageError:
            summary = await self._jobs.job(job_id)
            if is_resumable(summary):
                raise
            return summary

    async def resume_series(self, series_id: str) -> SeriesState | None:
        """Drive a paused series until it ends or stops, or queue it with its Jobs; None if it was queued already."""
        iterations = self._iterations()
        if self.resumes:
            return await iterations.resume(series_id)
        from perstack.ports.dispatcher import Order

        context = self._source.setup
        series = await iterations.get(series_id)
        labels = {SERIES_LABEL: series_id, EXPERT_LABEL: series.expert_key}
        order = Order(series_id, labels=labels, submitted_at=context.clock.now())
        return series if await context.dispatching.submit(order, context.storage, once=True) else None


# The store of schedules: each is the single log of a Job in the space `schedules`, with its state as the index entry.


def _no_jobs(schedule_state: ScheduleState) -> Sequence[str]:
    """Return nothing: Jobs of a schedule are deleted like others, and the current one may not have begun."""
    return ()


SCHEDULES = IndexedLogFormat[ScheduleState, StoredScheduleEvent, ScheduleState](
    kind="schedule",
    title="schedule ",
    missing_text="nothing has happened to a schedule {of} yet in {location}",
    list_step=Inspect("schedules"),
    check=check_schedule_name,
    parse=parse_schedule_event,
    owner=lambda event: event.schedule,
    apply=evolve_schedule,
    summary=lambda state: state,
    damaged_summary=damaged_schedule,
    jobs=_no_jobs,
    store=IndexEntries(frozenset(("name", "version", "lines", "updatedAt"))),
)


class ScheduleLog(IndexedLog[ScheduleState, StoredScheduleEvent, ScheduleState]):
    """Store of all schedules; decisions are in `decide`."""

    def __init__(self, storage: Storage, audit: AuditTrail) -> None:
        """Create; `audit` sends the heads of schedules to an anchor, if there is one, whenever no Job is running."""
        super().__init__(storage, SCHEDULES)
        self._audit = audit

    async def load_state(self, name: str) -> LoadedState[ScheduleState] | None:
        """Return a schedule's state, folded from its index entry on; None if nothing has happened. Raises Damaged."""
        stored = await SCHEDULES.store.read(self._space, name)
        return await self._load_from_entry(name, stored) or (await self.read_intact(name)).or_raise().loaded

    async def add(
        self, name: str, loaded: LoadedState[ScheduleState] | None, events: Sequence[StoredScheduleEvent]
    ) -> AppendedState[ScheduleState]:
        """Append events. Raises Conflict if another process has appended in the meantime."""
        if loaded is None:
            with suppress(Conflict):  # a process that died before the first event has left an empty log
                await self._space.create_job(name)
        return await shield_until_done(self.append(name, loaded, events))

    async def append(
        self, owner_id: str, loaded: LoadedState[ScheduleState] | None, events: Sequence[StoredScheduleEvent]
    ) -> AppendedState[ScheduleState]:
        """Append events, and send the head to the anchor unless a Job is running."""
        await self._audit.expect(Owner("schedule", owner_id))
        appended = await super().append(owner_id, loaded, events)
        if appended.state.current is None:
            await self._audit.send_after_stop(Owner("schedule", owner_id), appended.head)
        return appended

    async def _load_from_entry(self, name: str, stored: StoredSummary) -> LoadedState[ScheduleState] | None:
        """Fold the log from the index entry on; None if there is no entry, or it does not belong to this log."""
        head = stored.head
        if head is None or stored.text is None:
            return None
        loaded: LoadedState[ScheduleState] | None = None
        # An error is reported by the fold of the whole log, which follows.
        with suppress(ValidationError, ValueError, LookupError, StorageError):
            state = ScheduleState.model_validate_json(stored.text)
            async with aclosing(self._log.events(log_of(name), after=head.seq - 1)) as lines:
                async for line in lines:
                    if loaded is not None:
                        loaded = LoadedState(evolve_schedule(loaded.state, line.event), line.head)
                    elif line.head == head:
                        loaded = LoadedState(state, head)
                    else:
                        return None
            return loaded
        return None


# Results of processing due items.


@dataclass(frozen=True, slots=True, kw_only=True)
class DueWorkResult:
    """Action on a task, an occurrence of a schedule, or another Job or series, and its state afterwards."""

    did: Action | ScheduleAction
    task_id: str | None = None
    task: TaskState | None = None
    schedule: str | None = None
    occurrence: int | None = None  # the time that the cron line names, in milliseconds since 1970
    job_id: str | None = None
    summary: JobSummary | None = None
    series_id: str | None = None
    series: SeriesState | None = None
    question: str | None = None  # a question of the Job, which waits for a person
    error: str | None = None


async def job_if_any(jobs: Jobs, job_id: str) -> JobSummary | None:
    """Return the summary of a Job; None if it has no Run."""
    try:
        return await jobs.job(job_id)
    except NotFound:
        return None


def error_line(error: Exception) -> str:
    """Return the first error of a group, in one line."""
    cause = leaf_errors(error)[0]
    return str(cause) if isinstance(cause, PerstackError) else f"{type(cause).__name__}: {cause}"


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """The state of a schedule, for lists."""

    schedule: Schedule
    next: int | None = None  # time of the next occurrence, in milliseconds since 1970; a time in the past is due
    last: Occurrence | None = None
    summary: JobSummary | None = None  # the Job of `last`; None if it was not created yet, or was deleted
    waiting: int | None = None  # the occurrence that waits for the end of that Job
    skipped: int | None = None  # the occurrence that was skipped last
    error: str | None = None  # reason why the state is unknown or incomplete; None if it is complete


class Schedules:
    """The schedules of a project. Any number of processes may process them at once."""

    def __init__(self, source: SetupSource, jobs: Jobs, launcher: JobLauncher) -> None:
        """Create; `source` has the context in force, and `launcher` starts the Jobs."""
        context = source.setup
        self._source = source
        self._jobs = jobs
        self._launcher = launcher
        self._log = ScheduleLog(context.storage, context.audit)

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the definition in force."""
        return tuple(schedule.name for schedule in self._source.setup.project.schedules)

    async def once(self) -> tuple[DueWorkResult, ...]:
        """Process what is due now, until Jobs driven here end or stop. Errors are in the `error` of their schedule."""
        async with asyncio.TaskGroup() as group:
            work = [group.create_task(self._process_safely(name)) for name in self.names]
        return tuple(result for task in work if (result := task.result()) is not None)

    async def _process_safely(self, name: str) -> DueWorkResult | None:
        try:
            return await self.process_due(name)
        except (Conflict, NotAllowed, NotFound):
            return None  # another process was faster
        except Exception as error:  # noqa: BLE001 - a storage or an Expert's code may raise anything
            return DueWorkResult(did="failed", schedule=name, error=error_line(error))

    async def process_due(self, name: str) -> DueWorkResult | None:
        """Start at most one due Job of a schedule; None if nothing was due. Raises Conflict if another process does."""
        schedule = next((item for item in self._source.setup.project.schedules if item.name == name), None)
        if schedule is None:
            return None
        calendar = calendar_of(schedule)
        loaded, context = await self._log.load_state(name), ScheduleContext(resumes=self._launcher.resumes)
        result: DueWorkResult | None = None
        while (step := next_step(_state(loaded), schedule, calendar, context, self._now_ms())) is not None:
            match step:
                case NeedJob():
                    context = replace(context, jobs={step.job_id: await job_if_any(self._jobs, step.job_id)})
                case AppendEvents(starts=None):
                    loaded = await self._log.add(name, loaded, step.events)
                    if step.did is not None:
                        result = DueWorkResult(did=step.did, schedule=name, occurrence=step.at)
                case AppendEvents():
                    await self._launcher.check(schedule.expert)
                    occurrence = (await self._log.add(name, loaded, step.events)).state.current
                    return None if occurrence is None else await self._start(schedule, calendar, occurrence)
                case BeginJob():
                    await self._launcher.check(schedule.expert)
                    return await self._start(schedule, calendar, step.occurrence)
                case ContinueJob():
                    summary = await self._launcher.resume(step.occurrence.job_id)
                    return await self._record_end(schedule, calendar, step.occurrence, summary, "resumed")
                case _:
                    assert_never(step)
        return result

    async def list(self) -> tuple[ScheduleStatus, ...]:
        """Return the state of each schedule. A schedule that cannot be read has an `error`."""
        return tuple([await self._status(schedule) for schedule in self._source.setup.project.schedules])

    async def _status(self, schedule: Schedule) -> ScheduleStatus:
        try:
            calendar = calendar_of(schedule)
            loaded = await self._log.load_state(schedule.name)
            now = self._now_ms()
            if loaded is None:
                return ScheduleStatus(schedule, calendar.next_after(now))
            state = loaded.state
            last = state.current or state.last
            next_time = calendar.next_after(state.lines.get(schedule.line, now))
            summary = None if last is None else await job_if_any(self._jobs, last.job_id)
        except (StorageError, UsageError) as error:
            return ScheduleStatus(schedule, error=error_line(error))
        return ScheduleStatus(schedule, next_time, last, summary, state.waiting, state.skipped)

    def _now_ms(self) -> int:
        return self._source.setup.clock.now()

    async def _start(self, schedule: Schedule, calendar: Calendar, occurrence: Occurrence) -> DueWorkResult | None:
        labels = {LABEL: schedule.name}
        try:
            summary = await self._launcher.start(
                schedule.expert, schedule.query, job_id=occurrence.job_id, labels=labels
            )
        except UsageError:
            if await job_if_any(self._jobs, occurrence.job_id) is None:
                raise
            return None  # another process was faster
        return await self._record_end(schedule, calendar, occurrence, summary, "started")

    async def _record_end(
        self, schedule: Schedule, calendar: Calendar, occurrence: Occurrence, summary: JobSummary, did: ScheduleAction
    ) -> DueWorkResult:
        """Record that the occurrence's Job has ended, if it has, unless another process does."""
        loaded = await self._log.load_state(schedule.name)
        current = None if loaded is None else loaded.state.current
        if loaded is not None and current is not None and current.job_id == occurrence.job_id:
            step = settle_occurrence(loaded.state, schedule, calendar, summary, self._now_ms())
            if step is not None:
                with suppress(Conflict):  # another process does so in its next pass
                    await self._log.add(schedule.name, loaded, step.events)
        return DueWorkResult(
            did=did,
            schedule=schedule.name,
            occurrence=occurrence.at,
            job_id=summary.id,
            summary=summary,
            question=summary.asks,
        )


def _state(loaded: LoadedState[ScheduleState] | None) -> ScheduleState | None:
    return None if loaded is None else loaded.state
