"""The connections of a storage: each is to a schema of this version."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from perstack.errors import StorageError
from perstack.ports.uninterrupted import uninterrupted
from perstack_postgres.address import Address
from perstack_postgres.faults import FAILURES
from perstack_postgres.pool import Pool
from perstack_postgres.schema import VERSION, migrate, version_of
from perstack_postgres.session import STATEMENT_SECONDS, Connection

T = TypeVar("T")

_MOST = 8
"""Connections of one process, those of leases and notices left out."""

_READ_SECONDS = 120.0
_WRITE_SECONDS = STATEMENT_SECONDS + 5.0
_BYTES_PER_SECOND = 500_000
"""What a slow network carries."""


class Connections(Pool):
    """Makes the schema, or brings it to this version, before the first write."""

    def __init__(self, address: Address) -> None:
        super().__init__(address, _MOST, StorageError)
        self._version = 0

    async def read(self, work: Callable[[Connection], Awaitable[T]], nothing: T) -> T:
        """What `work` returns, and `nothing` where there is no schema yet. A cancellation abandons it.

        Raises StorageError, as all of these do.
        """

        async def reading(_: bool) -> T:
            async with self.connection(_READ_SECONDS) as connection:
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
            async with self.connection(_WRITE_SECONDS + size / _BYTES_PER_SECOND) as connection:
                await self._prepare(connection)
                return await work(connection, is_again)

        return await uninterrupted(self.patiently(writing))

    async def once(self, work: Callable[[Connection], Awaitable[T]], seconds: float = _READ_SECONDS) -> T:
        """What `work` returns, with no second try."""
        try:
            async with self.connection(seconds) as connection:
                return await work(connection)
        except FAILURES as error:
            raise self.error(error) from error

    async def open_ready(self) -> Connection:
        """A connection for the caller alone, who closes it, to a schema of this version. Raises what psycopg raises."""
        connection = await self.open_once()
        try:
            await self._prepare(connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _prepare(self, connection: Connection) -> None:
        if self._version != VERSION:
            await migrate(connection, self.address)
            self._version = VERSION
