"""Drive the target of an order (a Job, a delegate's Run or a series of iterations), and stop poison Jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from perstack.core.base.ids import check_job_id
from perstack.core.definitions.job_status import ACTIVE, RunStatus
from perstack.core.jobs.due import reason_to_resume
from perstack.core.jobs.job import Job
from perstack.core.jobs.resuming import has_separate_worker
from perstack.core.jobs.summary import JobSummary, summarize, with_descendants
from perstack.core.runs.commands import Fail
from perstack.core.runs.decide import events_of_command, resume_event
from perstack.core.runs.facts import ErrorInfo
from perstack.core.runs.state import Run
from perstack.engine.jobs.jobs import Jobs
from perstack.engine.log.delegate_leases_and_stop_requests import DelegateLeases
from perstack.engine.log.job_summary_file import JobSummaryFile
from perstack.engine.log.run_session import OnEvent, RunSession
from perstack.engine.log.storage_access import read_storage_name
from perstack.errors import NotFound
from perstack.iterations.iterations import Iterations
from perstack.iterations.state import SeriesState
from perstack.ports.dispatcher import Order
from perstack.system.clock import Clock
from perstack.system.user import this_process
from perstack.workers.orders import MAX_TAKEOVERS, OrderTarget, count_progress, drivers_in, ends_its_workers, state_of

# Poison Jobs: Jobs that end every worker that drives them.

_POISON_ERROR = ErrorInfo(
    name="PoisonJob",
    message=f"{MAX_TAKEOVERS} workers in a row ended or fell silent at this place of the Job: look at what it does"
    " there, then resume it",
)


async def read_progress(jobs: Jobs, job_id: str, run_id: str | None = None) -> int:
    """Return how much of a Job is done, over all its Runs, or over one Run and those below it."""
    types: list[str] = []
    for run_summary in with_descendants((await jobs.job(job_id)).runs, run_id):
        types += [line.event.type for line in await jobs.events(run_summary.id)]
    return count_progress(types)


async def is_poison(jobs: Jobs, order: Order, list_workers: Callable[[], Awaitable[frozenset[str]]]) -> bool:
    """Return whether the Job ends every worker that drives it. `list_workers` is called only if that decides it.

    Work done since the takeovers were counted clears it: then its delegate may have ended a worker, or one survived.
    """
    if order.takeovers < MAX_TAKEOVERS:
        return False
    runs = (await jobs.load(order.job_id)).runs
    run_id = order.run_id or (await jobs.job(order.job_id)).coordinator_run_id
    if any(has_separate_worker(run) for run in runs.values() if _is_awaited_by(run, run_id)):
        return ends_its_workers(order.takeovers, (), ())
    if await read_progress(jobs, order.job_id, order.run_id) != order.events:
        return False
    drivers = drivers_in([line.event for line in await jobs.events(run_id)])
    return ends_its_workers(order.takeovers, drivers, await list_workers())


def _is_awaited_by(run: Run, run_id: str) -> bool:
    by = run.start.delegated_by
    return by is not None and by.run_id == run_id


async def stop_for_good(jobs: Jobs, job_id: str, clock: Clock) -> JobSummary:
    """Record that the Job failed, and stop its remote delegates; it can be resumed. Raises Conflict while driven."""
    async with jobs.storage.lease(job_id, this_process()):
        job = await jobs.load(job_id)
        async with jobs.source.setup.audit.anchored(job):
            await jobs.runner.stop_remote(job)
            await _fail(jobs, job, job.coordinator, clock)
        return await JobSummaryFile(jobs.storage, job).write(is_driven=False)


async def stop_run_for_good(jobs: Jobs, job_id: str, run_id: str, clock: Clock) -> JobSummary:
    """Record that a delegate's Run failed, so that the parent Run sees it. Raises Conflict while it is driven."""
    async with DelegateLeases(jobs.storage).lease(run_id, this_process()):
        job = await jobs.load(job_id)
        run = job.runs.get(run_id)
        if run is not None and reason_to_resume(run, clock.now()) is not None:
            await jobs.runner.stop_remote(job, below=run_id)
            await _fail(jobs, job, run, clock)
        return summarize(job, is_driven=True)


async def _fail(jobs: Jobs, job: Job, run: Run, clock: Clock) -> None:
    """Fail a Run. A Run whose worker still recorded a stop is resumed first, because only an active Run can fail."""
    emit = jobs.source.setup.emitter()
    session = RunSession.of(jobs.storage, job, run, emit, clock=clock)
    if run.status not in ACTIVE:
        resumed = resume_event(
            run, "crash", session.stamp, limits=None, settled={}, signal=None, definition=None, permissions=()
        )
        session.add(resumed)
    session.record_all(events_of_command(session.run, Fail(_POISON_ERROR), session.stamp, 0))
    await session.flush()


