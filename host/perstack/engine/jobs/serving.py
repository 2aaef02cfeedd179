"""Drive Jobs for a worker, or a delegate's Run that another process awaits."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from perstack.core.base.ids import number_of_run
from perstack.core.jobs.resuming import due_of, is_wanted
from perstack.core.jobs.summary import JobSummary, summarize
from perstack.core.runs.decide import has_ended
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass
from perstack.engine.files.rewind_lock import lease_without_rewind
from perstack.engine.jobs.runner import DrivenJobs
from perstack.engine.log.emitter import Emitter, OnEvent, runtime_begins
from perstack.engine.log.leases import DelegateLeases, leftover_programs_ended
from perstack.errors import CannotServe, DefinitionError, NotFound, PluginError, ProviderError, SkillError, UsageError
from perstack.ports.dispatcher import order_key
from perstack.system.user import this_process, this_user

if TYPE_CHECKING:
    from perstack.core.jobs.job import Job
    from perstack.core.runs.events import QueueFields
    from perstack.engine.context.host_context import Setup
    from perstack.engine.runs.loop import Driver

NOT_HERE = (UsageError, DefinitionError, ProviderError, PluginError, SkillError)
"""Errors that are raised if this worker lacks something that a Job needs."""

OnWaiting = Callable[[bool], None]


@dataclass(frozen=True, slots=True)
class Serving:
    """Settings of a worker for one Job or Run that it drives."""

    setup: Setup
    worker: str
    on_event: OnEvent | None
    on_waiting: OnWaiting | None
    distributes: bool
    """True if delegates are queued for any worker."""


class ServedRuns(DrivenJobs):
    """Jobs, and single Runs of them, as a worker drives them."""

    def equip(self, driver: Driver, serving: Serving, key: str) -> None:
        """Configure a driver for a worker; `key` is the `order_key` of what it drives."""
        driver.worker, driver.handed_on = serving.worker, self._handing_on(key, serving.worker)
        driver.is_leaving = lambda: key in self._driving.leaving
        driver.is_stopped = lambda: key in self._driving.stopped
        if serving.on_waiting is not None:
            driver.on_waiting = serving.on_waiting
        if serving.distributes and serving.setup.dispatching.dispatcher is not None:
            from perstack.engine.runs.remote_delegates import Distribution  # most Jobs are driven in one process

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
        """Drive a delegate's Run that another process awaits; the other process records the summary of its Job.

        A Run that is not awaited any more is left unchanged. Raises as `serve`.
        """
        try:
            loaded = await self._served_run(serving, job_id, run_id)
        except NotFound:
            await DelegateLeases(self.storage).forget(run_id)
            raise
        if run_id not in loaded.runs or has_ended(loaded.runs[run_id]):
            await DelegateLeases(self.storage).forget(run_id)
        return summarize(loaded, is_driven=True)

    async def _served_run(self, serving: Serving, job_id: str, run_id: str) -> Job:
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
                if loaded.heads.get(run_id) != head or isinstance(error, NotFound):
                    raise
                raise CannotServe(str(error)) from error
            return loaded

    async def _drive_run(self, serving: Serving, loaded: Job, run: Run) -> None:
        from perstack.engine.jobs.requirements import check_serves
        from perstack.engine.runs.job_context import wired
        from perstack.engine.runs.loop import Driver

        by = run.start.delegated_by
        used = await self._in_force(serving.setup, loaded, None)
        await check_serves(used.setup, loaded, run.start)
        if run.start.snapshots is not None:
            await self._check_files(loaded.id)
        loaded.root = number_of_run(run.id)
        emit = Emitter(self.plugins.listeners, serving.on_event)
        wiring = wired(used.setup, loaded.id, emit, self._tasks, used.lock, used.knowledge)
        driver = Driver(wiring, loaded)
        self.equip(driver, serving, order_key(loaded.id, run.id))
        above = () if by is None else loaded.runs[by.run_id].permissions
        reason = due_of(run, serving.setup.clock.now()) or "crash"
        session = driver.take_up(run, reason, above=above)
        start = session.run.start
        emit.display(runtime_begins(start, session.run.limits, self.storage.location, serving.setup.clock.now()))
        try:
            await driver.drive_apart(session)
        finally:
            await wiring.skills.close()

    @asynccontextmanager
    async def _held(self, job_id: str, run_id: str) -> AsyncGenerator[None]:
        """Hold the lease of the Run, prevent rewinds of its files, and stop the Run if that is requested."""
        holder = this_process()
        holders = DelegateLeases(self.storage)
        whole = lease_without_rewind(
            self.storage, self._workspace, self.settle_rewind, lambda: holders.lease(run_id, holder)
        )
        key, asked = order_key(job_id, run_id), partial(holders.wait_for_stop_request, run_id, holder)
        async with whole, leftover_programs_ended(self.storage), self._driving.by_this_task(key, asked):
            yield
