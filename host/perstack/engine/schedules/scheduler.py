"""Waking up: tasks that are due go on, and those of Experts get a Job; so do schedules.

Whatever is decided is appended to the task at the version that it was decided on, so that of several processes which
look at the same time one wakes a task, and the others find it woken.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import field, replace
from typing import TYPE_CHECKING, Literal, TypeVar, assert_never

from perstack.core.iterations.summary import SeriesSummary
from perstack.core.tasks.events import WakeTask
from perstack.core.tasks.rows import Row, to_look_after
from perstack.core.tasks.state import TaskState
from perstack.core.tasks.waking import (
    EXPERT_LABEL,
    LABEL,
    AskCommand,
    GoOn,
    Known,
    LookAtJob,
    PollResult,
    Work,
    next_step,
    query_for,
    settled,
)
from perstack.core.undriven import Paused, are_old, is_over
from perstack.dataclass import dataclass
from perstack.engine.clock import new_ulid
from perstack.engine.guarding import guarded, programs_of
from perstack.engine.jobs import Jobs
from perstack.engine.memory import ExecutionMemory
from perstack.engine.pages import pages
from perstack.engine.polling import ask_command
from perstack.engine.scheduled_work import ScheduledWork, job_if_any, words_of
from perstack.engine.schedules.starting import JobStarter, SeriesStarter
from perstack.engine.setup import Setup
from perstack.errors import Conflict, NotAllowed, NotFound, StorageError, UsageError
from perstack.ports.processes.environment import inherited

if TYPE_CHECKING:
    from perstack.engine.iterate import Iterations
    from perstack.engine.schedules.upkeep import Schedules

_AT_ONCE = 8
"""How many tasks are looked after at the same time."""

_PAGE = 500

_LOOKS_AGAIN = 1.0
"""Seconds between two looks, if the later is asked for."""

_CLEANS_EACH = 3_600_000
"""Milliseconds between two looks for Jobs that are not kept any longer: all there are have to be listed for it."""

_T = TypeVar("_T")
_P = TypeVar("_P", bound=Paused)


@dataclass(frozen=True, slots=True)
class _Due:
    """What is to be looked after."""

    id: str
    kind: Literal["task", "job", "iterations", "schedule", "list"] = "task"
    """`list`: not one of them, but all that there are of a kind."""
    problem: str | None = field(default=None, compare=False)
    """Why it cannot be looked after."""


class Scheduler:
    """Looks after the tasks of one storage, and after the schedules of a project."""

    def __init__(
        self,
        memory: ExecutionMemory,
        jobs: Jobs,
        iterations: Iterations,
        schedules: Callable[[], Schedules],
        setup: Callable[[], Setup],
        starter: JobStarter,
        resume_series: SeriesStarter,
    ) -> None:
        """`setup` is what is worked with now; `schedules` are asked for only where there are some; `starter` starts the
        Jobs of tasks, `resume_series` iterations that are due."""
        self._memory = memory
        self._jobs = jobs
        self._iterations = iterations
        self._schedules = schedules
        self._setup = setup
        self._starter = starter
        self._resume_series = resume_series
        self._soon = asyncio.Event()
        self._turn = asyncio.Semaphore(_AT_ONCE)
        self._busy: set[_Due] = set()

    async def once(self) -> tuple[ScheduledWork, ...]:
        """Whatever is due now, up to the end or stop of the Jobs that this starts."""
        due = await self._candidates()
        async with asyncio.TaskGroup() as group:
            work = [group.create_task(self._wake(one)) for one in due]
        done = [done for one in work if (done := one.result()) is not None]
        return (*done, *[one async for one in self._not_retained()])

    async def watch(self, interval: int, on_woken: Callable[[ScheduledWork], None], *, with_jobs: bool = True) -> None:
        """The same again every `interval` milliseconds, until it is cancelled. A long Job holds up nothing else.

        Without `with_jobs` Jobs that pause and belong to no task are left to others, and need not be listed.

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
            cleaned = 0
            while True:
                self._soon.clear()
                for one in await self._candidates(with_jobs=with_jobs):
                    if one not in self._busy:
                        self._busy.add(one)
                        group.create_task(look_after(one))
                if self._now() - cleaned >= _CLEANS_EACH:
                    cleaned = self._now()
                    async for removed in self._not_retained():
                        on_woken(removed)
                await self._until_next(interval / 1000)

    def look_soon(self) -> None:
        """Have what is watched looked at before its time: something has happened."""
        self._soon.set()

    async def _until_next(self, seconds: float) -> None:
        first = min(seconds, _LOOKS_AGAIN)
        await asyncio.sleep(first)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds - first):
                await self._soon.wait()

    async def _not_retained(self) -> AsyncGenerator[ScheduledWork]:
        """Remove what `[retention]` says. What goes wrong ends nothing else."""
        try:
            gone = await self._jobs.not_retained()
        except StorageError as error:
            yield ScheduledWork(did="failed", error=str(error))
            return
        async for job_id, why in self._jobs.delete_each(job.id for job in gone):
            yield ScheduledWork(did="deleted" if why is None else "failed", job_id=job_id, error=why)

    async def _candidates(self, *, with_jobs: bool = True) -> list[_Due]:
        """Whatever may be due. A list that cannot be had is one of them, with what is wrong with it."""
        now = self._now()
        due = [_Due(one.name, "schedule") for one in self._setup().project.schedules]
        rows, no_rows = await _had("tasks", self._memory.log.rows())
        due += [*no_rows, *map(_due_task, to_look_after(rows, now))]
        paused, no_series = await _had("iterations", self._due_iterations(now))
        due += [*no_series, *(_Due(one.id, "iterations", one.message if one.damaged else None) for one in paused)]
        if no_rows or no_series or not with_jobs:
            return due  # whose the Jobs are is not known, or they are others'
        of_tasks = {row.get("jobId") for row in rows}
        of_series = tuple(f"{one.id}-" for one in paused)
        jobs, no_jobs = await _had("Jobs", self._due_jobs(now))
        mine = [one for one in jobs if one not in of_tasks and not one.startswith(of_series)]
        return [*due, *no_jobs, *(_Due(one, "job") for one in mine)]

    async def _due_jobs(self, now: int) -> list[str]:
        """Those that pause for a limit of their provider's rate, and may go on."""
        found: list[str] = []
        async for page in pages(lambda after: self._jobs.list(limit=_PAGE, after=after)):
            # one that was submitted is its workers'
            found += [job.id for job in page.jobs if is_over(job, now) and job.queued is None]
            if are_old(page.jobs, now):
                break
        return found

    async def _due_iterations(self, now: int) -> list[SeriesSummary]:
        """Those that pause for the same, and those that do not read, which may be due."""
        found: list[SeriesSummary] = []
        async for page in pages(lambda after: self._iterations.list(limit=_PAGE, after=after)):
            found += [one for one in page.series if one.damaged or (one.status == "paused" and is_over(one, now))]
            if are_old(page.series, now):
                break
        return found

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
            return await self._failed(one, words_of(error))

    async def _failed(self, one: _Due, error: str) -> ScheduledWork:
        match one.kind:
            case "task":
                return ScheduledWork(did="failed", task_id=one.id, error=error)
            case "job":
                job = await _or_nothing(job_if_any(self._jobs, one.id))
                return ScheduledWork(did="failed", job_id=one.id, job=job, error=error)
            case "iterations":
                series = await _or_nothing(self._iterations.get(one.id))
                return ScheduledWork(did="failed", series_id=one.id, series=series, error=error)
            case "schedule":
                return ScheduledWork(did="failed", schedule=one.id, error=error)
            case "list":
                return ScheduledWork(did="failed", error=f"what there is of {one.id} cannot be listed: {error}")
        assert_never(one.kind)

    async def _look_after(self, one: _Due) -> ScheduledWork | None:
        if one.problem is not None:
            return await self._failed(one, one.problem)
        match one.kind:
            case "task":
                return await self._attend(one.id)
            case "job":
                job = await self._if_over(one.id, self._jobs.job, self._jobs.resume)
                return None if job is None else ScheduledWork(did="resumed", job_id=one.id, job=job)
            case "iterations":
                series = await self._if_over(one.id, self._iterations.get, self._resume_series)
                did: Literal["resumed", "queued"] = "resumed" if self._starter.resumes else "queued"
                return None if series is None else ScheduledWork(did=did, series_id=one.id, series=series)
            case "schedule":
                return await self._schedules().attend(one.id)
            case "list":
                return None
        assert_never(one.kind)

    async def _if_over(
        self, paused_id: str, look: Callable[[str], Awaitable[_P]], resume: Callable[[str], Awaitable[_P | None]]
    ) -> _P | None:
        """A Job or a series that paused for its provider's rate goes on; None if another process was quicker."""
        if not is_over(await look(paused_id), self._now()):
            return None
        try:
            return await resume(paused_id)
        except UsageError:
            if is_over(await look(paused_id), self._now()):
                raise
            return None

    async def _attend(self, task_id: str) -> ScheduledWork | None:
        """What is due of a task, as it stands and as what has to be looked at stands."""
        task = await self._memory.get(task_id)
        known = Known(task.agent_id in self._setup().project.experts)
        while (step := next_step(task, known, self._now())) is not None:
            match step:
                case AskCommand():
                    known = replace(known, poll=await self._ask(task.agent_id, step.command))
                case LookAtJob():
                    known = replace(known, jobs={step.job_id: await job_if_any(self._jobs, step.job_id)})
                case Work():
                    return await self._work(task, step.job_id, known)
                case GoOn():
                    return await self._go_on(task, step, known)
                case _:
                    assert_never(step)
        return None

    def _now(self) -> int:
        return self._setup().clock.now()

    async def _ask(self, agent_id: str, command: Sequence[str]) -> PollResult:
        setup = self._setup()
        expert_key = agent_id if agent_id in setup.project.experts else None
        async with guarded(setup.storage), setup.ground(expert_key) as ground:
            # without a sandbox it has all variables of the host
            env = inherited(setup.env, ground.variables) if ground.confines else setup.env
            return await ask_command(command, setup.workspace, env, programs_of(setup.storage), ground.runtime)

    async def _go_on(self, task: TaskState, step: GoOn, known: Known) -> ScheduledWork:
        """Append what was decided, and let the agent work, if it is an Expert and the task runs after that.

        Raises UsageError or MissingCredential, and the task is as it was, if the Expert could not.
        """
        events, job_id = step.events, None
        if step.needs_job(task, known):
            await self._starter.check(task.agent_id)
            now = self._now()
            # whole, because short ones of one moment may be the same, and nothing is made before the task is won
            job_id = step.job_id or new_ulid(now).lower()
            events = (*events, WakeTask(task_id=task.task_id, timestamp=now, job_id=job_id))
        task = await self._memory.log.change(task.task_id, lambda _: events, task.version)
        if job_id is not None:
            return await self._work(task, job_id, known)
        return ScheduledWork(task_id=task.task_id, did=step.did, task=task)

    async def _work(self, task: TaskState, job_id: str, known: Known) -> ScheduledWork:
        if await self._setup().storage.has_job(job_id):
            job = await self._starter.resume(job_id)
        else:
            labels = {LABEL: task.task_id, EXPERT_LABEL: task.agent_id}
            job = await self._starter.start(task.agent_id, query_for(task), job_id=job_id, labels=labels)
        task = await self._memory.get(task.task_id)
        step = settled(task, job, self._now())
        if step is not None:
            return await self._go_on(task, step, known)
        did: Literal["worked", "queued"] = "queued" if job.status == "queued" else "worked"
        return ScheduledWork(task_id=task.task_id, did=did, task=task, question=job.asks)


def _due_task(row: Row) -> _Due:
    return _Due(str(row["taskId"]), problem=str(row.get("error")) if row.get("damaged") else None)


async def _had(what: str, listing: Awaitable[list[_T]]) -> tuple[list[_T], list[_Due]]:
    """A list; or nothing, and what is wrong."""
    try:
        return await listing, []
    except Exception as error:  # noqa: BLE001 - a storage may raise anything
        return [], [_Due(what, "list", words_of(error))]


async def _or_nothing(work: Awaitable[_T]) -> _T | None:
    try:
        return await work
    except Exception:  # noqa: BLE001 - what went wrong before is what is told
        return None
