"""Jobs that workers drive: submitting one, and serving it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from perstack.core.by import By, cleaned
from perstack.core.ids import check_id, check_job_id
from perstack.core.job import Job, JobSummary, RunSummary, summarize
from perstack.core.labels import check_labels
from perstack.core.runs.transitions import ACTIVE
from perstack.core.taking_up import due_of
from perstack.core.teams import with_delegates
from perstack.engine.driven_jobs import InForce, coordinator_of
from perstack.engine.emit import Emitter, OnEvent
from perstack.engine.own_task import in_own_task
from perstack.engine.pages import every_id
from perstack.engine.served_runs import NOT_HERE, OnWaiting, ServedRuns, Serving
from perstack.engine.slots import job_slots
from perstack.engine.who import this_process, this_user
from perstack.errors import (
    CannotServe,
    Conflict,
    DispatcherError,
    NotFound,
    StorageError,
    UsageError,
)
from perstack.ports.storage import ReadsSummaries

if TYPE_CHECKING:
    from perstack.core.recorded import SeriesDefinition
    from perstack.engine.attaching import Attachable
    from perstack.engine.driver import Driver
    from perstack.engine.logs.runs import LoadedJob
    from perstack.engine.queueing import Queueing
    from perstack.engine.session import Session
    from perstack.engine.setup import Setup
    from perstack.ports.dispatcher import Order

_PAGE = 500
_MOST_PRIORITY = 1_000_000
_LAST_DUE = 253_402_300_800_000
"""Milliseconds; the year 10000."""


class JobQueue(ServedRuns):
    """The Jobs that are queued for workers, and what a worker does with one."""

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
        """Record a new Job for a worker to drive, and return: its status is `queued`.

        The Experts and settings of this Host are recorded with it and used, whatever a worker's own say; keys, plugins
        and programs are the worker's. It is not begun before `at`, in milliseconds since 1970, and before others of a
        lower `priority`. A worker with labels takes only Jobs that have one of them among `labels`. `by`, or this
        process's user, is recorded.

        Raises UsageError if there is no dispatcher, for an id that has begun, and as `run` for Expert and attachments;
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
        """Drive a Job on, as far as it goes, under the name of a worker; what has an order is served.

        With `run_id` that Run alone with all below it: a delegate which another process awaits. `on_waiting` is told
        when nothing is done here but waiting for such delegates, and when that is over. With `apart` false they are
        driven here, whatever `[workers]` says.

        It is driven if it is queued, was left by a worker that is gone, or paused for a limit that is over; of any
        other Job, such as one that waits for a person, this says how it stands. If the caller is cancelled, the Job is
        interrupted and queued again; if a person cancels the Job, this returns.

        Raises Conflict while another drives it, and CannotServe, before anything is written, if this host does not have
        what it needs; NotFound, Damaged and StorageError.
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
            return await self.job(job_id)  # somebody has asked to stop the Job, not its worker

    async def follow(
        self, job_id: str, *, after: Mapping[str, int] | None = None, on_event: OnEvent | None = None
    ) -> JobSummary:
        """See a Job that workers drive until it ends or waits for a person; where it stands then.

        `after` are the numbers of the last events that are known, by Run: what came later is told.
        """
        from perstack.engine.watch import watch_job

        async for line in watch_job(self.storage, job_id, lambda: self._is_seen_to(job_id), after=after):
            if on_event is not None:
                on_event(line.event, line.line)
        return await self.job(job_id)

    async def order_again(self) -> tuple[str, ...]:
        """Order what a worker should drive and nobody does, where the order was lost or never given; returns the ids.

        A process may end between what it records and the order. Quick for thousands of Jobs that are not queued.
        """
        dispatcher, ordered = self._setup().dispatching.required(), list[str]()
        for job_id in await self._queued_once():
            try:
                if not await self._is_left(job_id) or await dispatcher.order(job_id) is not None:
                    continue
                await self._order(await self.job(job_id))
            except (StorageError, NotFound):
                continue  # another process was quicker; or it does not read, which is for `verify`
            ordered.append(job_id)
        return tuple(ordered)

    async def _take_back(self, job_id: str) -> bool:
        """Record that a Job which waits for a worker is interrupted, and withdraw its order; whether it did wait."""
        if (await self.job(job_id)).status != "queued":
            return False
        from perstack.engine.closing import take_back

        with suppress(Conflict):  # a worker was quicker
            async with self.storage.lease(job_id, this_process()):
                loaded = await self.load(job_id)
                run = coordinator_of(loaded)
                if run.status != "queued":
                    return False
                async with self.audit.kept(loaded.job):
                    await self.stop_elsewhere(loaded)
                    await take_back(
                        self.storage, loaded, run, Emitter(self.plugins.listeners, None), self._setup().clock
                    )
            await self._withdraw(job_id)
            return True
        return False

    async def _ordered_runs(self, job_id: str) -> tuple[str | None, ...]:
        """What there may be orders for: None for the Job itself, and the Runs of delegates."""
        if b'"queued":' not in (await self.storage.summary(job_id) or b""):
            return ()
        runs: tuple[RunSummary, ...] = ()
        with suppress(NotFound, StorageError):  # what does not read can be deleted
            runs = (await self.job(job_id)).runs
        return (None, *(one.id for one in runs if one.delegated_by is not None and one.status in (*ACTIVE, "queued")))

    async def _withdraw(self, job_id: str, run_id: str | None = None) -> None:
        with suppress(DispatcherError, UsageError):  # whoever gets the order sees that there is nothing to do
            await self._setup().dispatching.required().withdraw(job_id, run_id)

    async def _queued_once(self) -> list[str]:
        """The Jobs that may have been queued, by their summaries."""
        if isinstance(self.storage, ReadsSummaries):
            return [job_id for job_id, written in (await self.storage.summaries()).items() if _may_be_queued(written)]
        return await every_id(lambda after: self.storage.jobs(limit=_PAGE, after=after))

    async def _is_left(self, job_id: str) -> bool:
        """Whether a Job that was queued once is to be driven, and is not."""
        if await self.storage.lease_info(job_id) is not None:
            return False
        job = await self.job(job_id)
        if job.queued is None or job.status not in ("queued", "stoppedByInterrupt"):
            return False
        run = coordinator_of(await self.load(job_id))
        return due_of(run, self._setup().clock.now()) is not None

    async def _serve(self, serving: Serving, job_id: str) -> JobSummary:
        from perstack.engine.serving import check_serves

        setup = serving.setup
        async with job_slots().taken(), self._leased(job_id):
            loaded = await self.load(job_id)
            run = coordinator_of(loaded)
            reason = due_of(run, setup.clock.now())
            if reason is None or loaded.job.closed is not None:
                return summarize(loaded.job, is_driven=False)

            def take_up(driver: Driver) -> Session:
                self.equip(driver, serving, job_id)
                return driver.take_up(run, reason)

            heads = dict(loaded.job.heads)
            try:
                used = await self._in_force(setup, loaded, None)
                await check_serves(used.setup, loaded, run.start)
                return await self._drive(used, loaded, take_up, serving.on_event)
            except NOT_HERE as error:
                if loaded.job.heads != heads or isinstance(error, NotFound):
                    raise
                raise CannotServe(str(error)) from error

    def _leaving(
        self, setup: Setup, by: By | None, drive: bool | None
    ) -> Callable[[LoadedJob], Awaitable[Queueing | None]]:
        """Whether what continues is left to a worker, and how; `drive` None: where somebody has named a dispatcher, or
        the Job was submitted."""

        async def leaves(loaded: LoadedJob) -> Queueing | None:
            run, dispatching = coordinator_of(loaded), setup.dispatching
            if drive is None and not (dispatching.is_chosen or run.queued is not None):
                return None
            if drive or (drive is None and dispatching.dispatcher is None):
                return None
            dispatching.required()
            priority = 0 if run.queued is None else run.queued.priority
            return await self._queueing(setup, run.start.expert_key, by, priority=priority)

        return leaves

    async def _ordered(self, job: JobSummary) -> JobSummary:
        """The same Job; what was left to a worker has its order."""
        if job.status == "queued":
            await self._order(job)
        return job

    async def _queueing(
        self, setup: Setup, expert_key: str, by: By | None, *, due: int = 0, priority: int = 0
    ) -> Queueing:
        """How a Job of an Expert is queued; the definition is today's, if its Expert is still there."""
        from perstack.engine.queueing import Queueing

        definition: SeriesDefinition | None = None
        if setup.project.expert(expert_key) is not None:
            definition = setup.definition(expert_key)
        return Queueing(by or this_user(), definition, due, priority)

    async def _order(self, job: JobSummary) -> None:
        """Order a Job that is recorded as queued. Raises DispatcherError that names it."""
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
        """A new Job, driven here, or recorded for a worker; what it needs is then the worker's to have."""
        expert = setup.expert(expert_key) if queueing is not None else setup.check_ready(expert_key)
        self.audit.check()
        if queueing is None:
            await setup.check_sandbox(expert)
        lock = setup.lock()
        used = InForce(setup, lock, await setup.knowledge(expert.key, lock))
        used.knowledge.informed(expert)
        if queueing is not None:
            from perstack.engine.carrying import check_carried

            check_carried(used.knowledge, with_delegates(setup.project, (expert.key,)))
        added = await self._attached(setup, expert.key, attachments)

        async def work() -> JobSummary:
            async with job_slots().taken():
                made = await self._new_job(job_id)
                async with self._leased(made):
                    if made == job_id:
                        await self._check_not_begun(made)  # again, now that nobody else can begin it
                    contents = await self._kept(made, added)

                    def begin(driver: Driver) -> Session:
                        return driver.begin_run(expert, query, labels=labels, attachments=contents)

                    return await self._drive(used, _new(made), begin, on_event, queueing)

        return await in_own_task(work())


def _may_be_queued(written: bytes) -> bool:
    """By a summary, of which not all is read: there are thousands."""
    return b'"queued":' in written or b'"status":"running"' in written


def _new(job_id: str) -> LoadedJob:
    from perstack.engine.logs.runs import LoadedJob

    return LoadedJob(Job(job_id))


def _order_of(job: JobSummary, now: int) -> Order:
    from perstack.ports.dispatcher import Order

    queued = job.queued
    due, priority = (0, 0) if queued is None else (queued.due, queued.priority)
    return Order(job.id, due, priority, job.labels, submitted_at=now)


def _distributes(setup: Setup) -> bool:
    workers = setup.project.workers
    return workers is not None and workers.delegates == "distributed"


def _check_order(at: int | None, priority: int) -> None:
    """Raises UsageError for a moment that is none, and for a priority that no dispatcher has."""
    if at is not None and not 0 <= at < _LAST_DUE:
        raise UsageError(f"at = {at} is not a time: give milliseconds since 1970")
    if abs(priority) > _MOST_PRIORITY:
        raise UsageError(f"priority {priority}: use -{_MOST_PRIORITY:,} to {_MOST_PRIORITY:,}")
