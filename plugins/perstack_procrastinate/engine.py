"""procrastinate at one database: its job manager, and connections for what that has no call for."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, LiteralString, TypeVar

from procrastinate import App, PsycopgConnector
from procrastinate.exceptions import AlreadyEnqueued, ConnectorException, UniqueViolation
from procrastinate.manager import JobManager
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool

from perstack.errors import DispatcherError, StorageError
from perstack.ports.dispatcher import Order
from perstack.ports.stored_orders import priority_of
from perstack_postgres.address import Address
from perstack_postgres.faults import FAILURES
from perstack_postgres.pool import Pool
from perstack_postgres.session import Connection, settings_of
from perstack_procrastinate import statements
from perstack_procrastinate.orders import PLAIN, job_of, queue_of, time_of
from perstack_procrastinate.schema import look_in, prepare

T = TypeVar("T")

CONNECTIONS = 2
"""Of one process; each seat has one more, on which it listens."""

_SECONDS = 10.0
"""How long one call may take."""
_ROUNDS = 10
"""How often an order may be claimed under the hands of who queues it, before something is wrong."""


class Engine(Pool):
    """The connections, each with the schema to look in, and procrastinate on them."""

    def __init__(self, address: Address) -> None:
        super().__init__(address, CONNECTIONS, DispatcherError)
        self._is_prepared = False
        self._lent = _Lent(self)
        self._app = App(connector=PsycopgConnector())

    async def open_once(self) -> Connection:
        """A connection, with no second try. Raises what psycopg raises, and DispatcherError."""
        try:
            connection = await super().open_once()
        except StorageError as error:
            raise DispatcherError(error.message) from None
        try:
            await (look_in if self._is_prepared else prepare)(connection, self.address)
            self._is_prepared = True
        except BaseException:
            await connection.close()
            raise
        return connection

    async def manager(self) -> JobManager:
        """procrastinate's. What it raises is put right by `attempted`."""
        await self._app.open_async(self._lent)
        return self._app.job_manager

    async def call(self, work: Callable[[JobManager], Awaitable[T]]) -> T:
        """What procrastinate returns, tried for a while. Raises DispatcherError."""

        async def attempt(_: bool) -> T:
            return await attempted(work(await self.manager()))

        return await self.patiently(attempt)

    async def use(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """What is done on a connection, tried for a while. Raises DispatcherError."""

        async def attempt(_: bool) -> T:
            async with self.connection(_SECONDS) as connection:
                return await attempted(work(connection))

        return await self.patiently(attempt)

    async def row(self, query: LiteralString, values: Mapping[str, object] | None = None) -> TupleRow | None:
        """The first row, tried for a while. Raises DispatcherError."""
        return await self.use(lambda connection: row_on(connection, query, values))

    async def row_once(self, query: LiteralString, values: Mapping[str, object] | None = None) -> TupleRow | None:
        """The first row. Raises what psycopg raises."""
        async with self.connection(_SECONDS) as connection:
            return await row_on(connection, query, values)

    async def submit_on(self, connection: Connection, order: Order) -> None:
        """Queue an order, or make the one that waits for its Job as early and as urgent."""
        manager, job, queue = await self.manager(), job_of(order), queue_of(order)
        merging = {
            "key": order.key,
            "priority": priority_of(order),
            "due": order.due,
            "time": time_of(order.due),
        }
        async with connection.transaction():
            if queue.name != PLAIN:
                await row_on(
                    connection,
                    statements.KEEP_QUEUE,
                    {"name": queue.name, "labels": [*queue.labels], "refused": [*queue.refused]},
                )
            for _ in range(_ROUNDS):
                try:
                    async with connection.transaction():
                        await manager.defer_job_async(job, connection=connection)
                except AlreadyEnqueued:
                    if await row_on(connection, statements.MERGE, merging) is not None:
                        return
                else:
                    return
        raise DispatcherError(f"{self.address.shown}: Job {order.job_id} cannot be queued: try again")


async def attempted(work: Awaitable[T]) -> T:
    """What procrastinate returns. Raises what was wrong below it."""
    try:
        return await work
    except UniqueViolation:
        raise
    except ConnectorException as error:
        if isinstance(error.__cause__, FAILURES):
            raise error.__cause__ from None
        raise


async def row_on(
    connection: Connection, query: LiteralString, values: Mapping[str, object] | None = None
) -> TupleRow | None:
    """The first row of what is asked."""
    cursor = await connection.execute(query, values)
    return await cursor.fetchone() if cursor.description else None


class _Lent(AsyncConnectionPool[Any]):
    """Our connections in the form that procrastinate takes.

    A pool of psycopg's own makes them in a task of its own, from which nobody learns why a server cannot be reached,
    and waits longer and longer between two tries.
    """

    def __init__(self, ours: Engine) -> None:
        super().__init__(ours.address.conninfo, kwargs=settings_of(ours.address), open=False)
        self._ours = ours

    @asynccontextmanager
    async def connection(self, timeout: float | None = None) -> AsyncGenerator[Connection]:
        """One in turn."""
        async with self._ours.connection(timeout or _SECONDS) as connection:
            yield connection
