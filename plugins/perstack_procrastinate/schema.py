"""The tables: procrastinate's own, made by its migrations, and two of ours beside them. Forward only, one at a time."""

from __future__ import annotations

from pathlib import Path
from typing import LiteralString

from procrastinate.schema import SchemaManager
from psycopg import sql

from perstack.errors import DispatcherError
from perstack_postgres.address import Address
from perstack_postgres.schema import APPLICATION, key_of
from perstack_postgres.session import Connection

VERSION = 1

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
    since timestamptz NOT NULL, labels jsonb NOT NULL, concurrency integer NOT NULL);
CREATE TABLE meta (application text NOT NULL, version integer NOT NULL, engine text COLLATE "C" NOT NULL);
"""


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
    return await _versions(connection, address) == (VERSION, _migrations()[-1].name)


async def _versions(connection: Connection, address: Address) -> tuple[int, str] | None:
    """Of ours and of procrastinate's tables; None if there are none."""
    schema = schema_of(address)
    # of the catalogue itself: what a session has found missing once, it may not see until its next transaction
    found = await connection.execute(
        "SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = 'meta'",
        [schema],
    )
    if await found.fetchone() is None:
        return None
    query = sql.SQL("SELECT application, version, engine FROM {}.meta").format(sql.Identifier(schema))
    row = await (await connection.execute(query)).fetchone()
    if row is None or row[0] != APPLICATION:
        raise DispatcherError(f"{address.shown}: schema {schema} is of another program; name another by `?schema=`")
    if row[1] > VERSION or row[2] > _migrations()[-1].name:
        raise DispatcherError(
            f"{address.shown}: schema {schema} was made by a newer perstack or procrastinate; upgrade perstack[workers]"
        )
    return row[1], row[2]


async def _migrate(connection: Connection, address: Address) -> None:
    schema = sql.Identifier(schema_of(address))
    versions = await _versions(connection, address)
    if versions is None:
        found = await connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [schema_of(address)])
        if await found.fetchone() is None:
            await connection.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
    await connection.execute(sql.SQL("SET LOCAL search_path = {}").format(schema))
    if versions is None:
        await connection.execute(SchemaManager.get_schema())
        await connection.execute(_OURS)
        await connection.execute("INSERT INTO meta VALUES (%s, %s, '')", [APPLICATION, VERSION])
    else:
        for step in _migrations():
            if step.name > versions[1]:
                await connection.execute(step.read_bytes())
    await connection.execute("UPDATE meta SET version = %s, engine = %s", [VERSION, _migrations()[-1].name])


def _migrations() -> list[Path]:
    """Those of the procrastinate that is installed, oldest first."""
    return sorted(Path(SchemaManager.get_migrations_path()).glob("*.sql"))
