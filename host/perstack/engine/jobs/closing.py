"""Close a Job for good, and interrupt one that waits for a worker."""

from __future__ import annotations

from perstack.core.base.actor import By, cleaned
from perstack.core.jobs.job import Job
from perstack.core.runs.decide import interrupted
from perstack.core.runs.events import CloseRun
from perstack.core.runs.state import Run
from perstack.engine.log.emitter import Emitter
from perstack.engine.log.run_session import JobSummaryFile, RunSession
from perstack.errors import UsageError
from perstack.next_steps import Continue
from perstack.ports.storage import Storage
from perstack.system.clock import Clock


async def close_job(storage: Storage, loaded: Job, emit: Emitter, by: By, reason: str, clock: Clock) -> None:
    """Record in the log of each Run that is not completed that it is closed, the Coordinator's first.

    The caller holds the lease. The first of these events closes the whole Job; if the process ends before the last one,
    the same call again records the rest. Raises UsageError for a Job that is completed.
    """
    job, last = loaded, loaded.coordinator
    if last.status == "completed":
        step = Continue(job.id, last.start.expert_key)
        raise UsageError(f"Job {job.id} is completed: there is nothing to close", next_steps=(step,))
    others = (run for run in loaded.runs.values() if run is not last)
    open_runs = [run for run in (last, *others) if run.closed is None and run.status != "completed"]
    summary_file = JobSummaryFile(storage, job)
    if open_runs:
        # a process that ends before all is written leaves a summary that readers do not trust
        await summary_file.mark_stale()
    for run in open_runs:
        session = RunSession.of(storage, job, run, emit, clock=clock)
        session.record(CloseRun(**session.stamp(), by=by, reason=cleaned(reason)))
        await session.flush()
    await summary_file.write(is_driven=False)


async def interrupt_queued(storage: Storage, loaded: Job, run: Run, emit: Emitter, clock: Clock) -> None:
    """Record that the Coordinator's queued Run is interrupted. The caller holds the lease."""
    summary_file = JobSummaryFile(storage, loaded)
    # as above
    await summary_file.mark_stale()
    session = RunSession.of(storage, loaded, run, emit, clock=clock)
    session.record_all(interrupted(run, session.stamp))
    await session.flush()
    await session.write_checkpoint()
    await summary_file.write(is_driven=False)
