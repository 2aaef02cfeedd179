"""The dispatcher port: a work queue that decides which process drives a Job, and when.

A dispatcher keeps work items (`Order`). Each asks for one Job to be driven, or for one delegate's Run that another
process than its Job's is to drive. The queue is never the truth about a Job: that is the Job's log, and the fence of
the log's append keeps two drivers apart. So if a work item is lost, delivered twice, or held by two workers for a
moment, no part of a Job is lost or doubled.

The promises, in which a delegate's Run counts as a Job of its own (`Order.key`):

1. At most one work item waits for a Job. `submit` for a Job that is already waiting keeps the earlier of the two due
   times and the higher of the two priorities. While the Job is claimed, `submit` adds a work item that can be claimed
   once that claim is released: a Job that is queued again while it is about to stop is not lost.
2. `claim` gives each work item to one worker session (`Seat`): of those that are due and match the session's labels,
   the one with the highest priority, and of these the one that was submitted first. A work item survives the end of the
   process that submitted it. An engine may take a moment until a work item can be claimed, and may choose freely among
   items that were submitted at about the same moment or have nearly the same priority, but must not pass over one of
   them for ever.
3. A claim is held until it is released. If its session has sent no heartbeat for `SILENT_AFTER` seconds, another
   session gets the claim within `TAKEN_OVER_WITHIN` seconds of the last heartbeat, with `is_taken_over`. The session
   that lost it learns so from its next heartbeat.
4. An unreachable engine raises DispatcherError. The same call may succeed later, and the session stays open.

`perstack.testing.dispatcher_contract` is the test suite that every dispatcher passes. The host validates Job ids and
labels before a dispatcher sees them. Points in time are milliseconds since 1970.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import field

from perstack.dataclass import dataclass

BEATS_EACH = 2.0  # seconds between two heartbeats of a session
SILENT_AFTER = 7.0  # heartbeat timeout in seconds: after it, other sessions may take over the claims
TAKEN_OVER_WITHIN = 10.0  # seconds after the last heartbeat within which a waiting session receives the claim


def order_key(job_id: str, run_id: str | None = None) -> str:
    """Return the key of a Job or of a delegate's Run. No Run id equals a Job id, so keys never collide."""
    return job_id if run_id is None else f"{job_id}/{run_id}"


@dataclass(frozen=True, slots=True)
class Order:
    """A work item: a request to drive a Job, or one Run of it."""

    job_id: str
    due: int = 0  # earliest time to claim it, in milliseconds since 1970
    priority: int = 0  # higher values are claimed first
    labels: Mapping[str, str] = field(default_factory=dict[str, str])  # a session claims only Jobs that share a label
    submitted_at: int = 0  # milliseconds since 1970
    takeovers: int = 0  # consecutive takeovers after heartbeat timeouts without a new event of the Job in between
    events: int = 0  # number of the Job's events at the last takeover
    refused: Mapping[str, str] = field(default_factory=dict[str, str])  # reason by name of each worker that refused it
    run_id: str | None = None  # Run id of the delegate to drive; None for the Job itself
    storage: str | None = None  # name that identifies the Job's storage; None if it is unknown or could not be read

    @property
    def key(self) -> str:
        """The key under which at most one work item waits."""
        return order_key(self.job_id, self.run_id)


@dataclass(frozen=True, slots=True)
class Claim:
    """A work item that this session holds exclusively."""

    id: str  # claim id, chosen by the engine
    order: Order
    is_taken_over: bool = False  # True if another session held it before and missed its heartbeats


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker as shown to people."""

    name: str
    since: int  # start of the session, in milliseconds since 1970
    seen: int  # last heartbeat, in milliseconds since 1970
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    concurrency: int = 1
    jobs: tuple[str, ...] = ()  # ids of the claimed Jobs, and of the Runs driven for Jobs of other workers


@dataclass(frozen=True, slots=True)
class Load:
    """Queue statistics."""

    queued: int = 0  # work items that are due and unclaimed
    later: int = 0  # work items that are not due yet
    running: int = 0  # claimed work items
    oldest: int | None = None  # due time of the longest waiting item of `queued`, in ms since 1970; None without one


class Seat(ABC):
    """A worker's registered session at a dispatcher. Its methods may be called concurrently."""

    @abstractmethod
    async def claim(self) -> Claim | None:
        """Return the next work item as a claim, or None. Claims of sessions that timed out come first."""

    @abstractmethod
    async def wait(self, seconds: float) -> None:
        """Return when there may be something to claim, at the latest after `seconds`."""

    @abstractmethod
    async def beat(self) -> Sequence[str]:
        """Send a heartbeat. Return the ids of this session's claims that another session has taken over."""

    @abstractmethod
    async def change(self, claim: Claim, order: Order) -> Claim:
        """Store a changed work item (`takeovers`, `events`) with its claim, durably, and return the new claim."""

    @abstractmethod
    async def release(self, claim: Claim, new_order: Order | None = None) -> None:
        """Finish the claimed item, or replace it by `new_order`, which waits from now on. Idempotent."""


class Dispatcher(ABC):
    """A process's access to a work queue, which many processes may share. Every method may raise DispatcherError."""

    location: str  # the engine's location as shown to people, without secrets

    @abstractmethod
    async def submit(self, order: Order) -> None:
        """Queue a Job or a Run (promise 1)."""

    @abstractmethod
    async def withdraw(self, job_id: str, run_id: str | None = None) -> bool:
        """Remove the waiting work item of a Job or a Run. Return whether there was one. A claim is not affected."""

    @abstractmethod
    async def order(self, job_id: str, run_id: str | None = None) -> Order | None:
        """Return the waiting or claimed work item of a Job or a Run; the waiting one if both exist, None if neither."""

    @abstractmethod
    def seat(
        self, name: str, *, labels: Mapping[str, str] | None = None, concurrency: int = 1
    ) -> AbstractAsyncContextManager[Seat]:
        """Register a worker session. The worker must send a heartbeat every `BEATS_EACH` seconds.

        On exit, claims that are still held become available at once, as after a heartbeat timeout.
        """

    @abstractmethod
    async def workers(self) -> Sequence[WorkerInfo]:
        """Return the workers with a session that has not timed out, sorted by name."""

    @abstractmethod
    async def load(self) -> Load:
        """Return queue statistics for people and metrics. They may be a moment old."""

    @abstractmethod
    async def close(self) -> None:
        """Release connections."""


class DispatcherFactory(ABC):
    """Factory of dispatchers, registered by a plugin. Creating one must import nothing heavy."""

    scheme: str  # the part before the colon in `dispatcher = "scheme:location"`

    @abstractmethod
    def open(self, location: str) -> Dispatcher:
        """Return a dispatcher for the part after the colon, not connected yet. Raises UsageError if it is invalid."""
