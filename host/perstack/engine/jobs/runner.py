"""What every way to begin or continue a Job shares: its lease, its setup, and its driver, here or elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING

from perstack.config.lock import Lock
from perstack.core.ids import check_job_id
from perstack.core.job import JobSummary
from perstack.core.messages import ResultContent
from perstack.core.runs.resuming import check_not_closed
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass
from perstack.engine.clock import new_ids
from perstack.engine.emit import Emitter, OnEvent, runtime_begins
from perstack.engine.guarding import guarded
from perstack.engine.job_files import JobFiles
from perstack.engine.knowledge import Knowledge
from perstack.engine.logs.runs import LoadedJob
from perstack.engine.own_task import in_own_task
from perstack.engine.played_answers import played_answer, plays
from perstack.engine.setup import Setup
from perstack.engine.slots import job_slots
from perstack.engine.stop_requests import StopRequests
from perstack.engine.who import this_process
from perstack.errors import Conflict, UsageError
from perstack.next_steps import Continue, Give

if TYPE_CHECKING:
    from perstack.core.attachments import Attached
    from perstack.engine.attaching import Attachable  # what a Run without attachments does not need
    from perstack.engine.driver import Driver  # whoever only looks at Jobs drives none
    from perstack.engine.queueing import Queueing
    from perstack.engine.session import Session
    from perstack.ports.tasks import TaskMemory


@dataclass(frozen=True, slots=True)
class InForce:
    """What a Job is driven with."""

    setup: Setup
    lock: Lock
    knowledge: Knowledge


@dataclass(slots=True)
class Driving:
    """What this process drives."""

    tasks: dict[str, asyncio.Task[object]] = field(default_factory=dict[str, asyncio.Task[object]])
    """By the id of the Job; of a Run that is driven apart from its Job by the key of its order."""
    stopped: set[str] = field(default_factory=set[str])
    """Those that somebody has asked to stop."""
    leaving: set[str] = field(default_factory=set[str])
    """Those that stop when the steps in hand have ended."""
    drivers: dict[str, Driver] = field(default_factory=dict[str, "Driver"])
    """By the id of the Job, of those that are driven with their Coordinator."""

    def stop(self, job_id: str) -> None:
        """Cancel one, because somebody asks for it."""
        self.stopped.add(job_id)
        self.tasks[job_id].cancel()

    def forget(self, job_id: str) -> None:
        """It is driven no more."""
        self.tasks.pop(job_id, None)
        self.stopped.discard(job_id)
        self.leaving.discard(job_id)

    @asynccontextmanager
    async def by_this_task(
        self, key: str, asked: Callable[[], Coroutine[object, object, None]]
    ) -> AsyncGenerator[None]:
        """Within it the task that runs drives what is called so, and is cancelled as soon as `asked` returns."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a Job is driven by a task")
        self.tasks[key] = task
        watching = asyncio.create_task(asked())
        watching.add_done_callback(lambda done: None if done.cancelled() else self.stop(key))
        try:
            yield
        finally:
            watching.cancel()
            self.forget(key)


