"""Connections to procrastinate's database, its tables and ours, its job manager, and the conversion of orders to jobs.

The name of each procrastinate migration says whether it comes before its code is upgraded (`pre`: older code keeps
working) or after (`post`). The first process with newer code applies the `pre` ones; a `post` one waits until no
worker with older code is running.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, LiteralString, TypeVar

from procrastinate import App, PsycopgConnector
from procrastinate.exceptions import AlreadyEnqueued, ConnectorException, UniqueViolation
from procrastinate.jobs import Job
from procrastinate.manager import JobManager
from procrastinate.schema import SchemaManager
from psycopg import sql
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool
from typing_extensions import override

from perstack.dataclass import dataclass
from perstack.errors import DispatcherError, StorageError
from perstack.ports.dispatcher import Order
from perstack.support.work_items import priority_of, to_json, without_unstorable
from perstack_postgres.address import PostgresAddress
from perstack_postgres.connections import FAILURES, Connection, Pool, settings_of
from perstack_postgres.schema import APPLICATION, key_of
from perstack_procrastinate import statements

VERSION = 2  # version of our tables; lower ones were never released
_PRE = re.compile(r"\d+\.\d+\.\d+_\d+_pre_")
_MAX_LISTED = 5
_GONE_TIMEOUT_S = 60.0
"""Seconds without a heartbeat after which a worker counts as gone; if it comes back later it finds newer tables."""

# One index for each query of a claim: procrastinate's own index goes by number alone, so that with many waiting orders
# each claim would scan all of them. In `meta`, `engine` is the name of the latest applied procrastinate migration, and
# `floor` of the latest that older code does not work with.
_TABLES: LiteralString = """
CREATE INDEX perstack_by_lock ON procrastinate_jobs (lock);
CREATE INDEX perstack_by_time ON procrastinate_jobs (scheduled_at) WHERE status = 'todo';
CREATE TABLE queues (name text COLLATE "C" PRIMARY KEY, labels text[] NOT NULL, refused text[] NOT NULL,
    used timestamptz NOT NULL DEFAULT now());
CREATE INDEX queues_by_label ON queues USING gin (labels);
CREATE INDEX queues_by_refusal ON queues USING gin (refused);
INSERT INTO queues (name, labels, refused) VALUES ('perstack', '{}', '{}');
CREATE TABLE seats (id bigint PRIMARY KEY REFERENCES procrastinate_workers (id) ON DELETE CASCADE, name text NOT NULL,
    since timestamptz NOT NULL, labels jsonb NOT NULL, concurrency integer NOT NULL, engine text COLLATE "C");
CREATE TABLE meta (application text NOT NULL, version integer NOT NULL, engine text COLLATE "C" NOT NULL,
    floor text COLLATE "C" NOT NULL);
"""


def schema_of(address: PostgresAddress) -> str:
    """Return the schema's name. It differs from the storage's, so that both may use one address."""
    return f"{address.schema}_workers"


async def prepare(connection: Connection, address: PostgresAddress) -> None:
    """Create or migrate the schema and make it the search path. Raises DispatcherError and psycopg's errors."""
    if not await _is_current(connection, address):
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(%s, -1)", [key_of(schema_of(address))])
            if not await _is_current(connection, address):
                await _migrate(connection, address)
    await set_search_path(connection, address)


async def set_search_path(connection: Connection, address: PostgresAddress) -> None:
    """Set the connection's search path to the schema."""
    await connection.execute("SELECT set_config('search_path', %s, false)", [schema_of(address)])


async def _is_current(connection: Connection, address: PostgresAddress) -> bool:
    migration = await _read_migration(connection, address)
    return migration is not None and migration >= installed_version()


def installed_version() -> str:
    """Return the name of the latest migration of the installed procrastinate."""
    return _migrations()[-1].name


