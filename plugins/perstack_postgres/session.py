"""Opening one connection: deadlines, keep-alives, what the server is told of us, and whether a pooler is between."""

from __future__ import annotations

import asyncio
import logging
import traceback
from typing import Any, TypeAlias

from psycopg import AsyncConnection, sql
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow

from perstack.errors import StorageError
from perstack_postgres.address import Address
from perstack_postgres.schema import OLDEST_SERVER

# What it logs of a connection that broke is said in our errors, if it matters; by itself it would end up in stderr.
logging.getLogger("psycopg").addHandler(logging.NullHandler())

Connection: TypeAlias = AsyncConnection[TupleRow]

CONNECT_SECONDS = 10
STATEMENT_SECONDS = 30
"""How long the server works on one statement, a lock included, before it gives up."""

_LOCK_SECONDS = 10
_ROUNDS = 3
"""How often a pooler is looked at before it counts as one that keeps sessions."""

_DEFAULTS: dict[str, Any] = {
    "application_name": "perstack",
    "connect_timeout": CONNECT_SECONDS,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}

# What a commit promises is ours to say: one that the server's settings leave to chance is made whole.
_BEGIN = sql.SQL(
    "SELECT set_config('statement_timeout', {statement}, false), set_config('lock_timeout', {lock}, false),"
    " set_config('idle_in_transaction_session_timeout', {statement}, false),"
    " set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') = 'off' THEN 'on'"
    " ELSE current_setting('synchronous_commit') END, false),"
    " current_setting('server_version_num')::int, pg_backend_pid()"
).format(statement=f"{STATEMENT_SECONDS}s", lock=f"{_LOCK_SECONDS}s")


async def connect(address: Address) -> Connection:
    """A new connection. Raises psycopg's errors, TimeoutError, and StorageError for a server that will not do."""
    connection = await _connect(address)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await connection.set_autocommit(True)
            await _begin(connection, address)
    except BaseException:
        await connection.close()
        raise
    return connection


def settings_of(address: Address) -> dict[str, Any]:
    """Deadlines and keep-alives of a connection, as far as the address does not name them."""
    return {name: value for name, value in _DEFAULTS.items() if name not in address.given}


async def _connect(address: Address) -> Connection:
    try:
        # libpq gives each host that it names its time
        return await AsyncConnection.connect(address.conninfo, **settings_of(address))
    except asyncio.CancelledError as error:
        traceback.clear_frames(error.__traceback__)  # one of them has the connection, and nobody else
        raise


async def _begin(connection: Connection, address: Address) -> None:
    row = await (await connection.execute(_BEGIN)).fetchone()
    version, pid = (0, 0) if row is None else (int(row[-2]), int(row[-1]))
    if version < OLDEST_SERVER:
        raise StorageError(f"{address.shown}: PostgreSQL {version // 10000} is too old: use 13 or newer")
    if connection.info.backend_pid != pid:
        await _check_pooler(connection, address)


async def _check_pooler(connection: Connection, address: Address) -> None:
    """Raises StorageError behind a pooler that gives each transaction another session.

    The session that this connection had is asked for by a second one while the first may not use it: a pooler that
    keeps sessions cannot give it.
    """
    other = await _connect(address)
    try:
        for _ in range(_ROUNDS):
            mine = await _pid(connection)
            theirs = await _pid(other)  # its transaction stays open, and keeps its session
            if mine == theirs or await _pid(connection) != mine:
                raise StorageError(
                    f"{address.shown}: between is a pooler in transaction mode, which breaks locks and notices:"
                    " set `pool_mode = session` (pgbouncer) for this database, or connect to the server itself"
                )
            await other.rollback()
    finally:
        await other.close()


async def _pid(connection: Connection) -> int:
    row = await (await connection.execute("SELECT pg_backend_pid()")).fetchone()
    return 0 if row is None else int(row[0])


def is_idle(connection: Connection) -> bool:
    """Whether it can be used for something else: it is there, and nothing is under way on it."""
    return not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE
