"""Waking up: tasks that are due go on, and those of Experts get a Job.

Whatever is decided is appended to the task at the version that it was decided on, so that of several processes which
look at the same time one wakes a task, and the others find it woken.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, assert_never

from perstack.core.iterations.state import SeriesState
from perstack.core.iterations.summary import SeriesSummary
from perstack.core.job import JobSummary
from perstack.core.tasks.events import (
    AnswerTask,
    CompleteTask,
    FailTask,
    PauseTask,
    ResumeTask,
    StoredTaskEvent,
    WakeTask,
)
from perstack.core.tasks.operations import failure
from perstack.core.tasks.state import TaskState, due_at
from perstack.engine.clock import SYSTEM, new_ulid
from perstack.engine.groups import leaves
from perstack.engine.guarding import guarded, programs_of
from perstack.engine.logs.tasks import Row
from perstack.engine.memory import ExecutionMemory
from perstack.engine.pages import pages
from perstack.engine.polling import PollResult, ask_command
from perstack.engine.read import JobReader
from perstack.engine.task_dependencies import by_id, is_held_up
from perstack.errors import Conflict, NotAllowed, NotFound, PerstackError, UsageError
from perstack.ports.clock import Clock
from perstack.ports.storage import Storage

if TYPE_CHECKING:
    from perstack.engine.iterate import Iterations

_AT_ONCE = 8
"""How many tasks are looked after at the same time."""

_STILLBORN = 30_000
"""Milliseconds after which a Job that has not begun never will."""

_LONGEST_PAUSE = 7 * 24 * 3_600_000
"""Milliseconds that a Job is looked for which pauses; nobody's rate is limited for longer."""

_PAGE = 500

_T = TypeVar("_T")

Action = Literal["resumed", "worked", "timedOut", "failed"]


@dataclass(frozen=True, slots=True)
class _Due:
    """What is to be looked after."""

    id: str
    kind: Literal["task", "job", "iterations", "list"] = "task"
    """`list`: not one of them, but all that there are of a kind."""
    problem: str | None = field(default=None, compare=False)
    """Why it cannot be looked after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledWork:
    """What was done about one task, or about a Job or iterations that are no task's."""

    did: Action
    task_id: str | None = None
    task: TaskState | None = None
    """The task after that."""
    job_id: str | None = None
    job: JobSummary | None = None
    """The Job after that."""
    series_id: str | None = None
    series: SeriesState | None = None
    """The iterations after that."""
    question: str | None = None
    """What the task's Job asks: it waits for a person."""
    error: str | None = None


class Run(Protocol):
    """`Host.run`."""

    async def __call__(self, expert_key: str, query: str, *, job_id: str) -> JobSummary: ...


@dataclass(frozen=True, slots=True)
class Jobs:
    """What is needed of a Host."""

    storage: Storage
    run: Run
    resume: Callable[[str], Awaitable[JobSummary]]
    job: Callable[[str], Awaitable[JobSummary]]
    reader: JobReader
    check: Callable[[str], None]
    """Raises UsageError or MissingCredential if a Job of an Expert could not begin."""
    iterations: Iterations

    async def work_on(self, expert_key: str, query: str, job_id: str) -> JobSummary:
        """Start the Job of that id, or go on with it, to its end or stop."""
        if await self.storage.has_job(job_id):
            return await self._resumed(job_id)
        return await self.run(expert_key, query, job_id=job_id)

    async def _resumed(self, job_id: str) -> JobSummary:
        try:
            return await self.resume(job_id)
        except UsageError:
            job = await self.job(job_id)
            if job.status in ("completed", "stoppedByInteractiveTool"):
                return job  # another process was quicker
            raise

    async def find(self, job_id: str) -> JobSummary | None:
        """Where a Job stands; None if it has no Run."""
        try:
            return await self.job(job_id)
        except NotFound:
            return None

    async def due(self, now: int) -> list[str]:
        """Those that pause for a limit of their provider's rate, and may go on."""
        found: list[str] = []
        async for page in pages(lambda after: self.reader.jobs(limit=_PAGE, after=after)):
            found += [job.id for job in page.jobs if _is_over(job, now)]
            if _are_old(page.jobs, now):
                break
        return found

    async def due_iterations(self, now: int) -> list[SeriesSummary]:
        """Those that pause for the same, and those that do not read, which may be due."""
        found: list[SeriesSummary] = []
        async for page in pages(lambda after: self.iterations.list(limit=_PAGE, after=after)):
            found += [one for one in page.series if one.damaged or (one.status == "paused" and _is_over(one, now))]
            if _are_old(page.series, now):
                break
        return found