async def _read_migration(connection: Connection, address: PostgresAddress) -> str | None:
    """Return the latest applied procrastinate migration; None without tables. Raises DispatcherError."""
    schema = schema_of(address)
    # Queries the catalogue: a session may not see a table it has missed once until its next transaction.
    cursor = await connection.execute(
        "SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = 'meta'",
        [schema],
    )
    if await cursor.fetchone() is None:
        return None
    query = sql.SQL("SELECT application, version, engine, to_jsonb(m)->>'floor' FROM {}.meta AS m").format(
        sql.Identifier(schema)
    )
    row = await (await connection.execute(query)).fetchone()
    if row is None or row[0] != APPLICATION:
        raise DispatcherError(
            f"{address.display_url}: schema {schema} belongs to another program: name another with `?schema=`"
        )
    _, version, engine, floor = row
    if version < VERSION:
        raise DispatcherError(
            f"{address.display_url}: schema {schema} was made before the first release of perstack (schema {version});"
            " name another with `?schema=`"
        )
    if version > VERSION or floor > installed_version():
        raise DispatcherError(
            f"{address.display_url}: schema {schema} was made by a newer perstack or procrastinate; upgrade"
            " perstack[workers]"
        )
    return str(engine)


async def _migrate(connection: Connection, address: PostgresAddress) -> None:
    """Create the tables, or apply the migrations that running workers permit. Record the applied ones."""
    schema = sql.Identifier(schema_of(address))
    engine = await _read_migration(connection, address)
    if engine is None:
        cursor = await connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [schema_of(address)])
        if await cursor.fetchone() is None:
            await connection.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
    await connection.execute(sql.SQL("SET LOCAL search_path = {}").format(schema))
    if engine is None:
        await connection.execute(SchemaManager.get_schema())
        await connection.execute(_TABLES)
        await connection.execute("INSERT INTO meta VALUES (%s, %s, '', '')", [APPLICATION, VERSION])
        engine = installed_version()
    else:
        engine = await _apply_migrations(connection, address, engine)
    floor = max((step.name for step in _migrations() if not _PRE.match(step.name) and step.name <= engine), default="")
    await connection.execute(
        "UPDATE meta SET engine = greatest(engine, %s), floor = greatest(floor, %s)",
        [engine, floor],
    )


async def _apply_migrations(connection: Connection, address: PostgresAddress, engine: str) -> str:
    """Apply the migrations after `engine` that running workers permit. Return the latest applied one."""
    pending = [step for step in _migrations() if step.name > engine]
    while pending:
        step = pending[0]
        stale = [] if _PRE.match(step.name) else await _stale_sessions(connection, step.name)
        if stale and any(_PRE.match(later.name) for later in pending):
            raise DispatcherError(
                f"{address.display_url}: workers of an older procrastinate are running"
                f" ({', '.join(stale[:_MAX_LISTED])}), which the installed one cannot work with: stop these workers"
                " first"
            )
        if stale:
            break
        await connection.execute(step.read_bytes())
        engine = step.name
        pending = pending[1:]
    return engine


async def _stale_sessions(connection: Connection, name: str) -> list[str]:
    query = (
        "SELECT s.name FROM seats AS s JOIN procrastinate_workers AS w ON w.id = s.id"
        " WHERE w.last_heartbeat >= clock_timestamp() - make_interval(secs => %s)"
        " AND coalesce(s.engine, '') < %s ORDER BY s.name"
    )
    return [str(row[0]) for row in await (await connection.execute(query, [_GONE_TIMEOUT_S, name])).fetchall()]


def _migrations() -> list[Path]:
    return sorted(Path(SchemaManager.get_migrations_path()).glob("*.sql"))


# Conversion between orders and procrastinate jobs.
#
# The whole order is in the job's arguments. The job's other fields serve the selection: priority, scheduled time, a
# lock that one running job per id may have, a lock that one waiting job per id may have, and the queue. A queue has all
# orders with equal labels and refusals. Its name is a digest of them, because names of queues are short; the table
# `queues` lists its labels and refusals.

TASK = "perstack.job"
PLAIN = "perstack"  # queue of the orders without labels and refusals

_MAX_TIME_MS = 253_402_300_799_000  # end of the year 9999, the last that datetime supports, in milliseconds since 1970


@dataclass(frozen=True, slots=True)
class Queue:
    """Queue of an order."""

    name: str
    labels: tuple[str, ...]
    refused: tuple[str, ...]


