"""What the dispatcher contract is tried on: an engine, empty at first, and its time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import field

from perstack.dataclass import dataclass
from perstack.engine.clock import SYSTEM
from perstack.ports.dispatcher import Claim, Dispatcher, Order, Seat

SOON = 15.0
"""Seconds within which something must have happened that an engine may take its time for."""


async def really(seconds: float) -> None:
    """Let time pass by waiting."""
    await asyncio.sleep(seconds)


@dataclass
class HandedClock:
    """For an engine that takes a clock: time passes when the test says so."""

    milliseconds: int = 1_800_000_000_000

    def now(self) -> int:
        """Milliseconds since 1970."""
        return self.milliseconds

    async def pass_time(self, seconds: float) -> None:
        """Let so much of it pass."""
        self.milliseconds += round(seconds * 1000)


@dataclass
class DispatcherBed:
    """One engine, empty at first, and its time."""

    open: Callable[[], Dispatcher]
    """A dispatcher as a new process would open it on this engine."""
    pass_time: Callable[[float], Awaitable[None]] = really
    """For an engine that takes a clock, move it; else wait."""
    now: Callable[[], int] = SYSTEM.now
    """Milliseconds since 1970, by the clock that due times are compared with."""
    arrive: Callable[[str], Awaitable[None]] | None = None
    """For an engine where an order takes a moment until a seat can claim it, wait until one can, by its key."""
    cut: Callable[[], Awaitable[None]] | None = None
    """From now on the engine cannot be reached. None: it is in this process."""
    mend: Callable[[], Awaitable[None]] | None = None
    """It can be reached again."""
    opened: list[Dispatcher] = field(default_factory=list[Dispatcher])

    async def submitted(self, dispatcher: Dispatcher, order: Order) -> None:
        """Submit an order; it can be claimed then."""
        await dispatcher.submit(order)
        if self.arrive is not None:
            await self.arrive(order.key)

    @asynccontextmanager
    async def dispatchers(self, count: int = 1) -> AsyncGenerator[list[Dispatcher]]:
        """So many processes' views of it."""
        async with AsyncExitStack() as stack:
            found = [self.open() for _ in range(count)]
            for one in found:
                stack.push_async_callback(one.close)
            yield found


async def claimed(seat: Seat, seconds: float = SOON) -> Claim:
    """The next claim of a seat that waits for one as a worker does."""
    async with asyncio.timeout(seconds):
        while (claim := await seat.claim()) is None:
            await seat.wait(0.2)
        return claim
