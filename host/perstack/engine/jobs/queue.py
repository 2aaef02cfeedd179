"""Queue Jobs for workers, and serve queued ones on a worker.

A queued Job is recorded in its own log first (`queueRun`), and then ordered from the dispatcher. An order may be lost
between the two: `order_again` finds such Jobs. The log, not the order, decides whether a worker drives a Job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from perstack.core.base.actor import By, cleaned
from perstack.core.base.ids import check_id, check_job_id
from perstack.core.definitions.project import with_delegates
from perstack.core.jobs.job import Job
from perstack.core.jobs.queries import check_labels
from perstack.core.jobs.resuming import due_of
from perstack.core.jobs.summary import JobSummary, RunSummary, summarize
from perstack.core.runs.evolve import ACTIVE
from perstack.engine.context.job_limit import job_slots
from perstack.engine.jobs.runner import InForce
from perstack.engine.jobs.serving import NOT_HERE, OnWaiting, ServedRuns, Serving
from perstack.engine.log.emitter import Emitter, OnEvent
from perstack.errors import (
    CannotServe,
    Conflict,
    DispatcherError,
    NotFound,
    StorageError,
    UsageError,
)
from perstack.system.concurrency import in_own_task
from perstack.system.user import this_process, this_user

if TYPE_CHECKING:
    from perstack.core.definitions.recorded_definition import SeriesDefinition
    from perstack.engine.context.host_context import Setup
    from perstack.engine.jobs.attachments import Attachable
    from perstack.engine.jobs.queued_definition import Queueing
    from perstack.engine.log.run_session import RunSession
    from perstack.engine.runs.loop import Driver
    from perstack.ports.dispatcher import Order

_PAGE = 500
_MOST_PRIORITY = 1_000_000
_LAST_DUE = 253_402_300_800_000
"""Milliseconds since 1970: the start of the year 10000."""


class JobQueue(ServedRuns):
    """Jobs that are queued for workers, and how a worker serves them."""

    async def submit(
        self,
        expert_key: str,
        query: str,
        *,
        at: int | None = None,
        priority: int = 0,
        labels: Mapping[str, str] | None = None,
        attachments: Sequence[Attachable] = (),
        job_id: str | None = None,
        by: By | None = None,
    ) -> JobSummary:
        """Record a new Job for a worker to drive, and return its summary, with the status `queued`.

        The Experts and settings of this Host are recorded and used, whatever a worker's own are; keys, plugins and
        programs are the worker's. The Job is not begun before `at`, in milliseconds since 1970, and before others of a
        lower `priority`. A worker with labels takes only Jobs that have one of them among `labels`. `by`, or this
        process's user, is recorded.

        Raises UsageError without a dispatcher, for an id that has begun, and as `run` for Expert and attachments;
        DispatcherError, with the Job's id, if it was recorded and could not be queued: a worker finds it later.
        """
        setup, labels = self._setup(), check_labels(labels or {})
        setup.dispatching.required()
        _check_order(at, priority)
        queueing = await self._queueing(setup, expert_key, by, due=at or 0, priority=priority)
        job = await self._begin(setup, expert_key, query, job_id, attachments, labels, None, queueing)
        await self._order(job)
        return job

    async def serve(
        self,
        job_id: str,
        *,
        worker: str,
        run_id: str | None = None,
        on_event: OnEvent | None = None,
        on_waiting: OnWaiting | None = None,
        apart: bool = True,
    ) -> JobSummary:
        """Drive a queued Job as far as possible under the name of a worker, and return its summary.

        With `run_id` only that Run and its descendants: a delegate that another process awaits. `on_waiting` is called
        with True when this process starts waiting only for such delegates, with False when it stops. With `apart` false
        they are driven here, whatever `[workers]` says.

        The Job is driven if it is queued, was left by a worker that has ended, or paused for a limit that is over; for
        any other Job, such as one that waits for a person, only its summary is returned. If the caller is cancelled,
        the Job is interrupted and queued again; if a person cancels the Job, this returns.

        Raises Conflict while another process drives it, and CannotServe, before anything is written, if this host lacks
        what the Job needs; NotFound, Damaged and StorageError.
        """
        self.audit.check()
        setup, worker = self._setup(), cleaned(worker)
        task = asyncio.current_task()
        try:
            serving = Serving(setup, worker, on_event, on_waiting, apart and _distributes(setup))
            if run_id is not None:
                return await in_own_task(self.serve_run(serving, check_job_id(job_id), check_id(run_id, "run")))
            return await in_own_task(self._serve(serving, check_job_id(job_id)))
        except asyncio.CancelledError:
            if task is None or task.cancelling():
                raise
            return await self.job(job_id)  # a stop of the Job was requested, not of its worker

    async def follow(
        self, job_id: str, *, after: Mapping[str, int] | None = None, on_event: OnEvent | None = None
    ) -> JobSummary:
        """Follow a Job that workers drive until it ends or waits for a person, and return its summary.

        `after`: the place of the last known event, by Run; `on_event` is called with later ones.
        """
        from perstack.engine.log.run_log import watch_job

        async for line in watch_job(self.storage, job_id, lambda: self._is_seen_to(job_id), after=after):
            if on_event is not None:
                on_event(line.event, line.line)
        return await self.job(job_id)

    async def order_again(self) -> tuple[str, ...]:
        """Order queued or abandoned Jobs that have no order, and return their ids.

        A process may end between the record and the order. Quick for thousands of Jobs that are not queued.
        """
        dispatcher, ordered = self._setup().dispatching.required(), list[str]()
        for job_id in await self._queued_once():
            try:
                if not await self._is_left(job_id) or await dispatcher.order(job_id) is not None:
                    continue
                await self._order(await self.job(job_id))
            except (StorageError, NotFound):
                continue  # another process has handled it; or it cannot be read, which `verify` reports
            ordered.append(job_id)
        return tuple(ordered)

    async def _take_back(self, job_id: str) -> bool:
        """Interrupt a Job that waits for a worker, and withdraw its order. Returns False if it does not wait."""
        if (await self.job(job_id)).status != "queued":
            return False
        from perstack.engine.jobs.closing import interrupt_queued

        with suppress(Conflict):  # a worker was quicker
            async with self.storage.lease(job_id, this_process()):
                loaded = await self.load(job_id)
                run = loaded.coordinator
                if run.status != "queued":
                    return False
                async with self.audit.anchored(loaded):
                    await self.stop_elsewhere(loaded)
                    emit = Emitter(self.plugins.listeners, None)
                    await interrupt_queued(self.storage, loaded, run, emit, self._setup().clock)
            await self._withdraw(job_id)
            return True
        return False

    async def _ordered_runs(self, job_id: str) -> tuple[str | None, ...]:
        """Return what may have orders: None for the Job itself, and the ids of its delegates."""
        try:
            if b'"queued":' not in (await self.storage.summary(job_id) or b""):
                return ()
        except StorageError:
            return (None,)
        runs: tuple[RunSummary, ...] = ()
        with suppress(NotFound, StorageError):  # an unreadable Job can be deleted
            runs = (await self.job(job_id)).runs
        return (None, *(one.id for one in runs if one.delegated_by is not None and one.status in (*ACTIVE, "queued")))

    async def _withdraw(self, job_id: str, run_id: str | None = None) -> None:
        with suppress(DispatcherError, UsageError):  # a worker that claims it sees it has nothing to do
            await self._setup().dispatching.required().withdraw(job_id, run_id)

    async def _queued_once(self) -> list[str]:
        """Return the Jobs that may ever have been queued, by their summaries."""
        return [job_id for job_id, written in (await self.storage.summaries()).items() if _may_be_queued(written)]

    async def _is_left(self, job_id: str) -> bool:
        """Return whether a Job that was ever queued should be driven, and is not."""
        if await self.storage.lease_info(job_id) is not None:
            return False
        job = await self.job(job_id)
        if job.queued is None or job.status not in ("queued", "stoppedByInterrupt"):
            return False
        run = (await self.load(job_id)).coordinator
        return due_of(run, self._setup().clock.now()) is not None

    async def _serve(self, serving: Serving, job_id: str) -> JobSummary:
        from perstack.engine.jobs.requirements import check_serves

        setup = serving.setup
        async with job_slots().taken(), self._leased(job_id):
            loaded = await self.load(job_id)
            run = loaded.coordinator
            reason = due_of(run, setup.clock.now())
            if reason is None or loaded.closed is not None:
                return summarize(loaded, is_driven=False)

            def take_up(driver: Driver) -> RunSession:
                self.equip(driver, serving, job_id)
                return driver.take_up(run, reason)

            heads = dict(loaded.heads)
            try:
                used = await self._in_force(setup, loaded, None)
                await check_serves(used.setup, loaded, run.start)
                if run.start.snapshots is not None:
                    await self._check_files(job_id)
                return await self._drive(used, loaded, take_up, serving.on_event)
            except NOT_HERE as error:
                if loaded.heads != heads or isinstance(error, NotFound):
                    raise
                raise CannotServe(str(error)) from error

    def _leaving(self, setup: Setup, by: By | None, drive: bool | None) -> Callable[[Job], Awaitable[Queueing | None]]:
        """Return the function that decides whether a continued Job is queued for a worker, and how.

        `drive` None: queue it if a dispatcher was named, or the Job was submitted.
        """

        async def leaves(loaded: Job) -> Queueing | None:
            run, dispatching = loaded.coordinator, setup.dispatching
            if drive is None and not (dispatching.is_chosen or run.queued is not None):
                return None
            if drive or (drive is None and dispatching.dispatcher is None):
                return None
            dispatching.required()
            priority = 0 if run.queued is None else run.queued.priority
            return await self._queueing(setup, run.start.expert_key, by, priority=priority)

        return leaves

    async def _ordered(self, job: JobSummary) -> JobSummary:
        """Order the Job if it is queued, and return it."""
        if job.status == "queued":
            await self._order(job)
        return job

    async def _queueing(
        self, setup: Setup, expert_key: str, by: By | None, *, due: int = 0, priority: int = 0
    ) -> Queueing:
        """Return how a Job of an Expert is queued; with today's definition, if the Expert is still defined."""
        from perstack.engine.jobs.queued_definition import Queueing

        definition: SeriesDefinition | None = None
        if setup.project.expert(expert_key) is not None:
            definition = setup.definition(expert_key)
        return Queueing(by or this_user(), definition, due, priority)

    async def _order(self, job: JobSummary) -> None:
        """Order a Job that is recorded as queued. Raises DispatcherError that names the Job."""
        setup = self._setup()
        try:
            await setup.dispatching.submit(_order_of(job, setup.clock.now()), self.storage)
        except DispatcherError as error:
            words = f"Job {job.id} is recorded, and could not be queued: {error.message}; a worker that looks finds it"
            raise DispatcherError(words, next_steps=error.next_steps) from error

    async def _begin(
        self,
        setup: Setup,
        expert_key: str,
        query: str,
        job_id: str | None,
        attachments: Sequence[Attachable],
        labels: Mapping[str, str],
        on_event: OnEvent | None,
        queueing: Queueing | None = None,
    ) -> JobSummary:
        """Start a new Job: drive it, or record it for a worker, which must then have what it needs."""
        expert = setup.expert(expert_key) if queueing is not None else setup.check_ready(expert_key)
        self.audit.check()
        if queueing is None:
            await setup.check_sandbox(expert)
        else:
            setup.check_agreed(expert)
        lock = setup.lock()
        used = InForce(setup, lock, await setup.knowledge(expert.key, lock))
        used.knowledge.with_skill_digests(expert)
        if queueing is not None:
            from perstack.engine.plugins.skill_bundles import check_bundle

            check_bundle(used.knowledge, with_delegates(setup.project, (expert.key,)))
        added = await self._attached(setup, expert.key, attachments)

        async def work() -> JobSummary:
            async with job_slots().taken():
                made = await self._new_job(job_id)
                async with self._leased(made):
                    if made == job_id:
                        await self._check_not_begun(made)  # check again under the lease
                    contents = await self._kept(made, added)

                    def begin(driver: Driver) -> RunSession:
                        return driver.begin_run(expert, query, labels=labels, attachments=contents)

                    return await self._drive(used, _new(made), begin, on_event, queueing)

        return await in_own_task(work())


def _may_be_queued(written: bytes) -> bool:
    """Return whether a summary may be of a queued Job. It is not parsed: there are thousands."""
    return b'"queued":' in written or b'"status":"running"' in written


def _new(job_id: str) -> Job:

    return Job(job_id)


def _order_of(job: JobSummary, now: int) -> Order:
    from perstack.ports.dispatcher import Order

    queued = job.queued
    due, priority = (0, 0) if queued is None else (queued.due, queued.priority)
    return Order(job.id, due, priority, job.labels, submitted_at=now)


def _distributes(setup: Setup) -> bool:
    workers = setup.project.workers
    return workers is not None and workers.delegates == "distributed"


def _check_order(at: int | None, priority: int) -> None:
    """Raise UsageError for an invalid time, or a priority that is out of range."""
    if at is not None and not 0 <= at < _LAST_DUE:
        raise UsageError(f"at = {at} is not a time: give milliseconds since 1970")
    if abs(priority) > _MOST_PRIORITY:
        raise UsageError(f"priority {priority}: use -{_MOST_PRIORITY:,} to {_MOST_PRIORITY:,}")