def job_of(order: Order) -> Job:
    return Job(
        queue=queue_of(order).name,
        priority=priority_of(order),
        lock=order.key,
        queueing_lock=order.key,
        task_name=TASK,
        task_kwargs=to_json(order),
        scheduled_at=time_of(order.due),
    )


def queue_of(order: Order) -> Queue:
    labels, refused = labels_of(order.labels), tuple(sorted(without_unstorable(name) for name in order.refused))
    if not labels and not refused:
        return Queue(PLAIN, (), ())
    return Queue(sha256(json.dumps([labels, refused]).encode()).hexdigest()[:32], labels, refused)


def labels_of(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Encode labels as strings that are equal if and only if key and value are."""
    return tuple(
        sorted(json.dumps([without_unstorable(key), without_unstorable(value)]) for key, value in labels.items())
    )


def time_of(milliseconds: int) -> datetime | None:
    """Convert milliseconds since 1970 to a datetime; None for 0 or less (due at once)."""
    return datetime.fromtimestamp(min(milliseconds, _MAX_TIME_MS) / 1000, UTC) if milliseconds > 0 else None


T = TypeVar("T")

CONNECTIONS = 2  # connections per process; each worker has one more, for LISTEN

_CALL_TIMEOUT_S = 10.0  # maximum seconds for one call
_SUBMIT_ATTEMPTS = 10  # maximum attempts to queue an order while workers claim the waiting one


class Engine(Pool):
    """Pool of connections with the search path set, and procrastinate's job manager on it."""

    def __init__(self, address: PostgresAddress) -> None:
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
        """Return procrastinate's job manager. Await its calls in `call`, for retries and errors."""
        await self._app.open_async(self._lent)
        return self._app.job_manager

    async def call(self, work: Callable[[JobManager], Awaitable[T]]) -> T:
        """Return the result of a call to procrastinate, with retries. Raises DispatcherError."""

        async def attempt(_: bool) -> T:
            return await unwrap_errors(work(await self.manager()))

        return await self.with_retries(attempt)

    async def use(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Return the result of work on a connection, with retries. Raises DispatcherError."""

        async def attempt(_: bool) -> T:
            async with self.connection(_CALL_TIMEOUT_S) as connection:
                return await unwrap_errors(work(connection))

        return await self.with_retries(attempt)

    async def row(self, query: LiteralString, values: Mapping[str, object] | None = None) -> TupleRow | None:
        """Return a query's first row, with retries. Raises DispatcherError."""
        return await self.use(lambda connection: fetch_row(connection, query, values))

    async def row_once(self, query: LiteralString, values: Mapping[str, object] | None = None) -> TupleRow | None:
        """Return a query's first row without retries. Raises psycopg's errors."""
        async with self.connection(_CALL_TIMEOUT_S) as connection:
            return await fetch_row(connection, query, values)

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
                await fetch_row(
                    connection,
                    statements.KEEP_QUEUE,
                    {"name": queue.name, "labels": [*queue.labels], "refused": [*queue.refused]},
                )
            for _ in range(_SUBMIT_ATTEMPTS):
                try:
                    async with connection.transaction():
                        await manager.defer_job_async(job, connection=connection)
                except AlreadyEnqueued:
                    if await fetch_row(connection, statements.MERGE, merging) is not None:
                        return
                else:
                    return
        raise DispatcherError(f"{self.address.display_url}: Job {order.job_id} cannot be queued: try again")


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


async def fetch_row(
    connection: Connection, query: LiteralString, values: Mapping[str, object] | None = None
) -> TupleRow | None:
    cursor = await connection.execute(query, values)
    return await cursor.fetchone() if cursor.description else None


class _BorrowedPool(AsyncConnectionPool[Any]):
    """Adapter that gives procrastinate our connections as a psycopg pool.

    psycopg's own pool connects in a background task, which hides why a server cannot be reached, and waits longer.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.address.conninfo, kwargs=settings_of(engine.address), open=False)
        self._engine_pool = engine

    @asynccontextmanager
    async def connection(self, timeout: float | None = None) -> AsyncGenerator[Connection]:
        async with self._engine_pool.connection(timeout or _CALL_TIMEOUT_S) as connection:
            yield connection
