"""Connections to the server: timeouts, keep-alives, session settings, a pool with retries, pooler checks, errors."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow

from perstack.errors import PerstackError, StorageError
from perstack.system.concurrency import shield_until_done
from perstack_postgres.address import PostgresAddress, without_secrets
from perstack_postgres.schema import OLDEST_SERVER, check_tables, create_tables

_TRANSIENT_STATES = {"57P01", "57P02", "57P03", "57P05", "25P03", "53300", "40001", "40P01", "55P03"}
"""SQLSTATEs of transient failures: shutdown or start, idle timeout, no free connection, deadlock, locked table."""

_REMEDIES = {
    "42501": "give the role its rights on the schema (docs/storages.md)",
    "53100": "the server's disk is full: free some space, then resume",
    "57014": "the server exceeded its time limit: find out what keeps it busy",
    "55P03": "another process holds a lock: try again later",
    "25006": "this server accepts no writes: name the primary",
    "3D000": "create the database, or name another in `{setting}`",
}


_POOLING = "pooling mode"
_PERMANENT_TEXTS = (_POOLING, "certificate", "does not support SSL")
"""Texts of permanent failures that carry the SQLSTATE of a lost connection or none."""

_REFUSAL_TEXTS = ("starting up", "not yet accepting", "shutting down", "too many clients", "connection slots")

FAILURES = (psycopg.Error, TimeoutError, OSError)  # exceptions of a failed attempt


def is_transient(error: BaseException) -> bool:
    """Return whether the operation may succeed soon on another connection."""
    if isinstance(error, TimeoutError | OSError):
        return True
    if isinstance(error, psycopg.Error) and not any(
        permanent_text in str(error) for permanent_text in _PERMANENT_TEXTS
    ):
        code = error.sqlstate
        return (
            code in _TRANSIENT_STATES or (code or "").startswith("08") or (code is None and _is_connection_error(error))
        )
    return False


def is_busy_server(error: BaseException) -> bool:
    """Return whether a server refused the connection because it is starting, stopping or busy."""
    return any(refusal_text in str(error) for refusal_text in _REFUSAL_TEXTS)


def _is_connection_error(error: psycopg.Error) -> bool:
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)


def reason(address: PostgresAddress, error: BaseException) -> str:
    """Return the server's message and the remedy on one line."""
    if isinstance(error, TimeoutError):
        return "no answer in time: check that the server runs and can be reached"
    code = error.sqlstate if isinstance(error, psycopg.Error) else None
    text = _error_text(address, error)
    if code in _REMEDIES:
        return f"{text}: {_REMEDIES[code].format(setting=address.setting)}"
    if code is None or code.startswith(("08", "28")):
        return f"{text}: {_connection_remedy(text).format(setting=address.setting)}"
    return text


def _error_text(address: PostgresAddress, error: BaseException) -> str:
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    text = without_secrets(address, primary or str(error) or type(error).__name__)
    return text.removeprefix("connection failed: ").removesuffix(".")[:500]


def _connection_remedy(text: str) -> str:
    if _POOLING in text:
        return "set `pool_mode = session` (pgbouncer) for this database, or connect to the server directly"
    if "password" in text or "authentication" in text or "pg_hba" in text:
        return "give its password with a variable in `{setting}`, PGPASSWORD or ~/.pgpass"
    if "certificate" in text or "SSL" in text:
        return "see `sslmode` and `sslrootcert` in docs/storages.md"
    if "does not exist" in text:
        return "create it, or name another in `{setting}`"
    return "check that the server runs and can be reached"


# psycopg logs lost connections. Our errors report them where they matter; unhandled, the log would go to stderr.
logging.getLogger("psycopg").addHandler(logging.NullHandler())

Connection: TypeAlias = AsyncConnection[TupleRow]

CONNECT_TIMEOUT_S = 10
STATEMENT_TIMEOUT_S = 30  # maximum seconds for one statement on the server, including waiting for locks

_LOCK_TIMEOUT_S = 10
_POOLER_CHECK_ROUNDS = 3  # rounds of the pooler check before a pooler is known to keep sessions

_DEFAULTS: dict[str, Any] = {
    "application_name": "perstack",
    "connect_timeout": CONNECT_TIMEOUT_S,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}

