"""What a worker drives: a Job, or a delegate's Run that another process awaits."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from perstack.core.ids import number_of_run
from perstack.core.job import JobSummary, summarize
from perstack.core.runs.decide import has_ended
from perstack.core.runs.state import Run
from perstack.core.taking_up import due_of, is_wanted
from perstack.dataclass import dataclass
from perstack.engine.driven_jobs import DrivenJobs
from perstack.engine.elsewhere.holding import Holders
from perstack.engine.emit import Emitter, OnEvent, runtime_begins
from perstack.engine.guarding import guarded
from perstack.engine.rewinding.whole import on_whole_files
from perstack.engine.who import this_process, this_user
from perstack.errors import CannotServe, DefinitionError, NotFound, PluginError, ProviderError, SkillError, UsageError
from perstack.ports.dispatcher import order_key

if TYPE_CHECKING:
    from perstack.core.queueing import QueueFields
    from perstack.engine.driver import Driver
    from perstack.engine.logs.runs import LoadedJob
    from perstack.engine.setup import Setup

NOT_HERE = (UsageError, DefinitionError, ProviderError, PluginError, SkillError)
"""What is raised where something is missing that a Job needs."""

OnWaiting = Callable[[bool], None]


@dataclass(frozen=True, slots=True)
class Serving:
    """For whom something is driven, and how."""

    setup: Setup
    worker: str
    on_event: OnEvent | None
    on_waiting: OnWaiting | None
    distributes: bool
    """Whether delegates are left to whichever worker has a place."""


class ServedRuns(DrivenJobs):
    """Jobs, and single Runs of them, as a worker drives them."""

    def equip(self, driver: Driver, serving: Serving, key: str) -> None:
        """Have a driver work for a worker; `key` is what it drives, by `order_key`."""
        driver.worker, driver.handed_on = serving.worker, self._handing_on(key, serving.worker)
        driver.is_leaving = lambda: key in self._driving.leaving
        driver.is_stopped = lambda: key in self._driving.stopped
        if serving.on_waiting is not None:
            driver.on_waiting = serving.on_waiting
        if serving.distributes and serving.setup.dispatching.dispatcher is not None:
            from perstack.engine.elsewhere.distribution import Distribution  # most Jobs are driven in one process

            driver.distribution = Distribution(driver)

    def _handing_on(self, key: str, worker: str) -> Callable[[Run], QueueFields | None]:
        def how(run: Run) -> QueueFields | None:
            if key in self._driving.stopped or run.status != "stoppedByInterrupt":
                return None
            priority = 0 if run.queued is None else run.queued.priority
            by = this_user("worker", worker)
            return {"by": by, "definition": run.definition, "due": 0, "priority": priority}

        return how

    async def serve_run(self, serving: Serving, job_id: str, run_id: str) -> JobSummary:
        """Drive a delegate's Run that another process awaits; where its Job stands is the other's to record.

        One that nobody awaits any more is left as it is. Raises as `serve`.
        """
        try:
            loaded = await self._served_run(serving, job_id, run_id)
        except NotFound:
            await Holders(self.storage).forget(run_id)
            raise
        if run_id not in loaded.runs or has_ended(loaded.runs[run_id]):
            await Holders(self.storage).forget(run_id)
        return summarize(loaded.job, is_driven=True)

    async def _served_run(self, serving: Serving, job_id: str, run_id: str) -> LoadedJob:
        async with self._held(job_id, run_id):
            loaded = await self.load(job_id)
            run = loaded.runs.get(run_id)
            wanted = run is not None and not run.is_coordinator and is_wanted(run, loaded.runs)
            reason = due_of(run, serving.setup.clock.now()) if run is not None and wanted else None
            if run is None or reason is None:
                return loaded
            head = run.head
            try:
                await self._drive_run(serving, loaded, run)
            except NOT_HERE as error:
                if loaded.job.heads.get(run_id) != head or isinstance(error, NotFound):
                    raise
                raise CannotServe(str(error)) from error
            return loaded

    async def _drive_run(self, serving: Serving, loaded: LoadedJob, run: Run) -> None:
        from perstack.engine.driver import Driver
        from perstack.engine.serving import check_serves
        from perstack.engine.wiring import wired

        job, by = loaded.job, run.start.delegated_by
        used = await self._in_force(serving.setup, loaded, None)
        await check_serves(used.setup, loaded, run.start)
        job.root = number_of_run(run.id)
        emit = Emitter(self.plugins.listeners, serving.on_event)
        wiring = wired(used.setup, job.id, emit, self._tasks, used.lock, used.knowledge)
        driver = Driver(wiring, job, loaded.runs)
        self.equip(driver, serving, order_key(job.id, run.id))
        above = () if by is None else loaded.runs[by.run_id].permissions
        reason = due_of(run, serving.setup.clock.now()) or "crash"
        session = driver.take_up(run, reason, above=above)
        start = session.run.start
        emit.display(runtime_begins(start, session.run.limits, self.storage.location, serving.setup.clock.now()))
        try:
            await driver.drive_apart(session)
        finally:
            loaded.runs[run.id] = session.run
            await wiring.skills.close()

    @asynccontextmanager
    async def _held(self, job_id: str, run_id: str) -> AsyncGenerator[None]:
        """The lease of the Run, on whole files; meanwhile it stops if somebody asks for that."""
        holder = this_process()
        holders = Holders(self.storage)
        whole = on_whole_files(self.storage, self._workspace, self.settle_rewind, lambda: holders.held(run_id, holder))
        key, asked = order_key(job_id, run_id), partial(holders.asked, run_id, holder)
        async with whole, guarded(self.storage), self._driving.by_this_task(key, asked):
            yield
