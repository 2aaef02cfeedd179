"""A few connections to one database, used in turn, and made anew when they are lost."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from perstack.errors import PerstackError
from perstack_postgres.address import Address
from perstack_postgres.faults import FAILURES, is_passing, is_there, reason
from perstack_postgres.session import Connection, connect, is_idle

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds that a server which was there is waited for, such as one that is started again."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0

_OF_PARENTS: list[object] = []
"""Connections that a fork has left to this process: they must not be used here, nor closed."""


class Pool:
    """Connects when it is first needed, in a child process anew."""

    def __init__(self, address: Address, most: int, failure: Callable[[str], PerstackError]) -> None:
        """At most so many connections. `failure` makes the error of a message."""
        self.address = address
        self._most = most
        self._failure = failure
        self._idle: list[Connection] = []
        self._turns: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None
        self._process = os.getpid()
        self._was_there = False

    def error(self, error: BaseException) -> PerstackError:
        """One line: the place, the server's words, and the remedy."""
        return self._failure(f"{self.address.shown}: {reason(self.address, error)}")

    async def close(self) -> None:
        """Close what is not in use."""
        self._leave_to_parent()
        await self._drop_idle()

    async def patiently(self, attempt: Callable[[bool], Awaitable[T]]) -> T:
        """What `attempt` returns; it is tried again for a while where a server that was there is gone, and told so.

        Raises what `failure` makes.
        """
        end, pause, is_again = time.monotonic() + PATIENCE, 0.0, False
        while True:
            try:
                return await attempt(is_again)
            except FAILURES as error:
                is_worth_it = is_passing(error) and (self._was_there or is_there(error))
                if not is_worth_it or time.monotonic() + pause > end:
                    raise self.error(error) from error
            await self._drop_idle()  # what one has met the others have too
            await asyncio.sleep(pause)
            pause, is_again = min(2 * pause + _FIRST_PAUSE, _LONGEST_PAUSE), True

    @asynccontextmanager
    async def connection(self, seconds: float) -> AsyncGenerator[Connection]:
        """One in turn, for so long. Raises what psycopg raises, and TimeoutError."""
        async with self._turn():
            self._leave_to_parent()
            connection = self._idle.pop() if self._idle else await self.open_once()
            try:
                async with asyncio.timeout(seconds):
                    yield connection
            finally:
                if is_idle(connection):
                    self._idle.append(connection)
                else:
                    await connection.close()

    async def open_once(self) -> Connection:
        """A connection, with no second try. Raises what psycopg raises."""
        connection = await connect(self.address)
        self._was_there = True
        return connection

    def _turn(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if self._turns is None or self._turns[0] is not loop:
            self._turns = (loop, asyncio.Semaphore(self._most))
        return self._turns[1]

    def _leave_to_parent(self) -> None:
        if self._process != os.getpid():
            _OF_PARENTS.extend(self._idle)
            self._idle, self._process = [], os.getpid()

    async def _drop_idle(self) -> None:
        while self._idle:
            await self._idle.pop().close()
