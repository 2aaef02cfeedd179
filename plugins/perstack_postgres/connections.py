"""The connections to one database: a few, used in turn, and made anew when they are lost."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from perstack.ports.uninterrupted import uninterrupted
from perstack_postgres.address import Address
from perstack_postgres.faults import FAILURES, is_passing, is_there, storage_error
from perstack_postgres.schema import VERSION, migrate, version_of
from perstack_postgres.session import STATEMENT_SECONDS, Connection, connect, is_idle

T = TypeVar("T")

_MOST = 8
"""Connections of one process, those of leases and notices left out."""

PATIENCE = 30.0
"""Seconds that a server which was there is waited for, such as one that is started again."""

_READ_SECONDS = 120.0
_WRITE_SECONDS = STATEMENT_SECONDS + 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
_BYTES_PER_SECOND = 500_000
"""What a slow network carries."""

_OF_PARENTS: list[object] = []
"""Connections that a fork has left to this process: they must not be used here, nor closed."""


class Connections:
    """Connects when it is first needed, in a child process anew."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._idle: list[Connection] = []
        self._turns: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None
        self._process = os.getpid()
        self._was_there = False
        self._version = 0

    async def read(self, work: Callable[[Connection], Awaitable[T]], nothing: T) -> T:
        """What `work` returns, and `nothing` where there is no schema yet. A cancellation abandons it.

        Raises StorageError, as all of these do.
        """

        async def reading(_: bool) -> T:
            async with self._connection(_READ_SECONDS) as connection:
                if not self._version:
                    self._version = await version_of(connection, self.address)
                if self._version:
                    await self._prepare(connection)
                return await work(connection) if self._version else nothing

        return await self.patiently(reading)

    async def write(self, work: Callable[[Connection, bool], Awaitable[T]], size: int = 0) -> T:
        """What `work` returns. Where an answer is lost it is done again, and told so by its second argument: it then
        finds out whether it has been done. A cancellation waits until it has been done or not. `size` is how many bytes
        it sends.
        """

        async def writing(is_again: bool) -> T:
            async with self._connection(_WRITE_SECONDS + size / _BYTES_PER_SECOND) as connection:
                await self._prepare(connection)
                return await work(connection, is_again)

        return await uninterrupted(self.patiently(writing))

    async def once(self, work: Callable[[Connection], Awaitable[T]], seconds: float = _READ_SECONDS) -> T:
        """What `work` returns, with no second try."""
        try:
            async with self._connection(seconds) as connection:
                return await work(connection)
        except FAILURES as error:
            raise storage_error(self.address, error) from error

    async def open_ready(self) -> Connection:
        """A connection for the caller alone, who closes it, to a schema of this version. Raises what psycopg raises."""
        connection = await self.open_once()
        try:
            await self._prepare(connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def close(self) -> None:
        """Close what is not in use."""
        self._leave_to_parent()
        await self._drop_idle()

    async def _prepare(self, connection: Connection) -> None:
        if self._version != VERSION:
            await migrate(connection, self.address)
            self._version = VERSION

    async def patiently(self, attempt: Callable[[bool], Awaitable[T]]) -> T:
        """What `attempt` returns; it is tried again for a while where a server that was there is gone, and told so.

        Raises StorageError.
        """
        end, pause, is_again = time.monotonic() + PATIENCE, 0.0, False
        while True:
            try:
                return await attempt(is_again)
            except FAILURES as error:
                is_worth_it = is_passing(error) and (self._was_there or is_there(error))
                if not is_worth_it or time.monotonic() + pause > end:
                    raise storage_error(self.address, error) from error
            await self._drop_idle()  # what one has met the others have too
            await asyncio.sleep(pause)
            pause, is_again = min(2 * pause + _FIRST_PAUSE, _LONGEST_PAUSE), True

    @asynccontextmanager
    async def _connection(self, seconds: float) -> AsyncGenerator[Connection]:
        """One in turn, for so long."""
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
            self._turns = (loop, asyncio.Semaphore(_MOST))
        return self._turns[1]

    def _leave_to_parent(self) -> None:
        if self._process != os.getpid():
            _OF_PARENTS.extend(self._idle)
            self._idle, self._process = [], os.getpid()

    async def _drop_idle(self) -> None:
        while self._idle:
            await self._idle.pop().close()
