"""Protocol of the queue of Jobs for workers, which `perstack.workers.dispatcher_queue` implements."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from perstack.core.base.ids import By
from perstack.core.jobs.summary import JobSummary
from perstack.engine.context.host_setup import HostSetup, SetupSource
from perstack.engine.jobs.job_request import JobRequest
from perstack.engine.jobs.queueing_protocol import QueueRequest
from perstack.engine.jobs.reader import JobReader
from perstack.ports.parts import Part

if TYPE_CHECKING:
    from perstack.core.jobs.job import Job
    from perstack.engine.jobs.runner import JobRunner


class JobQueue(Protocol):
    """Jobs that are queued for workers. Without a dispatcher every Job is driven here."""

    async def submit(
        self, job_request: JobRequest, *, at: int | None = None, priority: int = 0, by: By | None = None
    ) -> JobSummary:
        """Record a new Job for a worker to drive from `at` (milliseconds since 1970), and return its summary."""
        ...

    def requests(
        self, setup: HostSetup, by: By | None, drive: bool | None
    ) -> Callable[[Job], Awaitable[QueueRequest | None]]:
        """Return the function that decides whether a continued Job is queued for a worker, and how."""
        ...

    async def ordered(self, summary: JobSummary) -> JobSummary:
        """Submit the order of a Job that is queued, and return the summary."""
        ...

    async def interrupt_queued(self, job_id: str) -> bool:
        """Interrupt a Job that waits for a worker. Returns False if it does not wait."""
        ...

    async def runs_with_orders(self, job_id: str) -> tuple[str | None, ...]:
        """Return which Runs of a Job may have orders: ids of delegates, and None for the Job itself."""
        ...

    async def withdraw(self, job_id: str, run_id: str | None = None) -> None:
        """Withdraw the order of a Job, or of a delegate of it, as far as the dispatcher can be reached."""
        ...

    async def requeue_lost(self) -> tuple[str, ...]:
        """Submit orders for queued Jobs that have none, and return their ids."""
        ...


JOB_QUEUE: Part[Callable[[SetupSource, JobReader, JobRunner], JobQueue]] = Part("queue of Jobs")
"""Returns the queue of the dispatcher of the setup in force."""
