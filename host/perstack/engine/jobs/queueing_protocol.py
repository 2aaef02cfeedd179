"""Protocol for queueing Jobs for workers, which `perstack.workers.queued_definition` implements."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from perstack.dataclass import dataclass
from perstack.ports.parts import Part

if TYPE_CHECKING:
    from perstack.core.base.ids import By
    from perstack.core.definitions.experts import Expert
    from perstack.core.definitions.recorded_definition import SeriesDefinition
    from perstack.core.jobs.summary import JobSummary
    from perstack.engine.context.host_setup import HostSetup
    from perstack.engine.log.run_session import RunSession
    from perstack.engine.plugins.knowledge import Knowledge
    from perstack.engine.plugins.trust_checks import ToolLock
    from perstack.engine.runs.job_drive import JobDrive


@dataclass(frozen=True, slots=True)
class QueueRequest:
    """Request to queue a Job for a worker instead of driving it."""

    by: By
    definition: SeriesDefinition | None = None
    """The definition to record, unless the Job has one already; None for the worker's own."""
    due: int = 0  # milliseconds since 1970; 0 to drive it as soon as possible
    priority: int = 0  # higher ones first


class Queueing(Protocol):
    """Functions that queue Jobs, and drive queued ones with the definition that they were queued with."""

    def check_bundle(self, knowledge: Knowledge, team: Iterable[Expert]) -> None:
        """Raise UsageError for Agent Skills that cannot travel with a Job."""
        ...

    async def enqueue(self, drive: JobDrive, session: RunSession, queue_request: QueueRequest) -> JobSummary:
        """Record the start of a Job or Run, and that it waits for a worker."""
        ...

    async def load_queued_context(self, setup: HostSetup, job_id: str, digest: str) -> tuple[HostSetup, ToolLock]:
        """Return the context and the lock that a Job was queued with. Raises StorageError and UsageError."""
        ...


QUEUEING: Part[Queueing] = Part("queueing of Jobs")