def _are_old(page: Sequence[JobSummary | SeriesSummary], now: int) -> bool:
    """Whether none of a page, and so none after it, can pause any more; what does not read says nothing of its age."""
    written = [one.updated_at for one in page if one.updated_at]
    return bool(written) and max(written) < now - _LONGEST_PAUSE


def _is_over(paused: JobSummary | SeriesSummary | SeriesState, now: int) -> bool:
    return paused.pause_reason == "rate_limit" and (paused.resume_at or 0) <= now


class Scheduler:
    """Looks after the tasks of one storage."""

    def __init__(
        self,
        memory: ExecutionMemory,
        jobs: Jobs,
        experts: Container[str],
        directory: Path,
        env: Mapping[str, str],
        clock: Clock = SYSTEM,
    ) -> None:
        self._memory = memory
        self._jobs = jobs
        self._experts = experts
        self._directory = directory
        self._env = env
        self._clock = clock
        self._turn = asyncio.Semaphore(_AT_ONCE)
        self._busy: set[_Due] = set()

    async def once(self) -> tuple[ScheduledWork, ...]:
        """Whatever is due now, up to the end or stop of the Jobs that this starts."""
        due = await self._candidates()
        async with asyncio.TaskGroup() as group:
            work = [group.create_task(self._wake(one)) for one in due]
        return tuple(done for one in work if (done := one.result()) is not None)

    async def watch(self, interval: int, on_woken: Callable[[ScheduledWork], None]) -> None:
        """The same again every `interval` milliseconds, until it is cancelled. A long Job holds up nothing else.

        What goes wrong with one ends nothing else: it is tried again at the next look. What goes wrong in the same way
        again and again is told once.
        """
        errors: dict[_Due, str] = {}

        async def look_after(one: _Due) -> None:
            try:
                done = await self._wake(one)
            finally:
                self._busy.discard(one)
            before = errors.pop(one, None)
            if done is not None and done.error is not None:
                errors[one] = done.error
            if done is not None and (done.error is None or done.error != before):
                on_woken(done)

        async with asyncio.TaskGroup() as group:
            while True:
                for one in await self._candidates():
                    if one not in self._busy:
                        self._busy.add(one)
                        group.create_task(look_after(one))
                await asyncio.sleep(interval / 1000)

    async def _candidates(self) -> list[_Due]:
        """Whatever may be due. A list that cannot be had is one of them, with what is wrong with it."""
        now = self._clock.now()
        rows, no_rows = await _had("tasks", self._memory.log.rows())
        each = by_id(rows)
        free = (row for row in rows if not is_held_up(row, each))
        due = [*no_rows, *(_due_task(row) for row in free if self._is_candidate(row, now))]
        paused, no_series = await _had("iterations", self._jobs.due_iterations(now))
        due += [*no_series, *(_Due(one.id, "iterations", one.message if one.damaged else None) for one in paused)]
        if no_rows or no_series:
            return due  # whose the Jobs are is not known
        of_tasks = {row.get("jobId") for row in rows}
        of_series = tuple(f"{one.id}-" for one in paused)
        jobs, no_jobs = await _had("Jobs", self._jobs.due(now))
        mine = [one for one in jobs if one not in of_tasks and not one.startswith(of_series)]
        return [*due, *no_jobs, *(_Due(one, "job") for one in mine)]

    async def _wake(self, one: _Due) -> ScheduledWork | None:
        """Look after one of them. Whatever goes wrong with it, others are looked after all the same."""
        try:
            async with self._turn:
                return await self._look_after(one)
        except (Conflict, NotAllowed, NotFound):
            return None  # another process was quicker
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            return await self._failed(one, "its Job was cancelled")
        except Exception as error:  # noqa: BLE001 - a storage or an Expert's code may raise anything
            return await self._failed(one, _words_of(error))

    async def _failed(self, one: _Due, error: str) -> ScheduledWork:
        match one.kind:
            case "task":
                return ScheduledWork(did="failed", task_id=one.id, error=error)
            case "job":
                job = await _or_nothing(self._jobs.find(one.id))
                return ScheduledWork(did="failed", job_id=one.id, job=job, error=error)
            case "iterations":
                series = await _or_nothing(self._jobs.iterations.get(one.id))
                return ScheduledWork(did="failed", series_id=one.id, series=series, error=error)
            case "list":
                return ScheduledWork(did="failed", error=f"what there is of {one.id} cannot be listed: {error}")
        assert_never(one.kind)

    async def _look_after(self, one: _Due) -> ScheduledWork | None:
        if one.problem is not None:
            return await self._failed(one, one.problem)
        match one.kind:
            case "task":
                task = await self._memory.get(one.id)
                return await (self._resume(task) if task.status == "paused" else self._attend(task))
            case "job":
                return await self._go_on_with_job(one.id)
            case "iterations":
                return await self._go_on_with_iterations(one.id)
            case "list":
                return None
        assert_never(one.kind)

    async def _go_on_with_job(self, job_id: str) -> ScheduledWork | None:
        if not _is_over(await self._jobs.job(job_id), self._clock.now()):
            return None  # another process was quicker
        try:
            job = await self._jobs.resume(job_id)
        except UsageError:
            if _is_over(await self._jobs.job(job_id), self._clock.now()):
                raise
            return None
        return ScheduledWork(did="resumed", job_id=job_id, job=job)

    async def _go_on_with_iterations(self, series_id: str) -> ScheduledWork | None:
        if not _is_over(await self._jobs.iterations.get(series_id), self._clock.now()):
            return None  # another process was quicker
        try:
            series = await self._jobs.iterations.resume(series_id)
        except UsageError:
            if _is_over(await self._jobs.iterations.get(series_id), self._clock.now()):
                raise
            return None
        return ScheduledWork(did="resumed", series_id=series_id, series=series)

    def _is_candidate(self, row: Row, now: int) -> bool:
        if row.get("archivedAt") is not None:
            return False
        if row.get("damaged"):
            return True
        due = row.get("dueAt")
        is_due = isinstance(due, int) and due <= now
        works = row.get("status") == "running" and row.get("jobId") is not None
        return is_due or bool(row.get("polls")) or works

    async def _resume(self, task: TaskState) -> ScheduledWork | None:
        """A paused task goes on, if what it waits for has come."""
        now, due = self._clock.now(), due_at(task)
        if task.blocked_by:
            return None
        events: list[StoredTaskEvent] = []
        if due is None or due > now:
            command = task.waiting_for.command if task.waiting_for is not None else ()
            word = await self._ask(command) if command else None
            if word is None or not word.has_come:
                return None
            events.append(AnswerTask(task_id=task.task_id, timestamp=self._clock.now(), input=word.value))
        events.append(ResumeTask(task_id=task.task_id, timestamp=self._clock.now()))
        return await self._go_on(task, events, "resumed", await self._paused_job(task))

    async def _ask(self, command: Sequence[str]) -> PollResult:
        async with guarded(self._jobs.storage):
            return await ask_command(command, self._directory, self._env, programs_of(self._jobs.storage))

    async def _paused_job(self, task: TaskState) -> str | None:
        """The Job that a task waits with, for the rate of its provider: it goes on where it was."""
        if task.pause_reason != "rate_limit" or task.job_id is None:
            return None
        job = await self._jobs.find(task.job_id)
        return task.job_id if job is not None and job.pause_reason == "rate_limit" else None

    async def _attend(self, task: TaskState) -> ScheduledWork | None:
        """A running task whose process has died goes on, and one that was silent for too long has failed."""
        if task.status != "running":
            return None
        if task.job_id is not None and task.agent_id in self._experts:
            return await self._attend_job(task, task.job_id)
        due = due_at(task)
        if due is None or due > self._clock.now():
            return None
        failed = failure(task, f"timed out: nothing was heard of it for {task.config.timeout} ms", self._clock.now())
        return await self._go_on(task, [failed], "timedOut")

    async def _attend_job(self, task: TaskState, job_id: str) -> ScheduledWork | None:
        job = await self._jobs.find(job_id)
        if job is None:  # it is about to begin, or the process that was to begin it has died
            is_stillborn = self._clock.now() - task.updated_at > _STILLBORN
            return await self._go_on(task, [], "resumed") if is_stillborn else None
        if job.status == "stoppedByInterrupt" and job.pause_reason != "rate_limit":
            return await self._work(task, job_id)
        return await self._settle(task, job)

    async def _go_on(
        self, task: TaskState, events: list[StoredTaskEvent], did: Action, paused_job: str | None = None
    ) -> ScheduledWork:
        """Append these, and let the agent work, if it is an Expert and the task runs after them.

        Raises UsageError or MissingCredential, and the task is as it was, if the Expert could not.
        """
        stops = any(isinstance(event, FailTask) and event.outcome != "retry" for event in events)
        # whole, because short ones of one moment may be the same, and nothing is made before the task is won
        new_job = paused_job or new_ulid(self._clock.now()).lower()
        job_id = new_job if task.agent_id in self._experts and not stops else None
        if job_id is not None:
            self._jobs.check(task.agent_id)
            events = [*events, WakeTask(task_id=task.task_id, timestamp=self._clock.now(), job_id=job_id)]
        task = await self._memory.log.change(task.task_id, lambda _: events, task.version)
        woken = ScheduledWork(task_id=task.task_id, did=did, task=task)
        return woken if job_id is None else await self._work(task, job_id)

    async def _work(self, task: TaskState, job_id: str) -> ScheduledWork:
        job = await self._jobs.work_on(task.agent_id, query_for(task), job_id)
        task = await self._memory.get(task.task_id)
        settled = await self._settle(task, job)
        return settled or ScheduledWork(task_id=task.task_id, did="worked", task=task, question=job.asks)

    async def _settle(self, task: TaskState, job: JobSummary) -> ScheduledWork | None:
        """What a Job's end means for its task, unless its Expert has said so itself."""
        if task.status != "running" or task.job_id != job.id:
            return None
        event = _told_by(task, job, self._clock.now())
        if event is None:
            return None
        if isinstance(event, FailTask):
            return await self._go_on(task, [event], "worked")
        task = await self._memory.log.change(task.task_id, lambda _: [event], task.version)
        return ScheduledWork(task_id=task.task_id, did="worked", task=task)


