"""Schema, which one process at a time creates."""

from __future__ import annotations

from typing import LiteralString
from zlib import crc32

from psycopg import AsyncConnection, sql

from perstack.errors import StorageError
from perstack_postgres.address import PostgresAddress

APPLICATION = "perstack"
VERSION = 3  # schema version; lower ones were never released
OLDEST_SERVER = 130000

# Collation "C" compares ids by bytes in every database. Content is bytea because PostgreSQL's text has no NUL.
_TABLES: LiteralString = """
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
CREATE TABLE blobs (sha256 text COLLATE "C" PRIMARY KEY, data bytea NOT NULL);
CREATE TABLE job_blobs (job bigint NOT NULL REFERENCES jobs (n) ON DELETE CASCADE,
    sha256 text COLLATE "C" NOT NULL REFERENCES blobs (sha256), PRIMARY KEY (job, sha256));
CREATE INDEX job_blobs_by_blob ON job_blobs (sha256);
CREATE TABLE leases (job bigint PRIMARY KEY REFERENCES jobs (n) ON DELETE CASCADE, fence bigint NOT NULL UNIQUE,
    holder bytea NOT NULL, expires timestamptz NOT NULL);
CREATE SEQUENCE fences;
CREATE SEQUENCE writings;
CREATE TABLE meta (application text NOT NULL, version integer NOT NULL);
"""

_HAS_META: LiteralString = (
    "SELECT 1 FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
    " WHERE n.nspname = %s AND c.relname = 'meta'"
)


def key_of(schema: str) -> int:
    """Return the first key of the schema's advisory locks."""
    return crc32(f"{APPLICATION} {schema}".encode()) - (1 << 31)


async def check_tables(connection: AsyncConnection[tuple[object, ...]], address: PostgresAddress) -> bool:
    """Return whether the schema has its tables. Raises StorageError for those of another version or program."""
    # Queries the catalogue: to_regclass() may answer from a cache that is older than another process's tables.
    if await (await connection.execute(_HAS_META, [address.schema])).fetchone() is None:
        return False
    query = sql.SQL("SELECT application, version FROM {}.meta").format(sql.Identifier(address.schema))
    row = await (await connection.execute(query)).fetchone()
    if row is None or row[0] != APPLICATION or not isinstance(row[1], int):
        raise StorageError(
            f"{address.display_url}: schema {address.schema} belongs to another program: name another with `?schema=`"
        )
    if row[1] > VERSION:
        raise StorageError(f"{address.display_url}: written by a newer perstack (schema {row[1]}); upgrade perstack")
    if row[1] < VERSION:
        raise StorageError(
            f"{address.display_url}: written before the first release of perstack (schema {row[1]}); name another"
            " schema with `?schema=`"
        )
    return True


async def create_tables(connection: AsyncConnection[tuple[object, ...]], address: PostgresAddress) -> None:
    """Create the schema and its tables, unless they exist. Concurrent calls wait for an advisory lock."""
    schema = sql.Identifier(address.schema)
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s, -1)", [key_of(address.schema)])
        if await check_tables(connection, address):
            return
        cursor = await connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [address.schema])
        if await cursor.fetchone() is None:
            await connection.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
        await connection.execute(sql.SQL("SET LOCAL search_path = {}").format(schema))
        await connection.execute(_TABLES)
        await connection.execute("INSERT INTO meta VALUES (%s, %s)", [APPLICATION, VERSION])
