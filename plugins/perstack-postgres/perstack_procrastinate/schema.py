"""Tables of procrastinate, made by its migrations, and our own next to them.

Migrations go forward only, one at a time.

The name of each procrastinate migration says whether it comes before its code is upgraded (`pre`: older code keeps
working) or after (`post`). The first process with newer code applies the `pre` migrations; a `post` one waits until no
worker with older code is running.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import LiteralString

from procrastinate.schema import SchemaManager
from psycopg import sql

from perstack.errors import DispatcherError
from perstack_postgres.address import PostgresAddress
from perstack_postgres.connections import Connection
from perstack_postgres.schema import APPLICATION, key_of

VERSION = 2  # version of our tables. Lower ones were never released.
_PRE = re.compile(r"\d+\.\d+\.\d+_\d+_pre_")
_MAX_NAMED = 5
_GONE_AFTER_S = 60.0
"""Seconds without a heartbeat after which a worker counts as gone; if it comes back later it finds newer tables."""

# One index for each query of a claim: procrastinate's own index goes by number alone, so that with many waiting orders
# each claim would scan all of them. In `meta`, `engine` is the name of the latest applied procrastinate migration, and
# `floor` of the latest that older code does not
# work with.
_OURS: LiteralString = """
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
    engine = await _engine(connection, address)
    return engine is not None and engine >= engine_here()


def engine_here() -> str:
    """Return the name of the latest migration of the installed procrastinate."""
    return _migrations()[-1].name


async def _engine(connection: Connection, address: PostgresAddress) -> str | None:
    """Return the latest applied procrastinate migration; None without tables. Raises DispatcherError."""
    schema = schema_of(address)
    # Queries the catalogue: a session may not see a table it has missed once until its next transaction.
    there = await connection.execute(
        "SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = 'meta'",
        [schema],
    )
    if await there.fetchone() is None:
        return None
    query = sql.SQL("SELECT application, version, engine, to_jsonb(m)->>'floor' FROM {}.meta AS m").format(
        sql.Identifier(schema)
    )
    row = await (await connection.execute(query)).fetchone()
    if row is None or row[0] != APPLICATION:
        raise DispatcherError(f"{address.shown}: schema {schema} is of another program; name another by `?schema=`")
    _, version, engine, floor = row
    if version < VERSION:
        raise DispatcherError(
            f"{address.shown}: schema {schema} was made before the first release of perstack (schema {version});"
            " name another by `?schema=`"
        )
    if version > VERSION or floor > engine_here():
        raise DispatcherError(
            f"{address.shown}: schema {schema} was made by a newer perstack or procrastinate; upgrade perstack[workers]"
        )
    return str(engine)


async def _migrate(connection: Connection, address: PostgresAddress) -> None:
    schema = sql.Identifier(schema_of(address))
    engine = await _engine(connection, address)
    if engine is None:
        known = await connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [schema_of(address)])
        if await known.fetchone() is None:
            await connection.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
    await connection.execute(sql.SQL("SET LOCAL search_path = {}").format(schema))
    if engine is None:
        await connection.execute(SchemaManager.get_schema())
        await connection.execute(_OURS)
        await connection.execute("INSERT INTO meta VALUES (%s, %s, '', '')", [APPLICATION, VERSION])
        engine = engine_here()
    else:
        engine = await _apply_migrations(connection, address, engine)
    floor = max((step.name for step in _migrations() if not _PRE.match(step.name) and step.name <= engine), default="")
    await connection.execute(
        "UPDATE meta SET engine = greatest(engine, %s), floor = greatest(floor, %s)",
        [engine, floor],
    )


async def _apply_migrations(connection: Connection, address: PostgresAddress, engine: str) -> str:
    """Apply the migrations after `engine` that running workers permit. Return the latest applied one."""
    left = [step for step in _migrations() if step.name > engine]
    while left:
        step = left[0]
        older = [] if _PRE.match(step.name) else await _older(connection, step.name)
        if older and any(_PRE.match(later.name) for later in left):
            raise DispatcherError(
                f"{address.shown}: workers of an older procrastinate are at work ({', '.join(older[:_MAX_NAMED])}),"
                " and it does not work beside the one that is installed here: let these leave first"
            )
        if older:
            break
        await connection.execute(step.read_bytes())
        engine = step.name
        left = left[1:]
    return engine


async def _older(connection: Connection, name: str) -> list[str]:
    query = (
        "SELECT s.name FROM seats AS s JOIN procrastinate_workers AS w ON w.id = s.id"
        " WHERE w.last_heartbeat >= clock_timestamp() - make_interval(secs => %s)"
        " AND coalesce(s.engine, '') < %s ORDER BY s.name"
    )
    return [str(row[0]) for row in await (await connection.execute(query, [_GONE_AFTER_S, name])).fetchall()]


def _migrations() -> list[Path]:
    return sorted(Path(SchemaManager.get_migrations_path()).glob("*.sql"))
