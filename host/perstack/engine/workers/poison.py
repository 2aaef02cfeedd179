"""Ending a Job that ends every worker which drives it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from perstack.core.commands import Fail
from perstack.core.job import JobSummary, summarize
from perstack.core.run_facts import ErrorInfo
from perstack.core.run_tree import whole_below
from perstack.core.runs.decide import noted, resumed
from perstack.core.runs.state import Run
from perstack.core.runs.transitions import ACTIVE
from perstack.core.serving import MOST_TAKEOVERS, drivers_in, ends_its_workers, work_in
from perstack.core.taking_up import due_of, is_elsewhere
from perstack.engine.elsewhere.holding import Holders
from perstack.engine.emit import Emitter
from perstack.engine.jobs import Jobs
from perstack.engine.logs.runs import LoadedJob
from perstack.engine.session import Session
from perstack.engine.who import this_process
from perstack.ports.clock import Clock
from perstack.ports.dispatcher import Order
from perstack.ports.storage import RunRef

_WHY = ErrorInfo(
    name="PoisonJob",
    message=f"{MOST_TAKEOVERS} workers in a row ended or fell silent at this place of the Job: look at what it does"
    " there, then resume it",
)


async def work_of(jobs: Jobs, job_id: str, run_id: str | None = None) -> int:
    """How much of a Job is done, over all its Runs, or over one and those below it."""
    types: list[str] = []
    for run in whole_below((await jobs.job(job_id)).runs, run_id):
        types += [line.event.type for line in await jobs.events(run.id)]
    return work_in(types)


async def is_poison(jobs: Jobs, order: Order, live: Callable[[], Awaitable[frozenset[str]]]) -> bool:
    """Whether the Job ends whoever drives it. `live` are the workers that there are, asked for if it may be.

    While it waits for delegates that have orders of their own these answer for what ends workers. Nothing of it may
    have been done since the takeovers were counted: such a delegate may have ended in this moment, or a worker that was
    spared has driven it since.
    """
    if order.takeovers < MOST_TAKEOVERS:
        return False
    runs = (await jobs.load(order.job_id)).runs
    run_id = order.run_id or (await jobs.job(order.job_id)).coordinator_run_id
    if any(is_elsewhere(run) for run in runs.values() if _is_awaited_by(run, run_id)):
        return ends_its_workers(order.takeovers, (), ())
    if await work_of(jobs, order.job_id, order.run_id) != order.events:
        return False
    drivers = drivers_in([line.event for line in await jobs.events(run_id)])
    return ends_its_workers(order.takeovers, drivers, await live())


def _is_awaited_by(run: Run, run_id: str) -> bool:
    by = run.start.delegated_by
    return by is not None and by.run_id == run_id


async def stop_for_good(jobs: Jobs, job_id: str, clock: Clock) -> JobSummary:
    """Record in the Coordinator's log that the Job failed; a person may resume it. Raises Conflict while it is driven.

    What others drive of it is stopped.
    """
    async with jobs.storage.lease(job_id, this_process()):
        loaded = await jobs.load(job_id)
        async with jobs.audit.kept(loaded.job):
            await jobs.stop_elsewhere(loaded)
            await _fail(jobs, loaded, loaded.runs[loaded.job.coordinator.start.run_id], clock)
        summary = summarize(loaded.job, is_driven=False)
        await jobs.storage.put_summary(job_id, summary.to_json())
        return summary


async def stop_run_for_good(jobs: Jobs, job_id: str, run_id: str, clock: Clock) -> JobSummary:
    """The same for a delegate's Run that is driven apart from its Job: whoever awaits it sees that it failed."""
    async with Holders(jobs.storage).held(run_id, this_process()):
        loaded = await jobs.load(job_id)
        run = loaded.runs.get(run_id)
        if run is not None and due_of(run, clock.now()) is not None:
            await jobs.stop_elsewhere(loaded, below=run_id)
            await _fail(jobs, loaded, run, clock)
        return summarize(loaded.job, is_driven=True)


async def _fail(jobs: Jobs, loaded: LoadedJob, run: Run, clock: Clock) -> None:
    """A Run that is at work no more, as its worker found the time to record, is resumed for it: only then may it
    fail."""
    ref, emit = RunRef(loaded.job.id, run.id), Emitter(jobs.plugins.listeners, None)
    session = Session(jobs.storage, loaded.job, emit, ref, run.start.expert_key, clock=clock)
    session.take_up(run)
    if run.status not in ACTIVE:
        again = resumed(
            run, "crash", session.stamp, limits=None, settled={}, signal=None, definition=None, permissions=()
        )
        session.note(again)
    session.note_all(noted(session.run, Fail(_WHY), session.stamp, 0))
    await session.flush()