class DrivenJobs(JobFiles):
    """Jobs, as they are driven by this process."""

    def __init__(
        self,
        setup: Callable[[], Setup],
        tasks: Callable[[], TaskMemory],
        driving: Driving | None = None,
    ) -> None:
        """`setup` is what a Job that begins now is driven with."""
        now = setup()
        super().__init__(now.storage, now.audit, now.plugins, now.workspace, now.env)
        self._setup = setup
        self._tasks = tasks
        self._driving = Driving() if driving is None else driving

    async def _go_on(
        self,
        setup: Setup,
        job_id: str,
        begin: Callable[[LoadedJob], Awaitable[Callable[[Driver], Session]]],
        on_event: OnEvent | None,
        *,
        takes_up: bool = False,
        leaves: Callable[[LoadedJob], Awaitable[Queueing | None]] | None = None,
    ) -> JobSummary:
        """`takes_up`: the Coordinator's latest Run itself continues, under the definition that it was queued with.

        `leaves` says how it is left to a worker, if it is.
        """
        self.audit.check()
        lock = setup.lock()  # what is wrong with it is said before anything is taken

        async def work() -> JobSummary:
            async with job_slots().taken(), self._leased(job_id):
                loaded = await self.load(job_id)
                check_not_closed(loaded.job)
                started = await begin(loaded)
                queueing = None if leaves is None else await leaves(loaded)
                if not takes_up:  # nothing awaits the delegates of the Run before
                    await self.stop_elsewhere(loaded)
                used = await self._in_force(setup, loaded, lock, takes_up=takes_up)
                return await self._drive(used, loaded, started, on_event, queueing)

        return await in_own_task(work())

    async def stop_elsewhere(self, loaded: LoadedJob, below: str | None = None) -> None:
        """Stop what others drive of a Job whose lease the caller has, or what is below one of its Runs.

        The states that were loaded are brought up to date. Raises StorageError.
        """
        if any(run.queued is not None for run in loaded.runs.values() if not run.is_coordinator):
            from perstack.engine.elsewhere.stopping import stop_elsewhere

            setup, emit = self._setup(), Emitter(self.plugins.listeners, None)
            job, runs = loaded.job, loaded.runs
            await stop_elsewhere(self.storage, job, runs, emit, setup.clock, setup.dispatching, below=below)

    async def _in_force(self, setup: Setup, loaded: LoadedJob, lock: Lock | None, *, takes_up: bool = True) -> InForce:
        """What is here; or, with `takes_up`, what the Coordinator's latest Run was queued with, if it was."""
        digest, key = coordinator_of(loaded).definition, loaded.job.coordinator.start.expert_key
        if digest is not None and takes_up:
            from perstack.engine.queueing import as_queued  # most Jobs are never queued

            setup, lock = await as_queued(setup, loaded.job.id, digest)
        lock = setup.lock() if lock is None else lock
        return InForce(setup, lock, await setup.knowledge(key, lock))

    async def _attached(self, setup: Setup, expert_key: str, attachments: Sequence[Attachable]) -> tuple[Attached, ...]:
        """What was attached, read, if the Expert's model takes it. Raises UsageError."""
        if not attachments:
            return ()
        from perstack.engine.attaching import attached, check_taken

        found = await attached(attachments)
        check_taken(setup, expert_key, found)
        return found

    async def _kept(self, job_id: str, added: tuple[Attached, ...]) -> tuple[ResultContent, ...]:
        if not added:
            return ()
        from perstack.engine.attaching import keep

        return await keep(self.storage, job_id, added)

    async def _drive(
        self,
        used: InForce,
        loaded: LoadedJob,
        begin: Callable[[Driver], Session],
        on_event: OnEvent | None,
        queueing: Queueing | None = None,
    ) -> JobSummary:
        """Drive a Job, and on while a recording that it plays answers what it asks; or leave it to a worker."""
        job = await self._drive_once(used, loaded, begin, on_event, queueing)
        while job.asking is not None and plays(loaded.job):
            loaded = await self.load(job.id)
            played = played_answer(used.setup, loaded)
            if played is None:
                break
            job = await self._drive_once(used, loaded, played, on_event)
        return job

    async def _drive_once(
        self,
        used: InForce,
        loaded: LoadedJob,
        begin: Callable[[Driver], Session],
        on_event: OnEvent | None,
        queueing: Queueing | None = None,
    ) -> JobSummary:
        from perstack.engine.driver import Driver
        from perstack.engine.wiring import wired

        setup, emit = used.setup, Emitter(self.plugins.listeners, on_event)
        wiring = wired(setup, loaded.job.id, emit, self._tasks, used.lock, used.knowledge)
        session = begin(driver := Driver(wiring, loaded.job, loaded.runs, drives_here=queueing is None))
        driver.is_leaving = lambda: loaded.job.id in self._driving.leaving
        driver.is_stopped = lambda: loaded.job.id in self._driving.stopped
        start = session.run.start
        if queueing is not None:
            from perstack.engine.queueing import leave_to_a_worker

            async with self.audit.kept(loaded.job):
                return await leave_to_a_worker(driver, wiring, session, queueing, used.lock)
        await setup.check_policies((start.sandbox,))  # before anything of it is written
        emit.display(runtime_begins(start, session.run.limits, self.storage.location, setup.clock.now()))
        async with self.audit.kept(loaded.job):
            self._driving.drivers[loaded.job.id] = driver
            try:
                return await driver.drive_coordinator(session)
            finally:
                del self._driving.drivers[loaded.job.id]
                await wiring.skills.close()

    @asynccontextmanager
    async def _leased(self, job_id: str) -> AsyncGenerator[None]:
        holder = this_process()
        asked = partial(StopRequests(self.storage).asked, job_id, holder)
        leased = self._leased_on_whole_files(job_id, holder)
        async with leased, guarded(self.storage), self._driving.by_this_task(job_id, asked):
            yield

    async def _new_job(self, job_id: str | None) -> str:
        if job_id is None:
            ids = new_ids(self._setup().clock.now())
            while True:
                job_id = next(ids)
                try:
                    await self.storage.create_job(job_id)
                except Conflict:
                    continue
                return job_id
        try:
            await self.storage.create_job(check_job_id(job_id))
        except Conflict:
            await self._check_not_begun(job_id)
        return job_id

    async def _check_not_begun(self, job_id: str) -> None:
        """Raises UsageError for a Job that has begun. One whose process ended before its first event can be taken over.

        Where a head of a log is known that is not there, somebody removed the log: that id is not used again.
        """
        begun = await self._begun(job_id)
        if begun == "begun":
            raise UsageError(f"Job {job_id} exists", next_steps=(Continue(job_id), Give("job_id")))
        if begun == "removed":
            words = f"Job {job_id} had events, and its logs are gone: put them back"
            raise UsageError(words, next_steps=(Give("job_id"),))

    async def _base(self, loaded: LoadedJob, resume_from: str | None) -> Run:
        if resume_from is None:
            return coordinator_of(loaded)
        base = await self._state_at(resume_from, loaded.job.id)
        if not base.is_coordinator:
            raise UsageError(f"{resume_from} is a delegate's checkpoint; only the Coordinator's can be branched from")
        return base


def coordinator_of(loaded: LoadedJob) -> Run:
    """The Coordinator's Run that was written to last."""
    return loaded.runs[loaded.job.coordinator.start.run_id]
