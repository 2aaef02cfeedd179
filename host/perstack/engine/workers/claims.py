"""What a worker has claimed: each Job is driven in a task of its own, and then its order is released."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from perstack.core.runs.state import RunStatus
from perstack.core.serving import (
    Again,
    Came,
    Done,
    Served,
    after_delegate,
    after_drive,
    is_suspect,
    needs_nobody,
    takeovers_now,
)
from perstack.dataclass import dataclass
from perstack.engine.logs.damage import UnknownEvent
from perstack.engine.workers.news import News, Tell, error_text, news_of, news_of_taken
from perstack.engine.workers.ordered import Ordered
from perstack.engine.workers.outcome import Outcome
from perstack.engine.workers.reaching import Reaching
from perstack.engine.workers.tally import Tally
from perstack.errors import Conflict, Damaged, NotFound, StorageError
from perstack.ports.clock import Clock
from perstack.ports.dispatcher import Claim, Order, Seat

_MOST_REMEMBERED = 1_000
"""Jobs of which it is known how often this worker could not begin them."""


Live = Callable[[], Awaitable[frozenset[str]]]
"""The names of the workers that there are."""


@dataclass(slots=True)
class Held:
    """A claim, and who drives its Job."""

    claim: Claim
    task: asyncio.Future[Served] | None = None
    """None before it is driven."""
    is_lost: bool = False
    """Another worker has the order."""
    is_left: bool = False
    """It is to end because this worker leaves."""
    waits: bool = False
    """It only waits for delegates that others drive, or this worker in another place: it has no place itself."""


class Claims:
    """Those of one worker. Whatever goes wrong with one ends nothing else."""

    def __init__(
        self,
        name: str,
        ordered: Ordered,
        clock: Clock,
        tally: Tally,
        reaching: Reaching,
        tell: Tell,
        seen_to: Callable[[Order], None] = lambda order: None,
    ) -> None:
        """`seen_to` is told of each order that is released."""
        self._name = name
        self._ordered = ordered
        self._seen_to = seen_to
        self._clock = clock
        self._tally = tally
        self._reaching = reaching
        self._tell = tell
        self._tries: dict[str, int] = {}
        self._held: dict[str, Held] = {}
        self._one_looks = asyncio.Lock()
        """Of two that look for one another at once, neither would see that the other begins."""
        self.freed = asyncio.Event()
        """Set when one was seen to."""
        self.soonest: int | None = None
        """When the first order is due that was put back for a moment, by the clock."""

    def __len__(self) -> int:
        return len(self._held)

    @property
    def places(self) -> int:
        """How many places are taken."""
        return sum(not held.waits for held in self._held.values())

    @property
    def jobs(self) -> int:
        """How many of these are no delegates, whether they wait for their delegates or not."""
        return sum(held.claim.order.run_id is None for held in self._held.values())

    # --- ending what is driven ------------------------------------------------------------------------------------

    def lose(self, claim_id: str) -> None:
        """Another worker has the order, and drives the Job."""
        held = self._held.get(claim_id)
        if held is not None:
            held.is_lost = True
            if held.task is not None:
                held.task.cancel()

    def leave_after_step(self) -> None:
        """Each Job stops when the step in hand has ended."""
        for held in self._held.values():
            held.is_left = True
            if held.task is not None and not self._ordered.stop_after_step(held.claim.order):
                held.task.cancel()

    def leave_now(self) -> None:
        """Each Job stops, and is recorded as interrupted."""
        for held in self._held.values():
            held.is_left = True
            if held.task is not None:
                held.task.cancel()

    # --- one claim ------------------------------------------------------------------------------------------------

    def hold(self, claim: Claim) -> Held:
        """A claim that is to be seen to."""
        held = self._held[claim.id] = Held(claim)
        return held

    async def see_to(self, seat: Seat, held: Held, live: Live) -> None:
        """Drive what is asked for, and release the order. `live` are the names of the workers that there are."""
        try:
            outcome = await self._outcome(seat, held, live)
            after = await self._after(held, outcome)
            again = None if isinstance(after, Done) else await self._order_again(held.claim.order, after, live)
            if not held.is_lost:
                await self._reaching.until_done(lambda: seat.release(held.claim, again))
            self._tell(news_of(held.claim.order, outcome, after))
            self._seen_to(held.claim.order)
        except Exception as error:  # noqa: BLE001 - no fault with one Job ends the others
            text = f"its order stays with this worker until that ends: {error_text(error)}"
            self._tell(News(event="failed", level="error", job=held.claim.order.job_id, text=text))
        finally:
            del self._held[held.claim.id]
            self.freed.set()

    async def _outcome(self, seat: Seat, held: Held, live: Live) -> Outcome:
        """Drive it, if there is something to drive. Raises CancelledError only if this task is cancelled."""
        order = held.claim.order
        try:
            served = await self._ordered.look(order)
            if order.run_id is None and needs_nobody(served):
                return Outcome("stopped", served)
            if held.claim.is_taken_over:
                await self._count_takeover(seat, held)
            if await self._ordered.is_poison(served, held.claim.order, lambda: self._reaching.until_done(live)):
                return Outcome("stopped", await self._ordered.stop_for_good(served, order), is_poison=True)
            if await self._is_beside_a_suspect(held):
                return Outcome("busy", served)
        except Exception as error:  # noqa: BLE001 - a storage may raise anything
            return await self._failed(order, error)
        if held.is_left or held.is_lost:
            return Outcome("lost" if held.is_lost else "left", served)
        return await self._driven(held, served)

    async def _driven(self, held: Held, served: Served) -> Outcome:
        def waits(it_does: bool) -> None:
            held.waits = it_does
            self.freed.set()

        drive = self._ordered.drive(served, held.claim.order, self._tally.of(served), waits)
        held.task = asyncio.ensure_future(drive)
        self._tell(news_of_taken(held.claim, served))
        began = time.monotonic()
        self._tally.running += 1
        try:
            await asyncio.wait({held.task})
        except asyncio.CancelledError:
            held.task.cancel()
            await asyncio.wait({held.task})
            if not held.task.cancelled():
                held.task.exception()  # whoever takes the Job over finds what could not be recorded
            raise
        finally:
            self._tally.running -= 1
        return replace(await self._came(held, held.task), seconds=time.monotonic() - began)

    async def _came(self, held: Held, task: asyncio.Future[Served]) -> Outcome:
        order = held.claim.order
        if held.is_lost:
            if not task.cancelled():
                task.exception()  # is the other worker's to tell
            return Outcome("lost")
        if task.cancelled():
            return await self._standing("left" if held.is_left else "cancelled", order, None)
        error = task.exception()
        if error is not None:
            return await self._failed(order, error)
        return Outcome("left" if held.is_left else "stopped", task.result())

    async def _failed(self, order: Order, error: BaseException) -> Outcome:
        match error:
            case NotFound():
                return await self._not_there(order)
            case UnknownEvent():
                return Outcome("newer", error=error)
            case Damaged():
                return Outcome("damaged", error=error)
            case Conflict():
                return await self._standing("busy", order, error)
            case StorageError():
                return Outcome("unreachable", error=error)
            case _:
                return await self._standing("unable", order, error)

    async def _not_there(self, order: Order) -> Outcome:
        """What the storage does not have: whoever deletes a Job withdraws what waits, but not what a worker holds."""
        where = f"{self._ordered.location} has no such Job"
        try:
            is_ours = await self._ordered.is_of_here(order)
        except Exception as error:  # noqa: BLE001 - a storage may raise anything
            return Outcome("unreachable", error=error)
        if is_ours:
            return Outcome("deleted", error=NotFound(f"{where} any more"))
        why = "was it deleted, or is that another storage?" if is_ours is None else "that is another storage's"
        return Outcome("missing", error=NotFound(f"{where}; {why}"))

    async def _standing(self, came: Came, order: Order, error: BaseException | None) -> Outcome:
        """With where the Job stands."""
        try:
            return Outcome(came, await self._ordered.look(order), error)
        except (NotFound, Damaged) as unread:
            return await self._failed(order, unread)
        except Exception as unread:  # noqa: BLE001 - a storage may raise anything
            return Outcome("unreachable", None, error or unread)

    async def _count_takeover(self, seat: Seat, held: Held) -> None:
        """Keep with the order how often it was taken over, and how much was done then."""
        self._tally.takeovers += 1
        order = held.claim.order
        work = await self._ordered.work_of(order)
        changed = replace(order, takeovers=takeovers_now(order.takeovers, order.events, work), events=work)
        held.claim = await self._reaching.until_done(lambda: seat.change(held.claim, changed))

    async def _is_beside_a_suspect(self, held: Held) -> bool:
        """Whether two Jobs would be driven here that may have ended workers: they answer for themselves, one at a time.

        One that has done something since is none any more; one that only waits for delegates ends nobody, and they
        would wait for it.
        """
        if not is_suspect(held.claim.order.takeovers):
            return False
        async with self._one_looks:
            for other in tuple(self._held.values()):
                order = other.claim.order
                if other is held or other.task is None or other.waits or not is_suspect(order.takeovers):
                    continue
                if await self._ordered.work_of(order) == order.events:
                    return True
            return False

    # --- what becomes of the order --------------------------------------------------------------------------------

    async def _after(self, held: Held, outcome: Outcome) -> Done | Again:
        order, begun = held.claim.order, outcome.came not in ("busy", "unreachable")
        tries = self._tries.pop(order.key, 0)
        if not begun and len(self._tries) < _MOST_REMEMBERED:
            self._tries[order.key] = tries + 1
        reason, now = "" if outcome.error is None else error_text(outcome.error), self._clock.now()
        if order.run_id is None:
            after = after_drive(outcome.came, outcome.served, now, tries=tries, reason=reason)
        else:
            came, status = await self._run_standing(order, outcome.came)
            after = after_delegate(came, status, now, tries=tries, reason=reason)
        if isinstance(after, Again) and not begun:
            self.soonest = after.due if self.soonest is None else min(self.soonest, after.due)
        return after

    async def _run_standing(self, order: Order, came: Came) -> tuple[Came, RunStatus | None]:
        """How the Run of a delegate stands, by its log; where that cannot be read now, it was not reached."""
        try:
            return came, await self._ordered.run_status(order)
        except (NotFound, Damaged):
            return came, None
        except Exception:  # noqa: BLE001 - a storage may raise anything
            return "unreachable", None

    async def _order_again(self, order: Order, after: Again, live: Live) -> Order:
        """The order as it waits. Of workers that have ended nobody need know what they refused."""
        if after.refused is None:
            return replace(order, due=after.due)
        there = await self._reaching.until_done(live)
        refused = {name: why for name, why in order.refused.items() if name in there}
        return replace(order, due=after.due, refused={**refused, self._name: after.refused})
