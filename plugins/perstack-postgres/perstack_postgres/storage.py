"""Storage port implemented in one schema of a PostgreSQL database; a namespace is a column in its tables.

`Store` has what all namespaces share: the connection pool, the leases and the notifications. This
module implements the port; `logs` has the logs, `leases` the leases, `connections` pooling and retries, `schema` the
tables.

Writes are single statements where possible, and carry the fence of this process's lease: the server itself refuses a
write after the lease was lost. A write whose answer was lost is retried with `is_again`, and must find out whether the
first attempt was committed. Concurrent appends collide on the primary key of `records`.

`blobs` has the bytes of each blob once, `job_blobs` the Jobs that have it. When the last Job loses a blob, the blob is
deleted in the same transaction.

Change together: a table in `schema` with `statements`, `_SIZES`, `delete_job` and `rewrite`; the lease condition in
`statements` with `leases`. `perstack.testing.storage_contract` checks the port's promises.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from hashlib import sha256 as new_sha256
from typing import LiteralString, TypeAlias

import psycopg
from typing_extensions import override

from perstack.core.base.chain import Head
from perstack.core.base.ids import check_id, check_job_id
from perstack.dataclass import dataclass
from perstack.errors import StorageError
from perstack.ports.storage import JobSize, LeaseInfo, Page, RunRef, Storage, StorageCheck
from perstack.support.storage import (
    check_space,
    checked_blob,
    checkpoint_order,
    ending_of,
    job_exists,
    newest_first,
    page_of,
    place_in_jobs,
    run_order,
)
from perstack_postgres import statements
from perstack_postgres.address import PostgresAddress
from perstack_postgres.connections import Connection, Connections
from perstack_postgres.leases import JobKey, PostgresLeases
from perstack_postgres.logs import MEDIUM, RunLogs
from perstack_postgres.notifications import Notices, PostgresWatch
from perstack_postgres.schema import VERSION, check_tables

_CHECK_TIMEOUT_S = 15.0
# minimum difference in seconds to the server's clock that is reported; events have this machine's time
_MAX_CLOCK_DIFFERENCE_S = 60.0

_CHECK_QUERY = (
    "SELECT current_setting('server_version'), extract(epoch FROM clock_timestamp())::float8, pg_is_in_recovery(),"
    " has_database_privilege(current_database(), 'CREATE'),"
    " coalesce((SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace WHERE nspname = %(schema)s), false),"
    " coalesce((SELECT bool_and(has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')"
    " AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE')) FROM pg_class AS c"
    " JOIN pg_namespace AS s ON s.oid = c.relnamespace WHERE s.nspname = %(schema)s AND c.relkind = 'r'), true)"
)


async def checks_of(connections: Connections) -> tuple[StorageCheck, ...]:
    """Check the server, the role's rights and the clock. Creates nothing."""
    try:
        return await connections.once(lambda connection: _check_server(connection, connections), _CHECK_TIMEOUT_S)
    except StorageError as error:
        return (StorageCheck("server", False, error.message),)


async def _check_server(connection: Connection, connections: Connections) -> tuple[StorageCheck, ...]:
    address = connections.address
    began = time.time()
    row = await (await connection.execute(_CHECK_QUERY, {"schema": address.schema})).fetchone()
    has_schema = await check_tables(connection, address)
    if row is None:
        return ()
    server, now, is_standby, may_create_schema, may_create_tables, may_write = row
    state = f"schema {address.schema} of version {VERSION}" if has_schema else f"no schema {address.schema} yet"
    checks = [StorageCheck("server", True, f"{address.display_url}, PostgreSQL {server}, {state}")]
    if is_standby:
        checks.append(
            StorageCheck("rights", False, "the server is a standby, which accepts no writes", "name the primary")
        )
    elif not (may_write if has_schema else may_create_tables or may_create_schema):
        remedy = f"make it the owner of the schema, or GRANT CREATE ON DATABASE: {address.display_url}"
        checks.append(StorageCheck("rights", False, "the role may not write there", remedy))
    else:
        checks.append(StorageCheck("rights", True, "the role may write there"))
    clock_difference = float(now) - (began + time.time()) / 2
    if abs(clock_difference) > _MAX_CLOCK_DIFFERENCE_S:
        checks.append(
            StorageCheck("clock", False, f"{clock_difference:+.0f} s from this machine's", "set both with NTP")
        )
    return tuple(checks)


