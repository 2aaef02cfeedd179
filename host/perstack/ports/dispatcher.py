"""The dispatcher port: an existing engine that says which process drives a Job, and when.

A dispatcher keeps orders, each of which asks for one Job to be driven, or for one Run of it: a delegate that another
process drives than its Job. It is never the truth about a Job: that is in the Job's log, and the fence of the log's
append keeps two drivers apart. So an order may be lost, given twice, or held by two workers for a moment, and nothing
of a Job is lost or doubled. The promises, where a delegate's Run counts as one Job more (`Order.key`):

1. There is at most one order that waits for a Job. `submit` for a Job whose order waits makes it the earlier of the two
   due times and the higher of the two priorities. While the Job is claimed, `submit` makes an order that can be claimed
   once that claim is released: whoever queues a Job again while it is about to stop is not lost.
2. `claim` gives each order to one seat: of those that are due and fit the seat's labels, the one of the highest
   priority, and of these the one that was submitted first. It survives the end of the process that submitted it.
   An engine may take a moment until an order can be claimed, and choose among those that came in one moment, or have
   nearly the same priority, as it likes: no order waits behind such others for ever.
3. A claim is held until it is released. If its seat has not beaten for `SILENT_AFTER`, another seat gets it within
   `TAKEN_OVER_WITHIN` of the last beat, with `is_taken_over`. The seat that was silent sees it at its next beat.
4. An engine that cannot be reached raises DispatcherError; the same call may succeed later, and no seat ends by it.

`perstack.testing.dispatcher_contract` is the suite that every dispatcher passes. Job ids and labels reach a dispatcher
checked. Times of a day are milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import field
from typing import Protocol, runtime_checkable

from perstack.dataclass import dataclass

BEATS_EACH = 2.0
"""Seconds between two beats of a seat."""
SILENT_AFTER = 7.0
"""Seconds without a beat after which the claims of a seat are another's."""
TAKEN_OVER_WITHIN = 10.0
"""Seconds after the last beat within which a claim is given to another seat that waits for one."""


def order_key(job_id: str, run_id: str | None = None) -> str:
    """The name of what is ordered: no Run is called as another Job is."""
    return job_id if run_id is None else f"{job_id}/{run_id}"


@dataclass(frozen=True, slots=True)
class Order:
    """Asks for a Job to be driven, or for one Run of it."""

    job_id: str
    due: int = 0
    """Not before this time."""
    priority: int = 0
    """Higher first."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """The Job's: a seat with labels takes only Jobs that have one of them."""
    submitted_at: int = 0
    takeovers: int = 0
    """How often in a row it was taken over from a worker that fell silent, and no event of the Job came between."""
    events: int = 0
    """How many events the Job had when it was taken over last."""
    refused: Mapping[str, str] = field(default_factory=dict[str, str])
    """Why each of these workers, by name, cannot serve it. A seat of such a name does not get it."""
    run_id: str | None = None
    """The delegate's Run that it is for; None: the Job itself."""
    storage: str | None = None
    """What the storage of the Job calls itself; None: not known, as of an older version."""

    @property
    def key(self) -> str:
        """What at most one order waits for."""
        return order_key(self.job_id, self.run_id)


@dataclass(frozen=True, slots=True)
class Claim:
    """An order that this seat is to see to, and nobody else."""

    id: str
    """The engine's own name for it."""
    order: Order
    is_taken_over: bool = False
    """Whether a seat that fell silent had it before."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker, for people."""

    name: str
    since: int
    seen: int
    """When it beat last."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    concurrency: int = 1
    jobs: tuple[str, ...] = ()
    """What it has claimed: the ids of Jobs, and of Runs that it drives for others."""


@dataclass(frozen=True, slots=True)
class Load:
    """How much there is to do."""

    queued: int = 0
    """Orders that are due and nobody has claimed."""
    later: int = 0
    """Orders that are not due yet."""
    running: int = 0
    """Orders that are claimed."""
    oldest: int | None = None
    """When the one of `queued` became due that has waited longest."""


class Seat(Protocol):
    """A worker's place at a dispatcher. Its methods may be called concurrently."""

    async def claim(self) -> Claim | None:
        """The next order, if there is one. Claims of seats that fell silent come first."""
        ...

    async def wait(self, seconds: float) -> None:
        """Returns when there may be something to claim, and at the latest after so many seconds."""
        ...

    async def beat(self) -> Sequence[str]:
        """Says that this seat is alive. Returns the ids of claims that it had and another seat has taken over."""
        ...

    async def change(self, claim: Claim, order: Order) -> Claim:
        """Keep what is now known of an order with its claim (`takeovers`, `events`). Survives this process."""
        ...

    async def release(self, claim: Claim, again: Order | None = None) -> None:
        """The order is seen to; or `again`, which waits from now on in its place. Releasing twice does nothing."""
        ...


class Dispatcher(Protocol):
    """Keeps orders. One object serves one process; many processes and machines use one engine."""

    @property
    def location(self) -> str:
        """For people: where the engine is, and nothing secret."""
        ...

    async def submit(self, order: Order) -> None:
        """Queue a Job (promise 1)."""
        ...

    async def withdraw(self, job_id: str, run_id: str | None = None) -> bool:
        """Remove the order that waits for a Job, or for a Run of it; whether there was one. A claim stays."""
        ...

    async def order(self, job_id: str, run_id: str | None = None) -> Order | None:
        """The order of a Job, or of a Run of it, that waits or is claimed; the one that waits, if there are both."""
        ...

    def seat(
        self, name: str, *, labels: Mapping[str, str] | None = None, concurrency: int = 1
    ) -> AbstractAsyncContextManager[Seat]:
        """A place for a worker, who is to beat each `BEATS_EACH`. On leaving, claims that are still held can be claimed
        at once, as those of one who fell silent."""
        ...

    async def workers(self) -> Sequence[WorkerInfo]:
        """Those that have a seat and are not silent, by name."""
        ...

    async def load(self) -> Load:
        """How much there is to do. For people and meters: an engine may show it a moment late."""
        ...

    async def close(self) -> None: ...


class DispatcherFactory(Protocol):
    """What a dispatcher plugin registers. Creating one must import nothing heavy."""

    @property
    def scheme(self) -> str:
        """What precedes the colon in `dispatcher = "scheme:location"`."""
        ...

    def open(self, location: str) -> Dispatcher:
        """A dispatcher at what follows the colon. Nothing is connected before the first use. Raises UsageError."""
        ...


@runtime_checkable
class SendsCredentials(DispatcherFactory, Protocol):
    """One whose dispatchers send to the address that they are given what variables of the environment hold."""

    @property
    def credentials(self) -> Sequence[str]:
        """The names of these variables."""
        ...
