"""The storage: one schema of a database. A space is a column in its tables."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from hashlib import sha256 as new_sha256
from typing import TypeAlias

from perstack.core.chain import Head
from perstack.core.ids import check_id, check_job_id
from perstack.dataclass import dataclass
from perstack.errors import Conflict, NotFound, StorageError
from perstack.ports.paging import check_space, checkpoint_order, newest_first, page_of, place_in_jobs, run_order
from perstack.ports.storage import JobSize, LeaseInfo, Page, RunRef, Storage, StorageCheck
from perstack_postgres.address import Address
from perstack_postgres.blobs import drop, in_parts, named, put_part
from perstack_postgres.checks import checks_of
from perstack_postgres.connections import Connections
from perstack_postgres.leases import JobKey, Leases
from perstack_postgres.logs import RunLogs
from perstack_postgres.notices import Notices, Watching
from perstack_postgres.session import Connection
from perstack_postgres.sizes import size_of_schema, sizes_of
from perstack_postgres.statements import Statements

_LATEST = (1 << 63) - 1
_ERASING_SECONDS = 3600.0

Row: TypeAlias = tuple[object, ...]
Values: TypeAlias = Sequence[object] | Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Store:
    """What all spaces of one schema share."""

    address: Address
    connections: Connections
    statements: Statements
    leases: Leases
    notices: Notices


def store_at(address: Address) -> Store:
    """Nothing is connected yet."""
    connections, statements = Connections(address), Statements(address.schema)
    return Store(address, connections, statements, Leases(connections, statements), Notices(connections))


class PostgresStorage:
    """Keeps Jobs in one schema of a PostgreSQL database. Processes on many machines may use it at a time."""

    def __init__(self, store: Store, space: str = "") -> None:
        self._store = store
        self._space = space
        self._logs = RunLogs(store.connections, store.statements, store.leases, space)
        self._spaces: dict[str, PostgresStorage] = {}

    @property
    def location(self) -> str:
        """The address, without its secrets."""
        return self._store.address.shown

    def space(self, name: str) -> Storage:
        """Another set of Jobs in the same schema."""
        if name not in self._spaces:
            self._spaces[name] = PostgresStorage(self._store, check_space(name))
        return self._spaces[name]

    async def create_job(self, job_id: str) -> None:
        """Make an empty Job. Raises Conflict if the id exists."""
        key, made = self._key(job_id), secrets.token_bytes(16)
        statements = self._store.statements

        async def work(connection: Connection, _: bool) -> bool:
            if await (await connection.execute(statements.create_job, [*key, made])).fetchone() is not None:
                return True
            # it may have been made by a try whose answer was lost
            row = await (await connection.execute(statements.made, key, binary=True)).fetchone()
            return row is not None and row[0] == made

        if not await self._store.connections.write(work):
            raise Conflict(f"job {job_id} exists already: choose another id, or continue it")

    async def has_job(self, job_id: str) -> bool:
        """Whether there is a Job of that id."""
        return bool(await self._rows(self._store.statements.has_job, self._key(job_id)))

    async def jobs(self, *, limit: int = 100, after: str | None = None) -> Page:
        """Job ids, the one whose summary was written last first."""
        written, job_id = (_LATEST, "") if after is None else place_in_jobs(after)
        # one more than is wanted, to see whether there are more
        values = (self._space, written, job_id, limit + 1)
        rows = await self._rows(self._store.statements.jobs, values)
        return newest_first(((int(str(at)), str(one)) for at, one in rows), limit, after)

    async def runs(self, job_id: str, *, limit: int = 1000, after: str | None = None) -> Page:
        """Ids of the Runs that have a log, by their number. Raises NotFound for an unknown Job."""
        rows = await self._rows_of_job(job_id, self._store.statements.runs)
        return page_of((str(run_id) for (run_id,) in rows), run_order, limit, after)

    async def append(self, run: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        """Add records after the first `expected_seq`; they survive power loss when this returns. Raises Conflict."""
        if records:
            await self._logs.append(run, expected_seq, records)
            self._store.notices.written(self._key(run.job_id))

    async def read(self, run: RunRef, after: int = 0, limit: int | None = None) -> list[bytes]:
        """The records after place `after`, at most `limit`. An unknown Run has none. Raises Damaged."""
        return await self._logs.read(run, after, limit)

    async def end(self, run: RunRef, count: int) -> list[bytes]:
        """The last records, unchecked."""
        return await self._logs.end(run, count)

    async def redact(self, run: RunRef, seq: int, record: bytes) -> None:
        """Put a record without content in the place of one. Raises NotFound and Conflict."""
        await self._logs.redact(run, seq, record)

    async def put_summary(self, job_id: str, summary: bytes) -> None:
        """Replace the Job's summary."""
        await self._put(job_id, self._store.statements.put_summary, {"data": summary})

    async def summary(self, job_id: str) -> bytes | None:
        """The summary; None if there is none."""
        return await self._one(self._store.statements.summary, self._key(job_id))

    async def summaries(self) -> Mapping[str, bytes]:
        """The summary of every Job."""
        return _texts(await self._rows(self._store.statements.summaries, [self._space]))

    async def put_entry(
        self, job_id: str, seq: int, entry: bytes, *, synced: bool = False, expected: tuple[RunRef, Head] | None = None
    ) -> None:
        """Replace a Job's entry, unless it is of a later place, or the log is not the expected one."""
        run, head = (None, Head()) if expected is None else (expected[0].run_id, expected[1])
        end = b',"hash":"%b"}' % head.hash.encode()
        values = {"seq": seq, "data": entry, "run": run, "at": head.seq, "end": end}
        await self._put(job_id, self._store.statements.put_entry(synced=synced), values)

    async def entries(self) -> Mapping[str, bytes]:
        """The entry of every Job."""
        return _texts(await self._rows(self._store.statements.entries, [self._space]))

    async def entry(self, job_id: str) -> tuple[int, bytes] | None:
        """The entry of one Job, and the place that it tells of."""
        rows = await self._rows(self._store.statements.entry, self._key(job_id))
        return (int(str(rows[0][0])), _bytes(rows[0][1])) if rows else None

    async def lost_jobs(self) -> tuple[str, ...]:
        """The ids that have an entry and no row among the Jobs."""
        return tuple(str(one) for (one,) in await self._rows(self._store.statements.lost_jobs, [self._space]))

    async def put_run_setting(self, run: RunRef, setting: bytes) -> None:
        """Replace the Run's setting."""
        values = {"run": check_id(run.run_id, "run"), "data": setting}
        await self._put(run.job_id, self._store.statements.put_setting, values)

    async def run_setting(self, run: RunRef) -> bytes | None:
        """The Run's setting; None if there is none."""
        return await self._one(self._store.statements.setting, [*self._key(run.job_id), check_id(run.run_id, "run")])

    async def put_checkpoint(self, job_id: str, checkpoint_id: str, data: bytes) -> None:
        """Replace a checkpoint."""
        values = {"id": check_id(checkpoint_id, "checkpoint"), "data": data}
        await self._put(job_id, self._store.statements.put_checkpoint, values)

    async def checkpoint(self, job_id: str, checkpoint_id: str) -> bytes | None:
        """What was put under that id; None if nothing was."""
        ids = [*self._key(job_id), check_id(checkpoint_id, "checkpoint")]
        return await self._one(self._store.statements.checkpoint, ids)

    async def checkpoints(self, job_id: str, *, limit: int = 1000, after: str | None = None) -> Page:
        """Ids of the checkpoints that were put, in the order of their ids' Run and place."""
        rows = await self._rows_of_job(job_id, self._store.statements.checkpoints)
        return page_of((str(one) for (one,) in rows), checkpoint_order, limit, after)

    async def put_blob(self, job_id: str, data: bytes) -> str:
        """Keep bytes, once; returns their sha256 in hex. Synced before it returns."""
        name = new_sha256(data).hexdigest()
        await self._put(job_id, self._store.statements.put_blob, {"id": name, "data": data}, len(data))
        return name

    async def put_blobs(self, job_id: str, blobs: Sequence[bytes]) -> tuple[str, ...]:
        """Keep many bytes, each content once for all Jobs; returns their names. Synced before it returns."""
        key, statements = self._key(job_id), self._store.statements
        pairs = named(blobs)
        for part in in_parts(pairs) if pairs else ([],):
            ids, texts = [name for name, _ in part], [data for _, data in part]
            fence = self._store.leases.fence(key)
            given = {"space": key.space, "job": key.job_id, "fence": fence, "ids": ids, "texts": texts}
            size = sum(map(len, texts))
            self._check_put(key, await self._store.connections.write(partial(put_part, statements, given), size))
        return tuple(new_sha256(data).hexdigest() for data in blobs)

    async def blob(self, job_id: str, sha256: str) -> bytes:
        """Raises NotFound, and StorageError if the content is not what its name says."""
        key = self._key(job_id)
        ids = {"space": key.space, "job": key.job_id, "id": check_id(sha256, "blob")}
        data = await self._one(self._store.statements.blob, ids)
        if data is None:
            raise NotFound(f"job {job_id} has no blob {sha256}")
        if new_sha256(data).hexdigest() != sha256:
            raise StorageError(
                f"{self.location}: blob {sha256} of job {job_id} is damaged; put the database back from a copy"
            )
        return data

    async def blobs(self, job_id: str) -> tuple[str, ...]:
        """The names of a Job's blobs."""
        numbers = await self._rows(self._store.statements.has_job, self._key(job_id))
        if not numbers:
            raise self._logs.no_job(job_id)
        names = await self._rows(self._store.statements.blobs, {"n": numbers[0][0]})
        return tuple(str(name) for (name,) in names)

    async def remove_blob(self, job_id: str, sha256: str) -> None:
        """Remove a blob, if it is there."""
        key, store = self._key(job_id), self._store
        name, fence = check_id(sha256, "blob"), store.leases.fence(key)

        async def work(connection: Connection, _: bool) -> None:
            async with connection.transaction():
                row = await (await connection.execute(store.statements.has_job, key)).fetchone()
                if row is None:
                    raise self._logs.no_job(job_id)
                await self._require_fence(connection, key, fence)
                await drop(connection, store.statements, int(row[0]), name)

        await store.connections.write(work)

    async def erase_traces(self, job_id: str) -> None:
        """Write the tables anew, without the rows that are none any more. All who use them wait meanwhile.

        What the server keeps beside them, such as its log and copies of it, is its own.
        """
        if not await self.has_job(job_id):
            raise self._logs.no_job(job_id)

        async def work(connection: Connection) -> None:
            await connection.execute("SET statement_timeout = 0")
            try:
                await connection.execute(self._store.statements.rewrite)
            finally:
                await connection.close()  # it would keep that setting

        await self._store.connections.once(work, _ERASING_SECONDS)

    async def sizes(self, job_ids: Sequence[str] | None = None) -> Mapping[str, JobSize]:
        """How many bytes each Job takes, the tables' own structure left out."""
        wanted = None if job_ids is None else list(job_ids)
        statements, space = self._store.statements, self._space
        nothing: dict[str, JobSize] = {}
        return await self._store.connections.read(lambda db: sizes_of(db, statements, space, wanted), nothing)

    async def size(self) -> int:
        """All tables of the schema, with their indexes."""
        return await self._store.connections.read(lambda db: size_of_schema(db, self._store.address.schema), 0)

    @asynccontextmanager
    async def lease(self, job_id: str, holder: str) -> AsyncGenerator[None]:
        """The right to drive a Job, free when its holder's connection ends, or when the server has not heard of it for
        some seconds. Raises Conflict, naming the holder."""
        key = self._key(job_id)
        async with self._store.leases.hold(key, holder):
            yield
        self._store.notices.written(key)

    async def lease_info(self, job_id: str) -> LeaseInfo | None:
        """Who holds the lease now; None if nobody does."""
        holder = await self._store.leases.holder(self._key(job_id))
        return None if holder is None else LeaseInfo(holder)

    def watch(self, job_id: str) -> AbstractAsyncContextManager[Watching]:
        """Tells at once when something of a Job was written, and when its driver gives it up."""
        return self._store.notices.watching(self._key(job_id))

    async def delete_job(self, job_id: str, *, expected: tuple[RunRef, int] | None = None) -> None:
        """Remove a Job. Raises NotFound, and Conflict while it is driven or if its log is not as expected."""
        async with self.lease(job_id, f"the deletion of it (pid {os.getpid()})"):
            key = self._key(job_id)
            await self._store.connections.write(lambda db, is_again: self._delete(db, key, expected, is_again))

    async def _delete(
        self, connection: Connection, key: JobKey, expected: tuple[RunRef, int] | None, is_again: bool
    ) -> None:
        statements = self._store.statements
        async with connection.transaction():
            row = await (await connection.execute(statements.lock_job, key)).fetchone()
            if row is None:
                if is_again:  # the answer of the first try was lost
                    return
                raise self._logs.no_job(key.job_id)
            runs = await (await connection.execute(statements.lock_runs, [row[0]])).fetchall()
            if expected is not None:
                run, seq = expected
                number = next((int(n) for n, run_id in runs if run_id == run.run_id), 0)
                await self._logs.check_length(connection, number, run, seq)
            await self._require_fence(connection, key, self._store.leases.fence(key))
            await drop(connection, statements, int(row[0]), None)
            await connection.execute(statements.delete_job, {"space": key.space, "job": key.job_id})

    async def checks(self) -> Sequence[StorageCheck]:
        """Whether the server is there, and what this role may do in the schema."""
        return await checks_of(self._store.connections)

    async def close(self) -> None:
        """Close the connections of all spaces."""
        await self._store.notices.close()
        await self._store.leases.close()
        await self._store.connections.close()

    async def _put(self, job_id: str, query: bytes, values: Mapping[str, object], size: int = 0) -> None:
        key = self._key(job_id)
        given = {"space": key.space, "job": key.job_id, "fence": self._store.leases.fence(key), **values}

        async def work(connection: Connection, _: bool) -> tuple[int, int]:
            row = await (await connection.execute(query, given)).fetchone()
            return (0, 0) if row is None else (int(row[0]), int(row[1]))

        self._check_put(key, await self._store.connections.write(work, size))

    def _check_put(self, key: JobKey, found: tuple[int, int]) -> None:
        jobs, ours = found
        if not jobs:
            raise self._logs.no_job(key.job_id)
        if not ours:
            raise self._store.leases.lost(key)

    async def _require_fence(self, connection: Connection, key: JobKey, fence: int | None) -> None:
        query = self._store.statements.has_fence
        if fence is not None and await (await connection.execute(query, [fence])).fetchone() is None:
            raise self._store.leases.lost(key)

    async def _rows(self, query: bytes, values: Values) -> list[Row]:
        async def work(connection: Connection) -> list[Row]:
            return list(await (await connection.execute(query, values, binary=True)).fetchall())

        nothing: list[Row] = []
        return await self._store.connections.read(work, nothing)

    async def _one(self, query: bytes, values: Values) -> bytes | None:
        rows = await self._rows(query, values)
        return None if not rows or rows[0][0] is None else _bytes(rows[0][0])

    async def _rows_of_job(self, job_id: str, query: bytes) -> list[Row]:
        numbers = await self._rows(self._store.statements.has_job, self._key(job_id))
        if not numbers:
            raise self._logs.no_job(job_id)
        return await self._rows(query, numbers[0])

    def _key(self, job_id: str) -> JobKey:
        return JobKey(self._space, check_job_id(job_id))


def _texts(rows: Sequence[Row]) -> dict[str, bytes]:
    return {str(job_id): b"" if text is None else _bytes(text) for job_id, text in rows}


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
