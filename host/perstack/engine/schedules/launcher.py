"""Launch what is due: drive it in this process, or queue it for workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from perstack.core.iterations.state import SeriesState
from perstack.core.jobs.summary import JobSummary
from perstack.core.queue.orders import stands
from perstack.core.tasks.due import EXPERT_LABEL
from perstack.engine.context.host_context import ContextSource
from perstack.engine.jobs.jobs import Jobs
from perstack.errors import UsageError

if TYPE_CHECKING:
    from perstack.engine.iterations.iterations import Iterations

SERIES_LABEL = "iterations"  # label with the id of the series, in an order for iterations


class JobLauncher:
    """Launches Jobs and series: drives them in this process, or queues them for workers, which also resume them."""

    def __init__(self, jobs: Jobs, iterations: Callable[[], Iterations], source: ContextSource, *, queue: bool) -> None:
        """Create; `source` has the context in force. With `queue`, everything is left to workers."""
        self._jobs = jobs
        self._iterations = iterations
        self._source = source
        self.resumes = not queue
        """True if this launcher resumes interrupted Jobs."""

    async def check(self, expert_key: str) -> None:
        """Raise what would prevent a Job of the Expert from starting.

        For a queued Job only the Expert is checked; keys, plugins and programs are checked by its worker.
        """
        setup = self._source.current
        if self.resumes:
            await setup.check_sandbox(setup.check_ready(expert_key))
        else:
            setup.expert(expert_key)

    async def start(self, expert_key: str, query: str, *, job_id: str, labels: Mapping[str, str]) -> JobSummary:
        """Start a Job; return when it is queued, has ended, or has stopped.

        Only one Job is ever started under an id: a later caller gets its state, UsageError or Conflict.
        """
        start = self._jobs.run if self.resumes else self._jobs.submit
        return await start(expert_key, query, job_id=job_id, labels=labels)

    async def resume(self, job_id: str) -> JobSummary:
        """Drive an existing Job until it ends or stops; queue it if it was never queued."""
        if self.resumes:
            return await self._resume(job_id, drive=True)
        job = await self._jobs.job(job_id)
        return job if stands(job) or job.queued is not None else await self._resume(job_id, drive=False)

    async def resume_series(self, series_id: str) -> SeriesState | None:
        """Drive a paused series until it ends or stops, or queue it with its Jobs; None if it was queued already."""
        iterations = self._iterations()
        if self.resumes:
            return await iterations.resume(series_id)
        from perstack.ports.dispatcher import Order

        now = self._source.current
        series = await iterations.get(series_id)
        labels = {SERIES_LABEL: series_id, EXPERT_LABEL: series.expert_key}
        order = Order(series_id, labels=labels, submitted_at=now.clock.now())
        return series if await now.dispatching.submit(order, now.storage, once=True) else None

    async def _resume(self, job_id: str, *, drive: bool) -> JobSummary:
        """Resume a Job; if another process was faster, return its state."""
        try:
            return await self._jobs.resume(job_id, drive=drive)
        except UsageError:
            job = await self._jobs.job(job_id)
            if stands(job):
                return job
            raise