# A transaction that removes blobs from a Job locks them first, so that the second of two concurrent ones sees the
# result of the first. A concurrent transaction that adds them to a Job waits, finds them deleted, and inserts them
# again.

_MAX_PART_BYTES = 1 << 25  # maximum bytes of blobs per SQL statement


def name_blobs(blobs: Sequence[bytes]) -> tuple[tuple[str, bytes], ...]:
    """Return the distinct blobs with their names."""
    return tuple({new_sha256(data).hexdigest(): data for data in blobs}.items())


def split_blobs(blobs: Sequence[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    """Split the blobs into parts of at most _MAX_PART_BYTES."""
    part, size = list[tuple[str, bytes]](), 0
    for name, data in blobs:
        if part and size + len(data) > _MAX_PART_BYTES:
            yield part
            part, size = [], 0
        part.append((name, data))
        size += len(data)
    if part:
        yield part


async def put_blobs_part(values: Mapping[str, object], connection: Connection, _: bool) -> tuple[int, int]:
    """Store one part; return the number of Jobs with this id, and of those whose lease is not lost (0 or 1 each)."""
    while True:
        try:
            row = await (await connection.execute(statements.PUT_BLOBS, values)).fetchone()
        except psycopg.errors.ForeignKeyViolation as error:
            if "sha256" in (error.diag.constraint_name or ""):
                continue  # the last Job that had this blob has been deleted since
            return 0, 0
        return (0, 0) if row is None else (int(row[0]), int(row[1]))


async def remove_blobs(connection: Connection, number: int, name: str | None) -> None:
    """Take one blob, or with None every one, from a Job. Call it within a transaction."""
    values = {"n": number, "id": None if name is None else check_id(name, "blob")}
    locked_names = [row[0] for row in await (await connection.execute(statements.LOCK_BLOBS, values)).fetchall()]
    if locked_names:
        await connection.execute(statements.TAKE_BLOBS, values)
        await connection.execute(statements.DROP_BLOBS, [locked_names])


_JOB_FILTER: LiteralString = "j.space = %(space)s AND (%(jobs)s::text[] IS NULL OR j.job_id = ANY (%(jobs)s::text[]))"
_SIZES: LiteralString = (
    "SELECT j.job_id,"
    " coalesce((SELECT sum(octet_length(s.line)) FROM runs AS r JOIN records AS s ON s.run = r.n"
    " WHERE r.job = j.n), 0)::bigint,"
    " coalesce((SELECT sum(octet_length(b.data)) FROM job_blobs AS o JOIN blobs AS b ON b.sha256 = o.sha256"
    " WHERE o.job = j.n), 0)::bigint,"
    " coalesce((SELECT sum(octet_length(c.data)) FROM checkpoints AS c WHERE c.job = j.n), 0)::bigint,"
    " (coalesce(octet_length(j.summary), 0)"
    " + coalesce((SELECT sum(octet_length(r.setting)) FROM runs AS r WHERE r.job = j.n), 0)"
    " + coalesce((SELECT octet_length(e.entry) FROM entries AS e"
    " WHERE e.space = j.space AND e.job_id = j.job_id), 0))::bigint"
    f" FROM jobs AS j WHERE {_JOB_FILTER}"
)
_SCHEMA_SIZE = (
    "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class AS c"
    " JOIN pg_namespace AS s ON s.oid = c.relnamespace WHERE s.nspname = %s AND c.relkind IN ('r', 'S')"
)


async def sizes_of(connection: Connection, space: str, job_ids: list[str] | None) -> dict[str, JobSize]:
    """Return the sizes of these Jobs, or of all Jobs of the namespace. Measures values without reading them."""
    cursor = await connection.execute(_SIZES, {"space": space, "jobs": job_ids})
    return {str(job_id): JobSize(*map(int, sizes)) for job_id, *sizes in await cursor.fetchall()}


async def size_of_schema(connection: Connection, schema: str) -> int:
    """Return the bytes of all tables with their indexes."""
    row = await (await connection.execute(_SCHEMA_SIZE, [schema])).fetchone()
    return 0 if row is None else int(row[0])


_MAX_WRITTEN = (1 << 63) - 1
_ERASE_TIMEOUT_S = 3600.0

Row: TypeAlias = tuple[object, ...]
Values: TypeAlias = Sequence[object] | Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Store:
    """Resources that all namespaces of one schema share."""

    address: PostgresAddress
    connections: Connections
    leases: PostgresLeases
    notices: Notices


def store_at(address: PostgresAddress) -> Store:
    """Return the store of an address without connecting."""
    connections = Connections(address)
    return Store(address, connections, PostgresLeases(connections), Notices(connections))


class PostgresStorage(Storage):
    """Jobs in one schema of a PostgreSQL database. Processes on many machines may use it at once."""

    keeps_copies = True

    def __init__(self, store: Store, space: str = "") -> None:
        self._store = store
        self._space = space
        self._logs = RunLogs(store.connections, store.leases, space)
        self._spaces: dict[str, PostgresStorage] = {}

    @property
    @override
    def location(self) -> str:
        return self._store.address.display_url

    @override
    def space(self, name: str) -> Storage:
        if name not in self._spaces:
            self._spaces[name] = PostgresStorage(self._store, check_space(name))
        return self._spaces[name]

    @override
    async def create_job(self, job_id: str) -> None:
        key, token = self._job_key(job_id), secrets.token_bytes(16)

        async def work(connection: Connection, _: bool) -> bool:
            if await (await connection.execute(statements.CREATE_JOB, [*key, token])).fetchone() is not None:
                return True
            # An earlier attempt whose answer was lost may have created it.
            row = await (await connection.execute(statements.MADE, key, binary=True)).fetchone()
            return row is not None and row[0] == token

        if not await self._store.connections.write(work):
            raise job_exists(job_id)

    @override
    async def has_job(self, job_id: str) -> bool:
        return bool(await self._fetch(statements.HAS_JOB, self._job_key(job_id)))

    @override
    async def jobs(self, *, limit: int = 100, after: str | None = None) -> Page:
        written, job_id = (_MAX_WRITTEN, "") if after is None else place_in_jobs(after)
        # one row more than asked for, to learn whether more follow
        values = (self._space, written, job_id, limit + 1)
        rows = await self._fetch(statements.JOBS, values)
        return newest_first(((int(str(at)), str(job_id)) for at, job_id in rows), limit, after)

    @override
    async def runs(self, job_id: str, *, limit: int = 1000, after: str | None = None) -> Page:
        rows = await self._fetch_for_job(job_id, statements.RUNS)
        return page_of((str(run_id) for (run_id,) in rows), run_order, limit, after)

    @override
    async def append(self, ref: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        if records:
            await self._logs.append(ref, expected_seq, records)
            self._store.notices.queue_notice(self._job_key(ref.job_id))

    @override
    async def read(self, ref: RunRef, after: int = 0, limit: int | None = None) -> list[bytes]:
        return await self._logs.read(ref, after, limit)

    @override
    async def end(self, ref: RunRef, count: int) -> list[bytes]:
        return await self._logs.end(ref, count)

    @override
    async def redact(self, ref: RunRef, seq: int, record: bytes) -> None:
        await self._logs.redact(ref, seq, record)

    @override
    async def put_summary(self, job_id: str, summary: bytes) -> None:
        await self._write_for_job(job_id, statements.PUT_SUMMARY, {"data": summary})

    @override
    async def summary(self, job_id: str) -> bytes | None:
        return await self._fetch_value(statements.SUMMARY, self._job_key(job_id))

    @override
    async def summaries(self) -> Mapping[str, bytes]:
        return _values_by_job(await self._fetch(statements.SUMMARIES, [self._space]))

    @override
    async def put_entry(
        self, job_id: str, seq: int, entry: bytes, *, synced: bool = False, expected: tuple[RunRef, Head] | None = None
    ) -> None:
        run, head = (None, Head()) if expected is None else (expected[0].run_id, expected[1])
        values = {"seq": seq, "data": entry, "run": run, "at": head.seq, "end": ending_of(head)}
        await self._write_for_job(job_id, statements.PUT_ENTRY_SYNCED if synced else statements.PUT_ENTRY, values)

    @override
    async def entries(self) -> Mapping[str, bytes]:
        return _values_by_job(await self._fetch(statements.ENTRIES, [self._space]))

    @override
    async def entry(self, job_id: str) -> tuple[int, bytes] | None:
        rows = await self._fetch(statements.ENTRY, self._job_key(job_id))
        return (int(str(rows[0][0])), _to_bytes(rows[0][1])) if rows else None

    @override
    async def lost_jobs(self) -> tuple[str, ...]:
        return tuple(str(job_id) for (job_id,) in await self._fetch(statements.LOST_JOBS, [self._space]))

    @override
    async def put_run_setting(self, ref: RunRef, setting: bytes) -> None:
        values = {"run": check_id(ref.run_id, "run"), "data": setting}
        await self._write_for_job(ref.job_id, statements.PUT_SETTING, values)

    @override
    async def run_setting(self, ref: RunRef) -> bytes | None:
        return await self._fetch_value(statements.SETTING, [*self._job_key(ref.job_id), check_id(ref.run_id, "run")])

    @override
    async def put_checkpoint(self, job_id: str, checkpoint_id: str, data: bytes) -> None:
        values = {"id": check_id(checkpoint_id, "checkpoint"), "data": data}
        await self._write_for_job(job_id, statements.PUT_CHECKPOINT, values)

    @override
    async def checkpoint(self, job_id: str, checkpoint_id: str) -> bytes | None:
        ids = [*self._job_key(job_id), check_id(checkpoint_id, "checkpoint")]
        return await self._fetch_value(statements.CHECKPOINT, ids)

    @override
    async def checkpoints(self, job_id: str, *, limit: int = 1000, after: str | None = None) -> Page:
        rows = await self._fetch_for_job(job_id, statements.CHECKPOINTS)
        return page_of((str(checkpoint_id) for (checkpoint_id,) in rows), checkpoint_order, limit, after)

    @override
    async def put_blob(self, job_id: str, data: bytes) -> str:
        (name,) = await self.put_blobs(job_id, (data,))
        return name

    @override
    async def put_blobs(self, job_id: str, blobs: Sequence[bytes]) -> tuple[str, ...]:
        key = self._job_key(job_id)
        pairs = name_blobs(blobs)
        for part in split_blobs(pairs) if pairs else ([],):
            ids, contents = [name for name, _ in part], [data for _, data in part]
            fence = self._store.leases.fence(key)
            values = {"space": key.space, "job": key.job_id, "fence": fence, "ids": ids, "texts": contents}
            size = sum(map(len, contents))
            self._check_write(key, await self._store.connections.write(partial(put_blobs_part, values), size))
        return tuple(new_sha256(data).hexdigest() for data in blobs)

    @override
    async def blob(self, job_id: str, sha256: str) -> bytes:
        data = await self._fetch_value(statements.BLOB, [*self._job_key(job_id), check_id(sha256, "blob")])
        return checked_blob(data, job_id, sha256, self.location, MEDIUM)

    @override
    async def blobs(self, job_id: str) -> tuple[str, ...]:
        names = await self._fetch_for_job(job_id, statements.BLOBS)
        return tuple(str(name) for (name,) in names)

    @override
    async def remove_blob(self, job_id: str, sha256: str) -> None:
        key, store = self._job_key(job_id), self._store
        name, fence = check_id(sha256, "blob"), store.leases.fence(key)

        async def work(connection: Connection, _: bool) -> None:
            async with connection.transaction():
                row = await (await connection.execute(statements.HAS_JOB, key)).fetchone()
                if row is None:
                    raise self._logs.no_job(job_id)
                await self._require_fence(connection, key, fence)
                await remove_blobs(connection, int(row[0]), name)

        await store.connections.write(work)

    async def erase_traces(self, job_id: str) -> None:
        """Rewrite the tables without dead rows, which blocks their users; not the write-ahead log."""
        if not await self.has_job(job_id):
            raise self._logs.no_job(job_id)

        async def work(connection: Connection) -> None:
            await connection.execute("SET statement_timeout = 0")
            try:
                await connection.execute(statements.REWRITE)
            finally:
                await connection.close()  # a pooled connection would keep the setting

        await self._store.connections.once(work, _ERASE_TIMEOUT_S)

    @override
    async def sizes(self, job_ids: Sequence[str] | None = None) -> Mapping[str, JobSize]:
        ids = None if job_ids is None else list(job_ids)
        space = self._space
        no_sizes: dict[str, JobSize] = {}
        return await self._store.connections.read(lambda db: sizes_of(db, space, ids), no_sizes)

    @override
    async def size(self) -> int:
        return await self._store.connections.read(lambda db: size_of_schema(db, self._store.address.schema), 0)

    @asynccontextmanager
    async def lease(self, job_id: str, holder: str) -> AsyncGenerator[None]:
        """Hold a Job's lease until its connection ends, or EXPIRY_S seconds after the last heartbeat."""
        key = self._job_key(job_id)
        async with self._store.leases.hold(key, holder):
            yield
        self._store.notices.queue_notice(key)

    @override
    async def lease_info(self, job_id: str) -> LeaseInfo | None:
        holder = await self._store.leases.holder(self._job_key(job_id))
        return None if holder is None else LeaseInfo(holder)

    @override
    def watch(self, job_id: str) -> AbstractAsyncContextManager[PostgresWatch]:
        return self._store.notices.watching(self._job_key(job_id))

    @override
    async def delete_job(self, job_id: str, *, expected: tuple[RunRef, int] | None = None) -> None:
        async with self.lease(job_id, f"the deletion of it (pid {os.getpid()})"):
            key = self._job_key(job_id)
            await self._store.connections.write(lambda db, is_again: self._delete(db, key, expected, is_again))

    async def _delete(
        self, connection: Connection, key: JobKey, expected: tuple[RunRef, int] | None, is_again: bool
    ) -> None:
        async with connection.transaction():
            row = await (await connection.execute(statements.LOCK_JOB, key)).fetchone()
            if row is None:
                if is_again:  # the first attempt was committed, its answer lost
                    return
                raise self._logs.no_job(key.job_id)
            runs = await (await connection.execute(statements.LOCK_RUNS, [row[0]])).fetchall()
            if expected is not None:
                ref, seq = expected
                number = next((int(n) for n, run_id in runs if run_id == ref.run_id), 0)
                await self._logs.check_length(connection, number, ref, seq)
            await self._require_fence(connection, key, self._store.leases.fence(key))
            await remove_blobs(connection, int(row[0]), None)
            await connection.execute(statements.DELETE_JOB, {"space": key.space, "job": key.job_id})

    @override
    async def checks(self) -> Sequence[StorageCheck]:
        return await checks_of(self._store.connections)

    @override
    async def close(self) -> None:
        await self._store.notices.close()
        await self._store.leases.close()
        await self._store.connections.close()

    async def _write_for_job(self, job_id: str, query: LiteralString, values: Mapping[str, object]) -> None:
        """Write with the fence of this process's lease. Raises NotFound, and Conflict if the lease is lost."""
        key = self._job_key(job_id)
        all_values = {"space": key.space, "job": key.job_id, "fence": self._store.leases.fence(key), **values}

        async def work(connection: Connection, _: bool) -> tuple[int, int]:
            row = await (await connection.execute(query, all_values)).fetchone()
            return (0, 0) if row is None else (int(row[0]), int(row[1]))

        self._check_write(key, await self._store.connections.write(work))

    def _check_write(self, key: JobKey, counts: tuple[int, int]) -> None:
        """Raise NotFound or Conflict if a write changed nothing: `counts` as in `put_blobs_part`."""
        job_count, leased_count = counts
        if not job_count:
            raise self._logs.no_job(key.job_id)
        if not leased_count:
            raise self._store.leases.lost(key)

    async def _require_fence(self, connection: Connection, key: JobKey, fence: int | None) -> None:
        query = statements.HAS_FENCE
        if fence is not None and await (await connection.execute(query, [fence])).fetchone() is None:
            raise self._store.leases.lost(key)

    async def _fetch(self, query: LiteralString, values: Values) -> list[Row]:
        async def work(connection: Connection) -> list[Row]:
            return list(await (await connection.execute(query, values, binary=True)).fetchall())

        no_rows: list[Row] = []
        return await self._store.connections.read(work, no_rows)

    async def _fetch_value(self, query: LiteralString, values: Values) -> bytes | None:
        rows = await self._fetch(query, values)
        return None if not rows or rows[0][0] is None else _to_bytes(rows[0][0])

    async def _fetch_for_job(self, job_id: str, query: LiteralString) -> list[Row]:
        numbers = await self._fetch(statements.HAS_JOB, self._job_key(job_id))
        if not numbers:
            raise self._logs.no_job(job_id)
        return await self._fetch(query, numbers[0])

    def _job_key(self, job_id: str) -> JobKey:
        return JobKey(self._space, check_job_id(job_id))


def _values_by_job(rows: Sequence[Row]) -> dict[str, bytes]:
    return {str(job_id): b"" if text is None else _to_bytes(text) for job_id, text in rows}


def _to_bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
