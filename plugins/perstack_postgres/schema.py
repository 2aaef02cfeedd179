"""The tables, and how an older schema becomes the one of this version: forward only, by one process at a time."""

from __future__ import annotations

from typing import LiteralString
from zlib import crc32

from psycopg import AsyncConnection, sql

from perstack.errors import StorageError
from perstack_postgres.address import Address

APPLICATION = "perstack"
VERSION = 2
OLDEST_SERVER = 130000

# Ids are compared byte by byte wherever the database is. What is content is bytes: text of PostgreSQL has no NUL.
_STEPS: dict[int, LiteralString] = {
    1: """
CREATE TABLE jobs (n bigint GENERATED ALWAYS AS IDENTITY UNIQUE, space text COLLATE "C" NOT NULL,
    job_id text COLLATE "C" NOT NULL, made bytea NOT NULL, written bigint NOT NULL, summary bytea,
    PRIMARY KEY (space, job_id));
CREATE INDEX jobs_by_time ON jobs (space, written DESC, job_id DESC);
CREATE TABLE runs (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job bigint NOT NULL REFERENCES jobs (n) ON DELETE CASCADE, run_id text COLLATE "C" NOT NULL, setting bytea,
    UNIQUE (job, run_id));
CREATE TABLE records (run bigint NOT NULL REFERENCES runs (n) ON DELETE CASCADE, seq bigint NOT NULL,
    line bytea NOT NULL, PRIMARY KEY (run, seq));
CREATE TABLE entries (space text COLLATE "C" NOT NULL, job_id text COLLATE "C" NOT NULL, seq bigint NOT NULL,
    entry bytea NOT NULL, PRIMARY KEY (space, job_id));
CREATE TABLE checkpoints (job bigint NOT NULL REFERENCES jobs (n) ON DELETE CASCADE,
    checkpoint_id text COLLATE "C" NOT NULL, data bytea NOT NULL, PRIMARY KEY (job, checkpoint_id));
CREATE TABLE blobs (job bigint NOT NULL REFERENCES jobs (n) ON DELETE CASCADE, sha256 text COLLATE "C" NOT NULL,
    data bytea NOT NULL, PRIMARY KEY (job, sha256));
CREATE TABLE leases (job bigint PRIMARY KEY REFERENCES jobs (n) ON DELETE CASCADE, fence bigint NOT NULL UNIQUE,
    holder bytea NOT NULL, expires timestamptz NOT NULL);
CREATE SEQUENCE fences;
CREATE SEQUENCE writings;
""",
    2: """
CREATE TABLE contents (sha256 text COLLATE "C" PRIMARY KEY, data bytea NOT NULL);
CREATE TABLE shared (job bigint NOT NULL REFERENCES jobs (n) ON DELETE CASCADE,
    sha256 text COLLATE "C" NOT NULL REFERENCES contents (sha256), PRIMARY KEY (job, sha256));
CREATE INDEX shared_by_content ON shared (sha256);
""",
}
"""What each version has more than the one before it."""

_HAS_META: LiteralString = (
    "SELECT 1 FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
    " WHERE n.nspname = %s AND c.relname = 'meta'"
)


def key_of(schema: str) -> int:
    """The first half of the advisory locks of a schema."""
    return crc32(f"{APPLICATION} {schema}".encode()) - (1 << 31)


async def version_of(connection: AsyncConnection[tuple[object, ...]], address: Address) -> int:
    """Which version the schema has; 0 if there is none yet. Raises StorageError if it is of a newer perstack.

    Writes nothing.
    """
    # the catalogue itself: to_regclass() may still answer by what this session knew before another made the tables
    if await (await connection.execute(_HAS_META, [address.schema])).fetchone() is None:
        return 0
    query = sql.SQL("SELECT application, version FROM {}.meta").format(sql.Identifier(address.schema))
    row = await (await connection.execute(query)).fetchone()
    if row is None or row[0] != APPLICATION or not isinstance(row[1], int):
        raise StorageError(
            f"{address.shown}: schema {address.schema} is of another program; name another by `?schema=`"
        )
    if row[1] > VERSION:
        raise StorageError(f"{address.shown}: written by a newer perstack (schema {row[1]}); upgrade perstack")
    return row[1]


async def migrate(connection: AsyncConnection[tuple[object, ...]], address: Address) -> None:
    """Bring the schema to this version. Others that do so at the same time wait for it."""
    schema = sql.Identifier(address.schema)
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s, -1)", [key_of(address.schema)])
        version = await version_of(connection, address)
        if version == VERSION:
            return
        found = await connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [address.schema])
        if await found.fetchone() is None:
            await connection.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
        await connection.execute(sql.SQL("SET LOCAL search_path = {}").format(schema))
        if version == 0:
            await connection.execute("CREATE TABLE meta (application text NOT NULL, version integer NOT NULL)")
            await connection.execute("INSERT INTO meta VALUES (%s, 0)", [APPLICATION])
        for step in range(version + 1, VERSION + 1):
            await connection.execute(_STEPS[step])
        await connection.execute("UPDATE meta SET version = %s", [VERSION])
