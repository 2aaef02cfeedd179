"""How what is due is started: here, or by whoever queues it for others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from perstack.core.iterations.state import SeriesState
from perstack.core.job import JobSummary
from perstack.core.tasks.waking import EXPERT_LABEL
from perstack.core.undriven import stands
from perstack.engine.jobs import Jobs
from perstack.engine.setup import Setup
from perstack.errors import UsageError

if TYPE_CHECKING:
    from perstack.engine.iterate import Iterations

SERIES_LABEL = "iterations"
"""The label of an order for iterations that has their id."""

SeriesStarter = Callable[[str], Awaitable[SeriesState | None]]
"""Goes on with iterations that paused, or queues them; None if they are queued already."""


class JobStarter(Protocol):
    """Starts Jobs under ids that are given."""

    @property
    def resumes(self) -> bool:
        """Whether it resumes Jobs that were interrupted; if not, others take over those whose process has died."""
        ...

    async def check(self, expert_key: str) -> None:
        """Raises what would keep a Job of the Expert from being started: nothing is recorded then."""
        ...

    async def start(self, expert_key: str, query: str, *, job_id: str, labels: Mapping[str, str]) -> JobSummary:
        """Start it, and return when it is queued, or has ended or stopped.

        Of one id only one is ever started: whoever comes second sees how it stands, UsageError or Conflict.
        """
        ...

    async def resume(self, job_id: str) -> JobSummary:
        """Continue one that was interrupted, if it `resumes` any."""
        ...


class DrivenHere:
    """Jobs are driven by this Host."""

    resumes = True

    def __init__(self, jobs: Jobs, setup: Callable[[], Setup]) -> None:
        self._jobs = jobs
        self._setup = setup

    async def check(self, expert_key: str) -> None:
        """Raises UsageError or MissingCredential."""
        setup = self._setup()
        await setup.check_sandbox(setup.check_ready(expert_key))

    async def start(self, expert_key: str, query: str, *, job_id: str, labels: Mapping[str, str]) -> JobSummary:
        """Drive it to its end or stop."""
        return await self._jobs.run(expert_key, query, job_id=job_id, labels=labels)

    async def resume(self, job_id: str) -> JobSummary:
        """Drive it on to its end or stop."""
        return await taken_up(self._jobs, job_id)


class Queued:
    """Jobs are submitted, and workers drive them: they take over those whose process has died."""

    resumes = False

    def __init__(self, jobs: Jobs, setup: Callable[[], Setup]) -> None:
        self._jobs = jobs
        self._setup = setup

    async def check(self, expert_key: str) -> None:
        """Raises UsageError and DefinitionError; keys, plugins and programs are the worker's."""
        self._setup().expert(expert_key)

    async def start(self, expert_key: str, query: str, *, job_id: str, labels: Mapping[str, str]) -> JobSummary:
        """Submit it."""
        return await self._jobs.submit(expert_key, query, job_id=job_id, labels=labels)

    async def resume(self, job_id: str) -> JobSummary:
        """How it stands. One that was never submitted is left to workers."""
        job = await self._jobs.job(job_id)
        return job if stands(job) or job.queued is not None else await taken_up(self._jobs, job_id, drive=False)


def queued_series(iterations: Iterations, setup: Callable[[], Setup]) -> SeriesStarter:
    """Iterations that paused are queued: the worker that has their order drives them, with all their Jobs."""

    async def queue(series_id: str) -> SeriesState | None:
        from perstack.ports.dispatcher import Order

        now = setup()
        series = await iterations.get(series_id)
        labels = {SERIES_LABEL: series_id, EXPERT_LABEL: series.expert_key}
        order = Order(series_id, labels=labels, submitted_at=now.clock.now())
        return series if await now.dispatching.submit(order, now.storage, once=True) else None

    return queue


async def taken_up(jobs: Jobs, job_id: str, *, drive: bool = True) -> JobSummary:
    """A Job is resumed, unless another process was quicker: then how it stands."""
    try:
        return await jobs.resume(job_id, drive=drive)
    except UsageError:
        job = await jobs.job(job_id)
        if stands(job):
            return job
        raise