_WORK_PER_EVENT = 1_000_000  # work that an event of a series counts for: more than any of its Jobs can do
_POISON_SERIES_ERROR = (
    "all workers that took them over, one after the other, ended or fell silent at this place: see why, then resume"
)


class Drive(Protocol):
    """Function that drives a Job, or one of its delegates, until it ends or stops."""

    def __call__(
        self, job_id: str, *, run_id: str | None, on_event: OnEvent, on_waiting: Callable[[bool], None]
    ) -> Awaitable[JobSummary]:
        """Drive the Job; return its summary."""
        ...


class OrderedWork:
    """Looks up and drives what one worker's orders refer to."""

    def __init__(self, jobs: Jobs, iterations: Iterations, drive_job: Drive, clock: Clock) -> None:
        self._jobs = jobs
        self._iterations = iterations
        self._drive = drive_job
        self._clock = clock

    @property
    def location(self) -> str:
        """The location of the storage, for display."""
        return self._jobs.storage.location

    async def load(self, order: Order) -> OrderTarget:
        """Return the state of the Job or series; for a delegate the state of its Job. Raises NotFound and Damaged."""
        try:
            summary = await self._jobs.job(check_job_id(order.job_id))
        except NotFound:
            if order.run_id is not None:
                raise
            return await self._iterations.get(order.job_id)
        if summary.damaged:
            await self._jobs.load(order.job_id)  # raises the error
        return summary

    async def is_for_this_storage(self, order: Order) -> bool | None:
        """Return whether the order refers to this storage; None if it names none, unless it is a delegate's.

        Raises StorageError.
        """
        if order.storage is None:
            return None if order.run_id is None else True
        return order.storage == await read_storage_name(self._jobs.storage)

    async def run_status(self, order: Order) -> RunStatus | None:
        """Return a delegate's status from its log; None if nothing can continue it. Raises NotFound and Damaged."""
        run = await self._jobs.run_state(order.job_id, order.run_id or "")
        return None if run is None or run.closed is not None else run.status

    async def drive(
        self, target: OrderTarget, order: Order, on_event: OnEvent, on_waiting: Callable[[bool], None]
    ) -> OrderTarget:
        """Drive the target until it ends or stops. `on_waiting` gets True while only remote delegates are awaited."""
        if isinstance(target, JobSummary):
            return await self._drive(target.id, run_id=order.run_id, on_event=on_event, on_waiting=on_waiting)
        if state_of(target, self._clock.now()) == "limited":
            return target
        return await self._iterations.resume(target.id, on_event=on_event)

    def stop_after_step(self, order: Order) -> bool:
        """Interrupt the target after its current step; return False if no step is running: then cancel its task."""
        return self._jobs.stop_after_step(order.key) or self._iterations.stop_after_step(order.key)

    async def count_work(self, order: Order) -> int:
        """Return how much of the target is done; the number grows with any progress."""
        target = await self.load(order)
        if isinstance(target, JobSummary):
            return await read_progress(self._jobs, target.id, order.run_id)
        event_count = sum(1 + (item.artefact is not None) + (item.score is not None) for item in target.iterations)
        event_count += target.invalid_answers
        try:
            current_work = (
                0
                if target.current_iteration is None
                else await read_progress(self._jobs, target.current_iteration.job_id)
            )
        except NotFound:
            current_work = 0
        return event_count * _WORK_PER_EVENT + current_work

    async def is_poison(
        self, target: OrderTarget, order: Order, list_workers: Callable[[], Awaitable[frozenset[str]]]
    ) -> bool:
        """Return whether the target ends every worker that drives it. Calls `list_workers` only if that decides it."""
        if isinstance(target, SeriesState):  # the log does not record its drivers
            return ends_its_workers(order.takeovers, (), ())
        return await is_poison(self._jobs, order, list_workers)

    async def stop_for_good(self, target: OrderTarget, order: Order) -> OrderTarget:
        """Record the target as failed, because it ends every worker. Raises Conflict while it is driven."""
        if isinstance(target, SeriesState):
            return await self._iterations.fail(target.id, _POISON_SERIES_ERROR)
        if order.run_id is not None:
            return await stop_run_for_good(self._jobs, target.id, order.run_id, self._clock)
        return await stop_for_good(self._jobs, target.id, self._clock)
