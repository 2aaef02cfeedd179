"""A dispatcher that keeps its queue in memory, for tests within one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import field, replace
from itertools import count

from typing_extensions import override

from perstack.dataclass import dataclass
from perstack.ports.dispatcher import (
    SILENT_AFTER,
    Claim,
    Dispatcher,
    DispatcherFactory,
    Load,
    Order,
    Seat,
    WorkerInfo,
    order_key,
)
from perstack.system.clock import SYSTEM

Now = Callable[[], int]


@dataclass
class _HeldClaim:
    claim: Claim
    seat: int | None  # the session's number; None after it ended without releasing the claim


@dataclass
class InMemoryOrders:
    """The engine: state shared by several dispatchers."""

    now: Now = SYSTEM.now
    waiting: dict[str, Order] = field(default_factory=dict[str, Order])
    """Waiting work items by key, in order of submission."""
    held: dict[str, _HeldClaim] = field(default_factory=dict[str, _HeldClaim])  # claimed work items by key
    seats: dict[int, WorkerInfo] = field(default_factory=dict[int, WorkerInfo])
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def of_seat(self, seat: int) -> tuple[str, ...]:
        """Return the ids of the Jobs and Runs that a session has claimed."""
        orders = [held_claim.claim.order for held_claim in self.held.values() if held_claim.seat == seat]
        return tuple(order.run_id or order.job_id for order in orders)

    def is_silent(self, seat: int | None) -> bool:
        """Return whether a session has ended or timed out, so that its claims may be taken over."""
        info = None if seat is None else self.seats.get(seat)
        return info is None or self.now() - info.seen > SILENT_AFTER * 1000


class InMemoryDispatchers(DispatcherFactory):
    """Factory for `dispatcher = "memory:name"`: one engine per name, for the lifetime of this object."""

    scheme = "memory"

    def __init__(self) -> None:
        """Start without engines."""
        self.engines: dict[str, InMemoryOrders] = {}

    @override
    def open(self, location: str) -> InMemoryDispatcher:
        return InMemoryDispatcher(self.engines.setdefault(location, InMemoryOrders()), location)


class InMemoryDispatcher(Dispatcher):
    """One process's view of an engine. See `ports.dispatcher.Dispatcher` for the methods."""

    def __init__(self, orders: InMemoryOrders | None = None, name: str = "") -> None:
        """Use the given engine, or a new one."""
        self._orders = orders or InMemoryOrders()
        self.location = f"memory:{name}"

    @override
    async def submit(self, order: Order) -> None:
        orders = self._orders
        waiting = orders.waiting.get(order.key)
        if waiting is not None:
            order = replace(waiting, due=min(waiting.due, order.due), priority=max(waiting.priority, order.priority))
        orders.waiting[order.key] = order
        async with orders.changed:
            orders.changed.notify_all()

    @override
    async def withdraw(self, job_id: str, run_id: str | None = None) -> bool:
        return self._orders.waiting.pop(order_key(job_id, run_id), None) is not None

    @override
    async def order(self, job_id: str, run_id: str | None = None) -> Order | None:
        key = order_key(job_id, run_id)
        held_claim = self._orders.held.get(key)
        return self._orders.waiting.get(key, None if held_claim is None else held_claim.claim.order)

    @asynccontextmanager
    @override
    async def seat(
        self, name: str, *, labels: Mapping[str, str] | None = None, concurrency: int = 1
    ) -> AsyncGenerator[InMemorySeat]:
        orders, now = self._orders, self._orders.now()
        number = next(orders.numbers)
        orders.seats[number] = WorkerInfo(name, now, now, dict(labels or {}), concurrency)
        try:
            yield InMemorySeat(orders, number)
        finally:
            del orders.seats[number]
            for held_claim in orders.held.values():
                if held_claim.seat == number:
                    held_claim.seat = None

    @override
    async def workers(self) -> Sequence[WorkerInfo]:
        orders = self._orders
        infos = [
            replace(info, jobs=orders.of_seat(number))
            for number, info in orders.seats.items()
            if not orders.is_silent(number)
        ]
        return sorted(infos, key=lambda info: info.name)

    @override
    async def load(self) -> Load:
        now, orders = self._orders.now(), self._orders
        due = [order for order in orders.waiting.values() if order.due <= now]
        oldest = min((order.due or order.submitted_at for order in due), default=None)
        return Load(len(due), len(orders.waiting) - len(due), len(orders.held), oldest)

    @override
    async def close(self) -> None:
        pass  # nothing is open


class InMemorySeat(Seat):
    """A worker session. See `ports.dispatcher.Seat` for the methods."""

    def __init__(self, orders: InMemoryOrders, number: int) -> None:
        """Use the session with that number."""
        self._orders = orders
        self._number = number
        self._claims: dict[str, Claim] = {}

    @override
    async def claim(self) -> Claim | None:
        orders, info = self._orders, self._orders.seats[self._number]
        for held_claim in orders.held.values():
            if orders.is_silent(held_claim.seat) and _may_take(held_claim.claim.order, info):
                return self._take(held_claim.claim.order, is_taken_over=True)
        due_orders = [
            order for order in orders.waiting.values() if order.due <= orders.now() and order.key not in orders.held
        ]
        claimable = [order for order in due_orders if _may_take(order, info)]
        if not claimable:
            return None
        order = max(claimable, key=lambda waiting: waiting.priority)  # the first submitted among equals
        del orders.waiting[order.key]
        return self._take(order, is_taken_over=False)

    def _take(self, order: Order, *, is_taken_over: bool) -> Claim:
        claim = Claim(str(next(self._orders.numbers)), order, is_taken_over)
        self._orders.held[order.key] = _HeldClaim(claim, self._number)
        self._claims[claim.id] = claim
        return claim

    @override
    async def wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds), self._orders.changed:
                await self._orders.changed.wait()
        except TimeoutError:
            return

    @override
    async def beat(self) -> Sequence[str]:
        orders = self._orders
        orders.seats[self._number] = replace(orders.seats[self._number], seen=orders.now())
        lost = [id for id, claim in self._claims.items() if not self._has(claim)]
        for id in lost:
            del self._claims[id]
        return lost

    @override
    async def change(self, claim: Claim, order: Order) -> Claim:
        new_claim = replace(claim, order=order)
        if self._has(claim):
            self._orders.held[order.key].claim = self._claims[claim.id] = new_claim
        return new_claim

    @override
    async def release(self, claim: Claim, new_order: Order | None = None) -> None:
        if self._claims.pop(claim.id, None) is None or not self._has(claim):
            return
        del self._orders.held[claim.order.key]
        if new_order is not None:
            await InMemoryDispatcher(self._orders).submit(new_order)
        async with self._orders.changed:
            self._orders.changed.notify_all()

    def _has(self, claim: Claim) -> bool:
        held_claim = self._orders.held.get(claim.order.key)
        return held_claim is not None and held_claim.claim.id == claim.id


def _may_take(order: Order, worker: WorkerInfo) -> bool:
    if worker.name in order.refused:
        return False
    return not worker.labels or any(order.labels.get(key) == value for key, value in worker.labels.items())
