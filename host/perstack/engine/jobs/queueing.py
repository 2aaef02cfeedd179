"""Queueing of Jobs for workers; `perstack.workers.queue` does it. Without a dispatcher every Job is driven here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from perstack.config.lock import Lock
from perstack.core.base.ids import By
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.recorded_definition import SeriesDefinition
from perstack.core.jobs.job import Job
from perstack.core.jobs.summary import JobSummary
from perstack.dataclass import dataclass
from perstack.engine.context.host_context import ContextSource, HostContext
from perstack.engine.log.run_session import RunSession
from perstack.engine.plugins.agent_skills import SkillLibrary
from perstack.ports.parts import Part

if TYPE_CHECKING:
    from perstack.engine.jobs.attachments import Attachable
    from perstack.engine.jobs.reader import JobReader
    from perstack.engine.jobs.runner import JobRunner
    from perstack.engine.runs.job_context import JobContext


@dataclass(frozen=True, slots=True)
class QueueRequest:
    """Request to queue a Job for a worker instead of driving it."""

    by: By
    definition: SeriesDefinition | None = None
    """The definition to record, unless the Job has one already; None to use the worker's own."""
    due: int = 0
    priority: int = 0


class JobQueue(Protocol):
    """Jobs that are queued for workers."""

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
        """Record a new Job for a worker to drive, and return its summary, with the status `queued`."""

    def requests(
        self, context: HostContext, by: By | None, drive: bool | None
    ) -> Callable[[Job], Awaitable[QueueRequest | None]]:
        """Return the function that decides whether a continued Job is queued for a worker, and how."""

    async def ordered(self, job: JobSummary) -> JobSummary:
        """Order the Job if it is queued, and return it."""

    async def interrupt_queued(self, job_id: str) -> bool:
        """Interrupt a Job that waits for a worker. Returns False if it does not wait."""

    async def runs_with_orders(self, job_id: str) -> tuple[str | None, ...]:
        """Return what may have orders: None for the Job itself, and the ids of its delegates."""

    async def withdraw(self, job_id: str, run_id: str | None = None) -> None:
        """Withdraw the order of a Job, or of a delegate of it, as far as the dispatcher can be reached."""

    async def requeue_lost(self) -> tuple[str, ...]:
        """Order recorded Jobs without an order, and return their ids."""


class Queueing(Protocol):
    """Functions that queue Jobs, and drive queued ones with the definition that they were queued with."""

    def job_queue(self, source: ContextSource, reader: JobReader, runner: JobRunner) -> JobQueue:
        """Return the queue of the dispatcher of the context in force."""

    def check_bundle(self, library: SkillLibrary, experts: Iterable[Expert]) -> None:
        """Raise UsageError for Agent Skills that cannot travel with a Job."""

    async def enqueue(self, job: JobContext, session: RunSession, request: QueueRequest) -> JobSummary:
        """Record the start of a Job or Run, and that it waits for a worker."""

    async def load_queued_context(self, context: HostContext, job_id: str, digest: str) -> tuple[HostContext, Lock]:
        """Return the context and the lock that a Job was queued with. Raises StorageError and UsageError."""


QUEUEING: Part[Queueing] = Part("queue of Jobs")
