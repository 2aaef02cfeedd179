"""Launch what is due: drive it in this process, or queue it for workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from perstack.core.iterations.state import SeriesState
from perstack.core.jobs.summary import JobSummary
from perstack.core.queue.orders import stands
from perstack.core.tasks.due import EXPERT_LABEL
from perstack.engine.context.host_context import Setup
from perstack.engine.jobs.jobs import Jobs
from perstack.errors import UsageError

if TYPE_CHECKING:
    from perstack.engine.iterations.iterations import Iterations

SERIES_LABEL = "iterations"
"""Label with the id of the series, in an order for iterations."""

SeriesStarter = Callable[[str], Awaitable[SeriesState | None]]
"""A function that resumes a paused series, or queues it; None if it was queued already."""


class JobStarter(Protocol):
    """Starts Jobs under given ids."""

    @property
    def resumes(self) -> bool:
        """Whether it resumes interrupted Jobs; otherwise workers take over Jobs whose process has died."""
        ...

    async def check(self, expert_key: str) -> None:
        """Raise what would prevent a Job of the Expert from starting. Records nothing."""
        ...

    async def start(self, expert_key: str, query: str, *, job_id: str, labels: Mapping[str, str]) -> JobSummary:
        """Start a Job; return when it is queued, has ended, or has stopped.

        Only one Job is ever started under an id: a later caller gets its state, UsageError or Conflict.
        """
        ...

    async def resume(self, job_id: str) -> JobSummary:
        """Continue an interrupted Job, if `resumes`."""
        ...


class DrivenHere:
    """Drives Jobs in this process."""

    resumes = True

    def __init__(self, jobs: Jobs, setup: Callable[[], Setup]) -> None:
        """Create; `setup` returns the context in force."""
        self._jobs = jobs
        self._setup = setup

    async def check(self, expert_key: str) -> None:
        """Raise UsageError or MissingCredential if a Job could not begin."""
        setup = self._setup()
        await setup.check_sandbox(setup.check_ready(expert_key))

    async def start(self, expert_key: str, query: str, *, job_id: str, labels: Mapping[str, str]) -> JobSummary:
        """Drive a new Job until it ends or stops."""
        return await self._jobs.run(expert_key, query, job_id=job_id, labels=labels)

    async def resume(self, job_id: str) -> JobSummary:
        """Drive an existing Job until it ends or stops."""
        return await taken_up(self._jobs, job_id)


class Queued:
    """Submits Jobs for workers, which also take over Jobs whose process has died."""

    resumes = False

    def __init__(self, jobs: Jobs, setup: Callable[[], Setup]) -> None:
        """Create; `setup` returns the context in force."""
        self._jobs = jobs
        self._setup = setup

    async def check(self, expert_key: str) -> None:
        """Raise UsageError or DefinitionError for the Expert; keys, plugins and programs are checked by the worker."""
        self._setup().expert(expert_key)

    async def start(self, expert_key: str, query: str, *, job_id: str, labels: Mapping[str, str]) -> JobSummary:
        """Submit a new Job."""
        return await self._jobs.submit(expert_key, query, job_id=job_id, labels=labels)

    async def resume(self, job_id: str) -> JobSummary:
        """Return the state of a Job. One that was never submitted is submitted."""
        job = await self._jobs.job(job_id)
        return job if stands(job) or job.queued is not None else await taken_up(self._jobs, job_id, drive=False)


def queued_series(iterations: Iterations, setup: Callable[[], Setup]) -> SeriesStarter:
    """Return a starter that queues series: the worker that gets the order drives the series with all its Jobs."""

    async def queue(series_id: str) -> SeriesState | None:
        from perstack.ports.dispatcher import Order

        now = setup()
        series = await iterations.get(series_id)
        labels = {SERIES_LABEL: series_id, EXPERT_LABEL: series.expert_key}
        order = Order(series_id, labels=labels, submitted_at=now.clock.now())
        return series if await now.dispatching.submit(order, now.storage, once=True) else None

    return queue


async def taken_up(jobs: Jobs, job_id: str, *, drive: bool = True) -> JobSummary:
    """Resume a Job; if another process was faster, return its state."""
    try:
        return await jobs.resume(job_id, drive=drive)
    except UsageError:
        job = await jobs.job(job_id)
        if stands(job):
            return job
        raise