# An append must be durable when it returns, so synchronous_commit = off in the server's settings is overridden. The
# schema may not exist yet: PostgreSQL permits that in a search path.
_START_SESSION = sql.SQL(
    "SELECT set_config('statement_timeout', {statement}, false), set_config('lock_timeout', {lock}, false),"
    " set_config('idle_in_transaction_session_timeout', {statement}, false),"
    " set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') = 'off' THEN 'on'"
    " ELSE current_setting('synchronous_commit') END, false),"
    " set_config('search_path', %s, false),"
    " current_setting('server_version_num')::int, pg_backend_pid()"
).format(statement=f"{STATEMENT_TIMEOUT_S}s", lock=f"{_LOCK_TIMEOUT_S}s")


async def connect(address: PostgresAddress) -> Connection:
    """Open a connection. Raises psycopg's errors, TimeoutError, and StorageError for an unsuitable server."""
    connection = await _connect(address)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await connection.set_autocommit(True)
            await _start_session(connection, address)
    except BaseException:
        await connection.close()
        raise
    return connection


def settings_of(address: PostgresAddress) -> dict[str, Any]:
    """Return the timeouts and keep-alive settings of a connection that the address does not set."""
    return {name: value for name, value in _DEFAULTS.items() if name not in address.setting_names}


async def _connect(address: PostgresAddress) -> Connection:
    try:
        # libpq applies the timeout to each host of the address
        return await AsyncConnection.connect(address.conninfo, **settings_of(address))
    except asyncio.CancelledError as error:
        # a frame of the traceback holds the only reference to the connection
        traceback.clear_frames(error.__traceback__)
        raise


async def _start_session(connection: Connection, address: PostgresAddress) -> None:
    """Apply the session settings. Raises StorageError for an old server or a pooler in transaction mode."""
    row = await (await connection.execute(_START_SESSION, [f'"{address.schema}"'])).fetchone()
    version, pid = (0, 0) if row is None else (int(row[-2]), int(row[-1]))
    if version < OLDEST_SERVER:
        raise StorageError(f"{address.display_url}: PostgreSQL {version // 10000} is too old: use 13 or newer")
    if connection.info.backend_pid != pid:
        await _check_pooler(connection, address)


async def _check_pooler(connection: Connection, address: PostgresAddress) -> None:
    """Raise StorageError behind a pooler that assigns a session per transaction.

    Such a pooler gives the session of a first connection to a second one while the first may not use it.
    """
    other = await _connect(address)
    try:
        for _ in range(_POOLER_CHECK_ROUNDS):
            own_pid = await _backend_pid(connection)
            other_pid = await _backend_pid(other)  # an open transaction keeps its session
            if own_pid == other_pid or await _backend_pid(connection) != own_pid:
                raise StorageError(
                    f"{address.display_url}: the connection goes through a pooler in transaction mode, which breaks"
                    " locks and notifications: set `pool_mode = session` (pgbouncer) for this database, or connect"
                    " to the server directly"
                )
            await other.rollback()
    finally:
        await other.close()


async def _backend_pid(connection: Connection) -> int:
    row = await (await connection.execute("SELECT pg_backend_pid()")).fetchone()
    return 0 if row is None else int(row[0])


def is_idle(connection: Connection) -> bool:
    """Return whether the connection is open and no transaction is active on it."""
    return not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE


T = TypeVar("T")

# seconds of retries while a server that answered before is unreachable, such as during a restart
RETRY_TIMEOUT_S = 30.0

_MIN_PAUSE_S, _MAX_PAUSE_S = 0.02, 1.0

_INHERITED: list[object] = []  # connections inherited across a fork: this process must neither use nor close them


