"""Connections to procrastinate's database, its job manager, and the conversion of orders to its jobs."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, LiteralString, TypeVar

from procrastinate import App, PsycopgConnector
from procrastinate.exceptions import AlreadyEnqueued, ConnectorException, UniqueViolation
from procrastinate.jobs import Job
from procrastinate.manager import JobManager
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool
from typing_extensions import override

from perstack.dataclass import dataclass
from perstack.errors import DispatcherError, StorageError
from perstack.ports.dispatcher import Order
from perstack.support.work_items import priority_of, storable, stored
from perstack_postgres.address import PostgresAddress
from perstack_postgres.connections import FAILURES, Connection, Pool, settings_of
from perstack_procrastinate import statements
from perstack_procrastinate.schema import prepare, set_search_path

# Conversion between orders and procrastinate jobs.
#
# The whole order is in the job's arguments. The job's other fields serve the selection: priority, scheduled time, a
# lock that one running job per id may have, a lock that one waiting job per id may have, and the queue. A queue has all
# orders with equal labels and refusals. Its name is a digest of them, because names of queues are short; the table
# `queues` lists its labels and refusals.

TASK = "perstack.job"
PLAIN = "perstack"  # queue of the orders without labels and refusals

_MAX_TIME_MS = 253_402_300_799_000  # end of the year 9999 in milliseconds, the last year that datetime supports


@dataclass(frozen=True, slots=True)
class Queue:
    """Queue of an order."""

    name: str
    labels: tuple[str, ...]
    refused: tuple[str, ...]


def job_of(order: Order) -> Job:
    """Return the procrastinate job for an order."""
    return Job(
        queue=queue_of(order).name,
        priority=priority_of(order),
        lock=order.key,
        queueing_lock=order.key,
        task_name=TASK,
        task_kwargs=stored(order),
        scheduled_at=time_of(order.due),
    )


def queue_of(order: Order) -> Queue:
    """Return the queue for an order."""
    labels, refused = labels_of(order.labels), tuple(sorted(storable(name) for name in order.refused))
    if not labels and not refused:
        return Queue(PLAIN, (), ())
    return Queue(sha256(json.dumps([labels, refused]).encode()).hexdigest()[:32], labels, refused)


def labels_of(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Encode labels as strings that are equal if and only if key and value are."""
    return tuple(sorted(json.dumps([storable(key), storable(value)]) for key, value in labels.items()))


def time_of(milliseconds: int) -> datetime | None:
    """Convert milliseconds since 1970 to a datetime; None for 0 or less (due at once)."""
    return datetime.fromtimestamp(min(milliseconds, _MAX_TIME_MS) / 1000, UTC) if milliseconds > 0 else None


T = TypeVar("T")

CONNECTIONS = 2  # connections per process; each worker has one more, for LISTEN

_CALL_TIMEOUT_S = 10.0  # seconds that one call may take
_SUBMIT_ATTEMPTS = 10  # attempts to queue an order while workers claim the waiting one, before that is an error


class Engine(Pool):
    """Pool of connections with the search path set, and procrastinate's job manager on it."""

    def __init__(self, address: PostgresAddress) -> None:
        """Connect to nothing yet."""
        super().__init__(address, CONNECTIONS, DispatcherError)
        self._is_prepared = False
        self._lent = _BorrowedPool(self)
        self._app = App(connector=PsycopgConnector())

    @override
    async def open_once(self) -> Connection:
        try:
            connection = await super().open_once()
        except StorageError as error:
            raise DispatcherError(error.message) from None
        try:
            await (set_search_path if self._is_prepared else prepare)(connection, self.address)
            self._is_prepared = True
        except BaseException:
            await connection.close()
            raise
        return connection

    async def manager(self) -> JobManager:
        """Return procrastinate's job manager. Await its calls through `attempted`, which unwraps their errors."""
        await self._app.open_async(self._lent)
        return self._app.job_manager

    async def call(self, work: Callable[[JobManager], Awaitable[T]]) -> T:
        """Return the result of a call to procrastinate, with retries. Raises DispatcherError."""

        async def attempt(_: bool) -> T:
            return await unwrap_errors(work(await self.manager()))

        return await self.patiently(attempt)

    async def use(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Return the result of work on a connection, with retries. Raises DispatcherError."""

        async def attempt(_: bool) -> T:
            async with self.connection(_CALL_TIMEOUT_S) as connection:
                return await unwrap_errors(work(connection))

        return await self.patiently(attempt)

    async def row(self, query: LiteralString, values: Mapping[str, object] | None = None) -> TupleRow | None:
        """Return a query's first row, with retries. Raises DispatcherError."""
        return await self.use(lambda connection: row_on(connection, query, values))

    async def row_once(self, query: LiteralString, values: Mapping[str, object] | None = None) -> TupleRow | None:
        """Return a query's first row without retries. Raises psycopg's errors."""
        async with self.connection(_CALL_TIMEOUT_S) as connection:
            return await row_on(connection, query, values)

    async def submit_on(self, connection: Connection, order: Order) -> None:
        """Queue an order, or merge it into the waiting one of its key, which becomes as early and as urgent."""
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
            for _ in range(_SUBMIT_ATTEMPTS):
                try:
                    async with connection.transaction():
                        await manager.defer_job_async(job, connection=connection)
                except AlreadyEnqueued:
                    if await row_on(connection, statements.MERGE, merging) is not None:
                        return
                else:
                    return
        raise DispatcherError(f"{self.address.shown}: Job {order.job_id} cannot be queued: try again")


async def unwrap_errors(work: Awaitable[T]) -> T:
    """Await a call to procrastinate. Raises the driver's error in place of procrastinate's wrapper."""
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
    """Return a query's first row; None without one."""
    cursor = await connection.execute(query, values)
    return await cursor.fetchone() if cursor.description else None


class _BorrowedPool(AsyncConnectionPool[Any]):
    """Adapter that gives procrastinate our connections as a psycopg pool.

    psycopg's own pool connects in a background task, which hides why a server cannot be reached, and waits longer.
    """

    def __init__(self, ours: Engine) -> None:
        """Borrow connections from `ours`."""
        super().__init__(ours.address.conninfo, kwargs=settings_of(ours.address), open=False)
        self._ours = ours

    @asynccontextmanager
    async def connection(self, timeout: float | None = None) -> AsyncGenerator[Connection]:
        """Borrow a connection."""
        async with self._ours.connection(timeout or _CALL_TIMEOUT_S) as connection:
            yield connection
