"""Close a Job for good, and interrupt one that waits for a worker."""

from __future__ import annotations

from perstack.core.base.actor import By, cleaned
from perstack.core.jobs.job import Job
from perstack.core.jobs.summary import summarize
from perstack.core.runs.decide import interrupted
from perstack.core.runs.events import CloseRun
from perstack.core.runs.state import Run
from perstack.engine.log.emitter import Emitter
from perstack.engine.log.run_log import LoadedJob
from perstack.engine.log.run_session import Session
from perstack.errors import UsageError
from perstack.next_steps import Continue
from perstack.ports.storage import RunRef, Storage
from perstack.system.clock import Clock


async def close_job(storage: Storage, loaded: LoadedJob, emit: Emitter, by: By, reason: str, clock: Clock) -> None:
    """Record in the log of each Run that is not completed that it is closed, the Coordinator's first.

    The caller holds the lease. The first of these events closes the whole Job; if the process ends before the last one,
    the same call again records the rest. Raises UsageError for a Job that is completed.
    """
    job, last = loaded.job, loaded.runs[loaded.job.coordinator.start.run_id]
    if last.status == "completed":
        step = Continue(job.id, last.start.expert_key)
        raise UsageError(f"Job {job.id} is completed: there is nothing to close", next_steps=(step,))
    others = (run for run in loaded.runs.values() if run is not last)
    open_runs = [run for run in (last, *others) if run.closed is None and run.status != "completed"]
    if open_runs:
        await _put_unsure(storage, job)
    for run in open_runs:
        await _close(storage, loaded, run, emit, by, cleaned(reason), clock)
    await storage.put_summary(job.id, summarize(job, is_driven=False).to_json())


async def _close(
    storage: Storage, loaded: LoadedJob, run: Run, emit: Emitter, by: By, reason: str, clock: Clock
) -> None:
    session = Session(storage, loaded.job, emit, RunRef(loaded.job.id, run.id), run.start.expert_key, clock=clock)
    session.take_up(run)
    session.note(CloseRun(**session.stamp(), by=by, reason=reason))
    await session.flush()


async def take_back(storage: Storage, loaded: LoadedJob, run: Run, emit: Emitter, clock: Clock) -> None:
    """Record that the Coordinator's queued Run is interrupted. The caller holds the lease."""
    job = loaded.job
    await _put_unsure(storage, job)
    session = Session(storage, job, emit, RunRef(job.id, run.id), run.start.expert_key, clock=clock)
    session.take_up(run)
    session.note_all(interrupted(run, session.stamp))
    await session.flush()
    await session.write_checkpoint()
    await storage.put_summary(job.id, summarize(job, is_driven=False).to_json())


async def _put_unsure(storage: Storage, job: Job) -> None:
    """Write to job.json that the Job runs, so that readers read the logs until all is written."""
    unsure = summarize(job, is_driven=False).model_copy(update={"status": "running", "lifecycle": "running"})
    await storage.put_summary(job.id, unsure.to_json())
