"""The tables: procrastinate's own, made by its migrations, and two of ours beside them. Forward only, one at a time.

procrastinate says in the name of each migration whether it comes before its code is upgraded (`pre`: the older code
works on) or after (`post`). So the first process of a newer one makes what is `pre`, and what is `post` waits until no
worker is at work whose code is older.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import LiteralString

from procrastinate.schema import SchemaManager
from psycopg import sql

from perstack.dataclass import dataclass
from perstack.errors import DispatcherError
from perstack_postgres.address import Address
from perstack_postgres.schema import APPLICATION, key_of
from perstack_postgres.session import Connection

VERSION = 2
_PRE = re.compile(r"\d+\.\d+\.\d+_\d+_pre_")
_MOST_NAMED = 5
_GONE_AFTER = 60.0
"""Seconds after which a worker that is not heard counts as gone: one that comes back later finds newer tables."""

# One index for each question that is asked at each claim: procrastinate's own go by number alone, and with many orders
# that wait each claim would look at all of them.
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

_TO_2: LiteralString = """
ALTER TABLE seats ADD COLUMN engine text COLLATE "C";
ALTER TABLE meta ADD COLUMN floor text COLLATE "C" NOT NULL DEFAULT '';
"""


@dataclass(frozen=True, slots=True)
class Found:
    """What the tables are."""

    version: int
    """Of ours."""
    engine: str
    """The latest of procrastinate's migrations that was made."""
    floor: str
    """The latest of those that older code does not work with."""


def schema_of(address: Address) -> str:
    """Beside the storage's, so that both may be at one address."""
    return f"{address.schema}_workers"


async def prepare(connection: Connection, address: Address) -> None:
    """Have the connection look in the schema, which is made, or brought to this version, if need be.

    Raises DispatcherError for one of a newer version, and what psycopg raises.
    """
    if not await _is_current(connection, address):
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(%s, -1)", [key_of(schema_of(address))])
            if not await _is_current(connection, address):
                await _migrate(connection, address)
    await look_in(connection, address)


async def look_in(connection: Connection, address: Address) -> None:
    """Where its statements find their tables."""
    await connection.execute("SELECT set_config('search_path', %s, false)", [schema_of(address)])


async def _is_current(connection: Connection, address: Address) -> bool:
    found = await _found(connection, address)
    return found is not None and found.version == VERSION and found.engine >= engine_here()


def engine_here() -> str:
    """The latest migration of the procrastinate that is installed."""
    return _migrations()[-1].name


async def _found(connection: Connection, address: Address) -> Found | None:
    """None if there are none. Raises DispatcherError for those of a newer version, or of another program."""
    schema = schema_of(address)
    # of the catalogue itself: what a session has found missing once, it may not see until its next transaction
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
    found = Found(row[1], row[2], row[3] or "")  # the first version had no floor
    if found.version > VERSION or found.floor > engine_here():
        raise DispatcherError(
            f"{address.shown}: schema {schema} was made by a newer perstack or procrastinate; upgrade perstack[workers]"
        )
    return found


async def _migrate(connection: Connection, address: Address) -> None:
    schema = sql.Identifier(schema_of(address))
    found = await _found(connection, address)
    if found is None:
        known = await connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [schema_of(address)])
        if await known.fetchone() is None:
            await connection.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
    await connection.execute(sql.SQL("SET LOCAL search_path = {}").format(schema))
    if found is None:
        await connection.execute(SchemaManager.get_schema())
        await connection.execute(_OURS)
        await connection.execute("INSERT INTO meta VALUES (%s, %s, '', '')", [APPLICATION, VERSION])
        engine = engine_here()
    else:
        if found.version < VERSION:
            await connection.execute(_TO_2)
        engine = await _brought_on(connection, address, found.engine)
    floor = max((step.name for step in _migrations() if not _PRE.match(step.name) and step.name <= engine), default="")
    await connection.execute(
        "UPDATE meta SET version = %s, engine = greatest(engine, %s), floor = greatest(floor, %s)",
        [VERSION, engine, floor],
    )


async def _brought_on(connection: Connection, address: Address, engine: str) -> str:
    """Make the migrations after one, as far as workers of older code let it; the latest that was made then.

    Raises DispatcherError where the code that is installed needs more.
    """
    left = [step for step in _migrations() if step.name > engine]
    while left:
        step = left[0]
        older = [] if _PRE.match(step.name) else await _older(connection, step.name)
        if older and any(_PRE.match(later.name) for later in left):
            raise DispatcherError(
                f"{address.shown}: workers of an older procrastinate are at work ({', '.join(older[:_MOST_NAMED])}),"
                " and it does not work beside the one that is installed here: let these leave first"
            )
        if older:
            break
        await connection.execute(step.read_bytes())
        engine = step.name
        left = left[1:]
    return engine


async def _older(connection: Connection, name: str) -> list[str]:
    """The workers at work whose code does not know a migration."""
    query = (
        "SELECT s.name FROM seats AS s JOIN procrastinate_workers AS w ON w.id = s.id"
        " WHERE w.last_heartbeat >= clock_timestamp() - make_interval(secs => %s)"
        " AND coalesce(s.engine, '') < %s ORDER BY s.name"
    )
    return [str(row[0]) for row in await (await connection.execute(query, [_GONE_AFTER, name])).fetchall()]


def _migrations() -> list[Path]:
    """Those of the procrastinate that is installed, oldest first."""
    return sorted(Path(SchemaManager.get_migrations_path()).glob("*.sql"))