def _due_task(row: Row) -> _Due:
    return _Due(str(row["taskId"]), problem=str(row.get("error")) if row.get("damaged") else None)


async def _had(what: str, listing: Awaitable[list[_T]]) -> tuple[list[_T], list[_Due]]:
    """A list; or nothing, and what is wrong."""
    try:
        return await listing, []
    except Exception as error:  # noqa: BLE001 - a storage may raise anything
        return [], [_Due(what, "list", _words_of(error))]


async def _or_nothing(work: Awaitable[_T]) -> _T | None:
    try:
        return await work
    except Exception:  # noqa: BLE001 - what went wrong before is what is told
        return None


def _words_of(error: Exception) -> str:
    """The first thing that went wrong, in one line."""
    first = leaves(error)[0]
    return str(first) if isinstance(first, PerstackError) else f"{type(first).__name__}: {first}"


def _told_by(task: TaskState, job: JobSummary, now: int) -> StoredTaskEvent | None:
    if job.status == "completed":
        return CompleteTask(task_id=task.task_id, timestamp=now, result=job.text)
    if job.status == "stoppedByError":
        return failure(task, job.error or "the Job failed", now)
    if job.status == "stoppedByMaxSteps":
        words = f"Job {job.id} has reached its step limit"
        return PauseTask(task_id=task.task_id, timestamp=now, reason="checkpoint", message=words)
    if job.pause_reason == "rate_limit":
        return PauseTask(task_id=task.task_id, timestamp=now, reason="rate_limit", resume_at=job.resume_at)
    return None


def query_for(task: TaskState) -> str:
    """What an Expert is told that goes on with a task."""
    parts = [f"Go on with task {task.task_id}: {task.name}."]
    if task.description:
        parts.append(task.description)
    parts.append(f"Its state is:\n{_json(task.state)}")
    if task.checkpoint_data is not None:
        parts.append(f"With its latest checkpoint was kept:\n{_json(task.checkpoint_data)}")
    if task.input is not None:
        parts.append(f"What it was waiting for has come:\n{_json(task.input)}")
    if task.input_text:
        parts.append(f"With it was said:\n{task.input_text}")
    if task.config.checkpoint_interval is not None:
        parts.append(f"Make a checkpoint of it at least every {max(1, task.config.checkpoint_interval // 1000)} s.")
    if task.error is not None:
        parts.append(f"It failed the last time: {task.error}")
    return "\n\n".join(parts)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)
