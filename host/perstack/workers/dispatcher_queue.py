"""Queue Jobs for workers.

A queued Job is recorded in its own log first (`queueRun`), and then ordered from the dispatcher. An order may be lost
between the two: `requeue_lost` finds such Jobs. The log, not the order, decides whether a worker drives a Job.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from perstack.core.base.ids import By
from perstack.core.definitions.job_status import ACTIVE
from perstack.core.jobs.due import job_state, reason_to_resume
from perstack.core.jobs.summary import JobSummary, RunSummary
from perstack.core.runs.decide import interrupt_events
from perstack.engine.context.host_setup import HostSetup, SetupSource
from perstack.engine.jobs.job_request import JobRequest
from perstack.engine.jobs.queueing_protocol import QueueRequest
from perstack.engine.jobs.reader import JobReader
from perstack.engine.jobs.runner import JobRunner
from perstack.engine.log.job_summary_file import JobSummaryFile
from perstack.engine.log.run_session import RunSession
from perstack.errors import Conflict, DispatcherError, NotFound, StorageError, UsageError
from perstack.system.user import this_process, this_user

if TYPE_CHECKING:
    from perstack.core.definitions.recorded_definition import SeriesDefinition
    from perstack.core.jobs.job import Job
    from perstack.ports.dispatcher import Order

_MAX_PRIORITY = 1_000_000
_LAST_DUE = 253_402_300_800_000  # milliseconds since 1970: the start of the year 10000


class DispatcherQueue:
    """Jobs that are queued for workers."""

    def __init__(self, source: SetupSource, reader: JobReader, runner: JobRunner) -> None:
        """Queue Jobs at the dispatcher of the context in force."""
        self._source = source
        self._reader = reader
        self._runner = runner

    async def submit(
        self, job_request: JobRequest, *, at: int | None = None, priority: int = 0, by: By | None = None
    ) -> JobSummary:
        """Record a new Job for a worker to drive, and return its summary, with the status `queued`.

        This Host's Experts and settings are recorded and used; keys, plugins and programs are the worker's. `at` is in
        milliseconds since 1970. A worker with labels takes only Jobs that have one of them. Raises UsageError without a
        dispatcher, for an id that has begun, and as `run`; DispatcherError, with the Job's id, if it was recorded and
        could not be queued: a worker finds it later.
        """
        context = self._source.setup
        context.dispatching.require()
        _check_order(at, priority)
        queue = self._request(context, job_request.expert_key, by, due=at or 0, priority=priority)
        summary = await self._runner.run_new(context, job_request, queue=queue)
        await self._submit_order(summary)
        return summary

    async def requeue_lost(self) -> tuple[str, ...]:
        """Order recorded Jobs without an order, and return their ids: a process may end between record and order."""
        dispatcher, requeued = self._source.setup.dispatching.require(), list[str]()
        for job_id in await self._queued_jobs():
            try:
                if not await self._is_without_driver(job_id) or await dispatcher.order(job_id) is not None:
                    continue
                await self._submit_order(await self._reader.job(job_id))
            except (StorageError, NotFound):
                continue  # another process has handled it; or it cannot be read, which `verify` reports
            requeued.append(job_id)
        return tuple(requeued)

    async def interrupt_queued(self, job_id: str) -> bool:
        """Interrupt a Job that waits for a worker, and withdraw its order. Returns False if it does not wait."""
        if (await self._reader.job(job_id)).status != "queued":
            return False
        context = self._source.setup
        with suppress(Conflict):  # a worker was quicker
            async with self._reader.storage.lease(job_id, this_process()):
                job = await self._reader.load(job_id)
                if job.coordinator.status != "queued":
                    return False
                async with context.audit.anchored(job):
                    await self._runner.stop_remote(job)
                    summary_file = JobSummaryFile(context.storage, job)
                    await summary_file.mark_stale()  # until all is written
                    run = job.coordinator
                    session = RunSession.of(context.storage, job, run, context.emitter(), clock=context.clock)
                    session.record_all(interrupt_events(run, session.stamp))
                    await session.flush()
                    await session.write_checkpoint()
                    await summary_file.write(is_driven=False)
            await self.withdraw(job_id)
            return True
        return False

    async def runs_with_orders(self, job_id: str) -> tuple[str | None, ...]:
        """Return the Runs that may have orders: None for the Job itself, and the ids of its delegates."""
        try:
            if b'"queued":' not in (await self._reader.storage.summary(job_id) or b""):
                return ()
        except StorageError:
            return (None,)
        runs: tuple[RunSummary, ...] = ()
        with suppress(NotFound, StorageError):  # an unreadable Job can be deleted
            runs = (await self._reader.job(job_id)).runs
        return (
            None,
            *(
                run_summary.id
                for run_summary in runs
                if run_summary.delegated_by is not None and run_summary.status in (*ACTIVE, "queued")
            ),
        )

    async def withdraw(self, job_id: str, run_id: str | None = None) -> None:
        """Withdraw the order of a Job, or of one of its delegates. Ignores a dispatcher that cannot be reached."""
        with suppress(DispatcherError, UsageError):  # a worker that claims it will find nothing to do
            await self._source.setup.dispatching.require().withdraw(job_id, run_id)

    async def _queued_jobs(self) -> list[str]:
        summaries = await self._reader.storage.summaries()
        return [job_id for job_id, data in summaries.items() if _may_be_queued(data)]

    async def _is_without_driver(self, job_id: str) -> bool:
        if await self._reader.storage.lease_info(job_id) is not None:
            return False
        summary = await self._reader.job(job_id)
        if summary.queued is None or job_state(summary, 0) not in ("queued", "leftToWorkers"):
            return False
        run = (await self._reader.load(job_id)).coordinator
        return reason_to_resume(run, self._source.setup.clock.now()) is not None

    def requests(
        self, setup: HostSetup, by: By | None, drive: bool | None
    ) -> Callable[[Job], Awaitable[QueueRequest | None]]:
        """Return the function that decides whether a continued Job is queued for a worker, and how.

        `drive` None: queue it if a dispatcher was named, or the Job was submitted.
        """

        async def request(job: Job) -> QueueRequest | None:
            run, dispatching = job.coordinator, setup.dispatching
            if drive is None and not (dispatching.is_chosen or run.queued is not None):
                return None
            if drive or (drive is None and dispatching.dispatcher is None):
                return None
            dispatching.require()
            priority = 0 if run.queued is None else run.queued.priority
            return self._request(setup, run.start.expert_key, by, priority=priority)

        return request

    async def ordered(self, summary: JobSummary) -> JobSummary:
        """Order the Job if its status is `queued`, and return `summary`."""
        if summary.status == "queued":
            await self._submit_order(summary)
        return summary

    def _request(
        self, setup: HostSetup, expert_key: str, by: By | None, *, due: int = 0, priority: int = 0
    ) -> QueueRequest:
        definition: SeriesDefinition | None = None
        if setup.project.expert(expert_key) is not None:
            definition = setup.definition(expert_key)
        return QueueRequest(by or this_user(), definition, due, priority)

    async def _submit_order(self, summary: JobSummary) -> None:
        context = self._source.setup
        try:
            await context.dispatching.submit(_order_of(summary, context.clock.now()), context.storage)
        except DispatcherError as error:
            message = f"Job {summary.id} is recorded, but could not be queued: {error.message}; a worker will find it"
            raise DispatcherError(message, next_steps=error.next_steps) from error


def _may_be_queued(summary: bytes) -> bool:
    """Return whether a summary may be of a queued Job. It is not parsed: there are thousands."""
    # a Job whose first process was killed right after it wrote the log has no summary
    return not summary or b'"queued":' in summary or b'"status":"running"' in summary


def _order_of(summary: JobSummary, now: int) -> Order:
    from perstack.ports.dispatcher import Order

    queued = summary.queued
    due, priority = (0, 0) if queued is None else (queued.due, queued.priority)
    return Order(summary.id, due, priority, summary.labels, submitted_at=now)


def _check_order(at: int | None, priority: int) -> None:
    if at is not None and not 0 <= at < _LAST_DUE:
        raise UsageError(f"at = {at} is not a time: give milliseconds since 1970")
    if abs(priority) > _MAX_PRIORITY:
        raise UsageError(f"priority {priority}: use -{_MAX_PRIORITY:,} to {_MAX_PRIORITY:,}")
