"""The scheduler: find what is due in a storage and process it.

Due are tasks whose wake time, answer or condition has come, Jobs and iterations that paused for a provider's rate
limit, and occurrences of schedules. Any number of processes may run schedulers on one storage. What to do next is a
pure function of the state (`next_step`); the events are appended at the version on which they were decided, so if
several processes decide at once, one wins, and the others get a Conflict. The id of a task's Job is recorded in that
append: a Job whose process died before its start is started again under the same id. An error of one item becomes a
`DueWorkResult` with `error`, and the next pass tries it again.

A new kind of due item needs a literal in `DueItem.kind`, a source in `_candidates`, and a case in `_process` and
`_failed`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import field, replace
from typing import TYPE_CHECKING, Literal, TypeVar, assert_never

from perstack.core.jobs.due import DUE, NeedJob, job_state
from perstack.dataclass import dataclass
from perstack.engine.context.host_setup import SetupSource
from perstack.engine.jobs.jobs import Jobs
from perstack.engine.log.delegate_leases_and_stop_requests import end_leftover_programs
from perstack.engine.log.storage_access import space_of
from perstack.errors import Conflict, NotAllowed, NotFound, StorageError, UsageError
from perstack.iterations.commands import poll_command
from perstack.iterations.evolve import SeriesSummary
from perstack.iterations.programs import command_sandbox
from perstack.ports.environment import inherit_variables
from perstack.schedules.schedules import DueWorkResult, JobLauncher, error_line, job_if_any
from perstack.state_guard.guarded_state import require_own_state
from perstack.support.storage import pages
from perstack.support.variables import variables_in
from perstack.system.clock import new_ulid
from perstack.tasks.due_tasks import (
    EXPERT_LABEL,
    LABEL,
    AppendTaskEvents,
    AskCommand,
    ContinueTask,
    PollResult,
    TaskContext,
    next_step,
    query_for,
    settle_task,
)
from perstack.tasks.events import WakeTask
from perstack.tasks.execution_memory import StoredTasks
from perstack.tasks.state import TaskState
from perstack.tasks.summaries import Row, find_possibly_due
from perstack.workers.orders import PausedTarget, are_old, is_over

if TYPE_CHECKING:
    from perstack.iterations.iterations import Iterations
    from perstack.schedules.schedules import Schedules

_CONCURRENT_ITEMS = 8

_ITEMS_PER_PAGE = 500

_MIN_PASS_INTERVAL_S = 1.0  # minimum seconds between two passes, if the second was requested

_RETENTION_INTERVAL_MS = 3_600_000
"""Milliseconds between two applications of `[retention]`, for which all Jobs have to be listed."""

_T = TypeVar("_T")
_PausedT = TypeVar("_PausedT", bound=PausedTarget)


@dataclass(frozen=True, slots=True)
class DueItem:
    """An item that may be due."""

    id: str
    kind: Literal["task", "job", "iterations", "schedule", "list"] = "task"
    """`list`: all items of a kind, whose list cannot be read."""
    problem: str | None = field(default=None, compare=False)  # reason why it cannot be processed; None if it can


class Scheduler:
    """Processes the due tasks, Jobs and iterations of one storage, and the schedules of a project."""

    def __init__(
        self,
        memory: StoredTasks,
        jobs: Jobs,
        iterations: Iterations,
        schedules: Callable[[], Schedules],
        source: SetupSource,
        launcher: JobLauncher,
    ) -> None:
        """Create the scheduler. `schedules` is called only if the project has schedules."""
        self._memory = memory
        self._jobs = jobs
        self._iterations = iterations
        self._schedules = schedules
        self._source = source
        self._launcher = launcher
        self._wake_requested = asyncio.Event()
        self._slots = asyncio.Semaphore(_CONCURRENT_ITEMS)
        self._busy: set[DueItem] = set()

    async def once(self) -> tuple[DueWorkResult, ...]:
        """Process everything that is due now; return after the Jobs started here have ended or stopped.

        Raises NotAgreed: a task's command runs before anything is written.
        """
        await require_own_state(self._source.setup.storage)
        due = await self._candidates()
        async with asyncio.TaskGroup() as group:
            work = [group.create_task(self._process_safely(item)) for item in due]
        results = [result for task in work if (result := task.result()) is not None]
        return (*results, *[removed async for removed in self._delete_expired()])

    async def watch(self, interval: int, on_woken: Callable[[DueWorkResult], None], *, with_jobs: bool = True) -> None:
        """Repeat `once` every `interval` milliseconds until cancelled. A repeated error is reported once.

        Without `with_jobs`, paused Jobs that belong to no task are left to others. Raises NotAgreed.
        """
        await require_own_state(self._source.setup.storage)
        errors: dict[DueItem, str] = {}

        async def process_item(item: DueItem) -> None:
            try:
                result = await self._process_safely(item)
            finally:
                self._busy.discard(item)
            last_error = errors.pop(item, None)
            if result is not None and result.error is not None:
                errors[item] = result.error
            if result is not None and (result.error is None or result.error != last_error):
                on_woken(result)

        async with asyncio.TaskGroup() as group:
            last_cleanup = 0
            while True:
                self._wake_requested.clear()
                for item in await self._candidates(with_jobs=with_jobs):
                    if item not in self._busy:
                        self._busy.add(item)
                        group.create_task(process_item(item))
                if self._now_ms() - last_cleanup >= _RETENTION_INTERVAL_MS:
                    last_cleanup = self._now_ms()
                    async for removed in self._delete_expired():
                        on_woken(removed)
                await self._wait_for_next(interval / 1000)

    def wake(self) -> None:
        """Make the next pass of `watch` start early."""
        self._wake_requested.set()

    async def _wait_for_next(self, interval_s: float) -> None:
        minimum_s = min(interval_s, _MIN_PASS_INTERVAL_S)
        await asyncio.sleep(minimum_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(interval_s - minimum_s):
                await self._wake_requested.wait()

    async def _delete_expired(self) -> AsyncGenerator[DueWorkResult]:
        try:
            expired = await self._jobs.not_retained()
        except StorageError as error:
            yield DueWorkResult(did="failed", error=str(error))
            return
        async for job_id, reason in self._jobs.delete_each(summary.id for summary in expired):
            yield DueWorkResult(did="deleted" if reason is None else "failed", job_id=job_id, error=reason)

    async def _candidates(self, *, with_jobs: bool = True) -> list[DueItem]:
        """Return everything that may be due. A list that cannot be read is an item with its error."""
        now = self._now_ms()
        due = [DueItem(schedule.name, "schedule") for schedule in self._source.setup.project.schedules]
        rows, row_errors = await _list_or_error("tasks", self._memory.log.rows())
        due += [*row_errors, *map(_due_task, find_possibly_due(rows, now))]
        paused, series_errors = await _list_or_error("iterations", self._due_iterations(now))
        due += series_errors
        due += [
            DueItem(series_summary.id, "iterations", series_summary.message if series_summary.damaged else None)
            for series_summary in paused
        ]
        if row_errors or series_errors or not with_jobs:
            return due  # it is unknown which Jobs belong to tasks, or other processes handle them
        task_jobs = {row.get("jobId") for row in rows}
        series_prefixes = tuple(f"{series_summary.id}-" for series_summary in paused)
        jobs, job_errors = await _list_or_error("Jobs", self._due_jobs(now))
        unowned = [job_id for job_id in jobs if job_id not in task_jobs and not job_id.startswith(series_prefixes)]
        return [*due, *job_errors, *(DueItem(job_id, "job") for job_id in unowned)]

    async def _due_jobs(self, now: int) -> list[str]:
        job_ids: list[str] = []
        async for page in pages(lambda after: self._jobs.list(limit=_ITEMS_PER_PAGE, after=after)):
            job_ids += [summary.id for summary in page.jobs if DUE[job_state(summary, now)]["other"] == "continue"]
            if are_old(page.jobs, now):
                break
        return job_ids

    async def _due_iterations(self, now: int) -> list[SeriesSummary]:
        due: list[SeriesSummary] = []
        async for page in pages(lambda after: self._iterations.list(limit=_ITEMS_PER_PAGE, after=after)):
            due += [
                series_summary
                for series_summary in page.series
                if series_summary.damaged or (series_summary.status == "paused" and is_over(series_summary, now))
            ]
            if are_old(page.series, now):
                break
        return due

    async def _process_safely(self, item: DueItem) -> DueWorkResult | None:
        try:
            async with self._slots:
                return await self._process(item)
        except (Conflict, NotAllowed, NotFound):
            return None  # another process was faster
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            return await self._failure_result(item, "its Job was cancelled")
        except Exception as error:  # noqa: BLE001 - a storage or an Expert's code may raise anything
            return await self._failure_result(item, error_line(error))

    async def _failure_result(self, item: DueItem, error: str) -> DueWorkResult:
        match item.kind:
            case "task":
                return DueWorkResult(did="failed", task_id=item.id, error=error)
            case "job":
                summary = await _none_on_error(job_if_any(self._jobs, item.id))
                return DueWorkResult(did="failed", job_id=item.id, summary=summary, error=error)
            case "iterations":
                series = await _none_on_error(self._iterations.get(item.id))
                return DueWorkResult(did="failed", series_id=item.id, series=series, error=error)
            case "schedule":
                return DueWorkResult(did="failed", schedule=item.id, error=error)
            case "list":
                return DueWorkResult(did="failed", error=f"the {item.id} cannot be listed: {error}")
        assert_never(item.kind)

    async def _process(self, item: DueItem) -> DueWorkResult | None:
        if item.problem is not None:
            return await self._failure_result(item, item.problem)
        if item.kind != "list":  # checked here, because a task's command runs before anything is written
            await space_of(self._source.setup.storage, item.kind).require_own(item.id)
        match item.kind:
            case "task":
                return await self._process_task(item.id)
            case "job":
                summary = await self._resume_if_over(item.id, self._jobs.job, self._jobs.resume)
                return None if summary is None else DueWorkResult(did="resumed", job_id=item.id, summary=summary)
            case "iterations":
                series = await self._resume_if_over(item.id, self._iterations.get, self._launcher.resume_series)
                did: Literal["resumed", "queued"] = "resumed" if self._launcher.resumes else "queued"
                return None if series is None else DueWorkResult(did=did, series_id=item.id, series=series)
            case "schedule":
                return await self._schedules().process_due(item.id)
            case "list":
                return None
        assert_never(item.kind)

    async def _resume_if_over(
        self,
        paused_id: str,
        get_state: Callable[[str], Awaitable[_PausedT]],
        resume: Callable[[str], Awaitable[_PausedT | None]],
    ) -> _PausedT | None:
        """Resume a Job or a series whose rate limit is over; None if another process was faster."""
        if not is_over(await get_state(paused_id), self._now_ms()):
            return None
        try:
            return await resume(paused_id)
        except UsageError:
            if is_over(await get_state(paused_id), self._now_ms()):
                raise
            return None

    async def _process_task(self, task_id: str) -> DueWorkResult | None:
        """Process a task: take its next steps until nothing is due, and load what the decisions need."""
        task = await self._memory.get(task_id)
        context = TaskContext(task.agent_id in self._source.setup.project.experts)
        while (step := next_step(task, context, self._now_ms())) is not None:
            match step:
                case AskCommand():
                    context = replace(context, poll=await self._run_wake_command(task.agent_id, step.command))
                case NeedJob():
                    context = replace(context, jobs={step.job_id: await job_if_any(self._jobs, step.job_id)})
                case ContinueTask():
                    return await self._run_job(task, step.job_id, context)
                case AppendTaskEvents():
                    return await self._append(task, step, context)
                case _:
                    assert_never(step)
        return None

    def _now_ms(self) -> int:
        return self._source.setup.clock.now()

    async def _run_wake_command(self, agent_id: str, command: Sequence[str]) -> PollResult:
        setup = self._source.setup
        expert_key = agent_id if agent_id in setup.project.experts else None
        async with end_leftover_programs(setup.storage), command_sandbox(setup, expert_key) as sandbox:
            env = inherit_variables(setup.env.without_stored, (*variables_in(command), *sandbox.variables))
            return await poll_command(command, setup.workspace, env, setup.storage.programs, sandbox.runtime)

    async def _append(self, task: TaskState, step: AppendTaskEvents, context: TaskContext) -> DueWorkResult:
        """Append the decided events, and start the agent's Job if it is an Expert and the task runs after them.

        Raises UsageError or MissingCredential, without appending anything, if the Expert could not run.
        """
        events, job_id = step.events, None
        if step.needs_job(task, context):
            await self._launcher.check(task.agent_id)
            now = self._now_ms()
            # A whole ULID: short ids of one moment may collide, and the Job is created only after this append.
            job_id = step.job_id or new_ulid(now).lower()
            events = (*events, WakeTask(task_id=task.task_id, timestamp=now, job_id=job_id))
        task = await self._memory.log.change(task.task_id, lambda _: events, task.version)
        if job_id is not None:
            return await self._run_job(task, job_id, context)
        return DueWorkResult(task_id=task.task_id, did=step.did, task=task)

    async def _run_job(self, task: TaskState, job_id: str, context: TaskContext) -> DueWorkResult:
        if await self._source.setup.storage.has_job(job_id):
            summary = await self._launcher.resume(job_id)
        else:
            labels = {LABEL: task.task_id, EXPERT_LABEL: task.agent_id}
            summary = await self._launcher.start(task.agent_id, query_for(task), job_id=job_id, labels=labels)
        task = await self._memory.get(task.task_id)
        step = settle_task(task, summary, self._now_ms())
        if step is not None:
            return await self._append(task, step, context)
        did: Literal["worked", "queued"] = "queued" if summary.status == "queued" else "worked"
        return DueWorkResult(task_id=task.task_id, did=did, task=task, question=summary.asks)


def _due_task(row: Row) -> DueItem:
    return DueItem(str(row["taskId"]), problem=str(row.get("error")) if row.get("damaged") else None)


async def _list_or_error(kind: str, load_rows: Awaitable[list[_T]]) -> tuple[list[_T], list[DueItem]]:
    try:
        return await load_rows, []
    except Exception as error:  # noqa: BLE001 - a storage may raise anything
        return [], [DueItem(kind, "list", error_line(error))]


async def _none_on_error(work: Awaitable[_T]) -> _T | None:
    try:
        return await work
    except Exception:  # noqa: BLE001 - the earlier error is the one to report
        return None