class Pool:
    """Pool of connections to one database. It connects on first use, and again in a forked child."""

    def __init__(self, address: PostgresAddress, max_connections: int, failure: Callable[[str], PerstackError]) -> None:
        """Allow `max_connections` connections. `failure` makes the exception for a message."""
        self.address = address
        self._max_connections = max_connections
        self._failure = failure
        self._idle: list[Connection] = []
        self._slots: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None
        self._process = os.getpid()
        self._has_answered = False

    def error(self, error: BaseException) -> PerstackError:
        """Return the exception for a failure: the address, the server's message and the remedy, on one line."""
        return self._failure(f"{self.address.display_url}: {reason(self.address, error)}")

    async def close(self) -> None:
        """Close the idle connections."""
        self._leave_connections_to_parent()
        await self._close_idle()

    async def with_retries(self, attempt: Callable[[bool], Awaitable[T]]) -> T:
        """Return the result of `attempt`, called with True for a retry, within RETRY_TIMEOUT_S of transient failures.

        A server that never answered is not waited for, unless it is starting up or busy. Raises what `failure` returns.
        """
        deadline, pause, is_again = time.monotonic() + RETRY_TIMEOUT_S, 0.0, False
        while True:
            try:
                return await attempt(is_again)
            except FAILURES as error:
                may_succeed = is_transient(error) and (self._has_answered or is_busy_server(error))
                if not may_succeed or time.monotonic() + pause > deadline:
                    raise self.error(error) from error
            await self._close_idle()  # other idle connections are probably lost too
            await asyncio.sleep(pause)
            pause, is_again = min(2 * pause + _MIN_PAUSE_S, _MAX_PAUSE_S), True

    @asynccontextmanager
    async def connection(self, seconds: float) -> AsyncGenerator[Connection]:
        """Borrow a connection for at most `seconds`. Raises psycopg's errors and TimeoutError."""
        async with self._connection_slots():
            self._leave_connections_to_parent()
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
        """Open a connection without retries. Raises psycopg's errors."""
        connection = await connect(self.address)
        self._has_answered = True
        return connection

    def _connection_slots(self) -> asyncio.Semaphore:
        """Return the semaphore that limits the pool's connections in this event loop."""
        loop = asyncio.get_running_loop()
        if self._slots is None or self._slots[0] is not loop:
            self._slots = (loop, asyncio.Semaphore(self._max_connections))
        return self._slots[1]

    def _leave_connections_to_parent(self) -> None:
        """After a fork, forget the parent's connections without closing them."""
        if self._process != os.getpid():
            _INHERITED.extend(self._idle)
            self._idle, self._process = [], os.getpid()

    async def _close_idle(self) -> None:
        while self._idle:
            await self._idle.pop().close()


_MAX_POOLED = 8  # maximum pooled connections per process; leases and notifications have their own

_READ_TIMEOUT_S = 120.0
_WRITE_TIMEOUT_S = STATEMENT_TIMEOUT_S + 5.0
_BYTES_PER_SECOND = 500_000  # assumed throughput of a slow network, which extends the timeout of large writes


class Connections(Pool):
    """Pool of a storage. Creates the schema before the first write."""

    def __init__(self, address: PostgresAddress) -> None:
        super().__init__(address, _MAX_POOLED, StorageError)
        self._has_tables = False

    async def read(self, work: Callable[[Connection], Awaitable[T]], default: T) -> T:
        """Return the result of `work`, or `default` if the schema does not exist. Raises StorageError.

        A cancellation abandons the read.
        """

        async def reading(_: bool) -> T:
            async with self.connection(_READ_TIMEOUT_S) as connection:
                self._has_tables = self._has_tables or await check_tables(connection, self.address)
                return await work(connection) if self._has_tables else default

        return await self.with_retries(reading)

    async def write(self, work: Callable[[Connection, bool], Awaitable[T]], size: int = 0) -> T:
        """Return the result of `work`, retried after transient failures; a cancellation waits for its end.

        On a retry the second argument of `work` is True: the answer may have been lost after the commit, so `work` must
        find out whether that write is in the database. `size` is in bytes.
        """

        async def writing(is_again: bool) -> T:
            async with self.connection(_WRITE_TIMEOUT_S + size / _BYTES_PER_SECOND) as connection:
                await self._ensure_tables(connection)
                return await work(connection, is_again)

        return await shield_until_done(self.with_retries(writing))

    async def once(self, work: Callable[[Connection], Awaitable[T]], seconds: float = _READ_TIMEOUT_S) -> T:
        """Return the result of `work` without retries."""
        try:
            async with self.connection(seconds) as connection:
                return await work(connection)
        except FAILURES as error:
            raise self.error(error) from error

    async def open_ready(self) -> Connection:
        """Open a connection to a schema with its tables, which the caller must close. Raises psycopg's errors."""
        connection = await self.open_once()
        try:
            await self._ensure_tables(connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _ensure_tables(self, connection: Connection) -> None:
        if not self._has_tables:
            await create_tables(connection, self.address)
            self._has_tables = True
