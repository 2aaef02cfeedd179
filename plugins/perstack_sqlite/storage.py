"""Storage port implemented in one SQLite file.

Next to the file, `{file}-leases/` holds a lock file for each leased Job, and `{file}-programs/` a file for each running
program. Leases are flocks on those files, not rows: the kernel releases them when the holder dies.

One table `records` holds all logs; a record's key is its Run's number times 2^32 plus its sequence number, so a log is
one range of keys. An append checks the last record and inserts in one immediate transaction, which is also the fence
against a second writer. Reads verify the hash chain. Namespaces share the tables: in another namespace a Job's key is
`{space}/{jobId}`, which is not a valid id, and its lock file is `{space}.{jobId}`.

`blobs` has the bytes of each blob once, `job_blobs` the Jobs that have it. When the last Job loses a blob, the blob is
deleted in the same transaction.

Change together: a table in `database` and its schema version, `delete_job` and `sizes_of`; the layout of keys and every
query with `_KEYS_PER_RUN`. `perstack.testing.storage_contract` checks the port's promises.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256 as new_sha256
from pathlib import Path

from typing_extensions import override

from perstack.core.base.chain import EMPTY_LOG, BrokenSeal, Head, open_line
from perstack.core.base.ids import check_id, check_job_id
from perstack.errors import NotFound, StorageError
from perstack.ports.storage import JobSize, LeaseInfo, LocalState, Page, RunRef, Storage
from perstack.support.storage import (
    check_redaction,
    check_space,
    checked_blob,
    checkpoint_order,
    damage_error,
    ends_at,
    head_after,
    job_exists,
    newest_first,
    no_job,
    page_of,
    place_in_jobs,
    run_order,
    stale_writer,
    verify_rows,
)
from perstack.system.concurrency import shield_until_done
from perstack.system.files import FILE_MODE, FOLDER_MODE, hold_file_lock, lock_holder, open_regular, system_reason
from perstack_sqlite.database import SPACE, Database, companions


def _drop_blobs(db: sqlite3.Connection, job: str, names: Iterable[str]) -> None:
    for name in names:
        db.execute("DELETE FROM job_blobs WHERE job_id = ? AND sha256 = ?", (job, name))
        db.execute(
            "DELETE FROM blobs WHERE sha256 = ?1 AND NOT EXISTS (SELECT 1 FROM job_blobs WHERE sha256 = ?1)", (name,)
        )


def _blob_names(db: sqlite3.Connection, job: str) -> tuple[str, ...]:
    return tuple(str(name) for (name,) in db.execute("SELECT sha256 FROM job_blobs WHERE job_id = ?", (job,)))


_IN_SPACE = f"{SPACE} = ?"
_SIZE_QUERIES = {
    "caches": (
        f"SELECT job_id, coalesce(length(summary), 0) FROM jobs WHERE {_IN_SPACE}",  # noqa: S608 - no input
        f"SELECT job_id, sum(coalesce(length(setting), 0)) FROM runs WHERE {_IN_SPACE} GROUP BY job_id",  # noqa: S608
        f"SELECT job_id, length(entry) FROM entries WHERE {_IN_SPACE}",  # noqa: S608
    ),
    "blobs": (
        f"SELECT job_id, sum(length(data)) FROM job_blobs JOIN blobs USING (sha256) WHERE {_IN_SPACE} GROUP BY job_id",  # noqa: S608
    ),
    "checkpoints": (f"SELECT job_id, sum(length(data)) FROM checkpoints WHERE {_IN_SPACE} GROUP BY job_id",),  # noqa: S608
}
_LOG_SIZE_QUERY = (
    "SELECT job_id, sum(length(line))"  # noqa: S608
    " FROM runs JOIN records ON records.key BETWEEN runs.n * ? AND (runs.n + 1) * ? - 1"
    f" WHERE {_IN_SPACE} GROUP BY job_id"
)


_KEYS_PER_RUN = 1 << 32  # record keys per Run: a log has at most one record less


def sizes_of(db: sqlite3.Connection | None, space: str) -> dict[str, JobSize]:
    """Return the size of each Job in a namespace, by the Job's key."""
    sizes: dict[str, dict[str, int]] = {}  # bytes by Job and kind
    if db is None:
        return {}

    def add(kind: str, query: str, values: tuple[object, ...]) -> None:
        for key, size in db.execute(query, values):
            job_sizes = sizes.setdefault(str(key), {})
            job_sizes[kind] = job_sizes.get(kind, 0) + int(size)

    for kind, queries in _SIZE_QUERIES.items():
        for query in queries:
            add(kind, query, (space,))
    add("logs", _LOG_SIZE_QUERY, (_KEYS_PER_RUN, _KEYS_PER_RUN, space))
    keys = {str(key) for (key,) in db.execute(f"SELECT job_id FROM jobs WHERE {_IN_SPACE}", (space,))}  # noqa: S608
    return {key: JobSize(**job_sizes) for key, job_sizes in sizes.items() if key in keys}


_MAX_WRITTEN = (1 << 63) - 1  # time later than that of any Job: the largest integer of SQLite
_MEDIUM = "the file"  # what a person restores from a copy if data is damaged

JOBS_QUERY = (
    f"SELECT written, job_id FROM jobs WHERE {SPACE} = ? AND (written, job_id) < (?, ?)"  # noqa: S608 - no input
    " ORDER BY written DESC, job_id DESC LIMIT ?"
)
_PUT_ENTRY = (
    "INSERT INTO entries VALUES (?, ?, ?) ON CONFLICT (job_id) DO UPDATE"
    " SET seq = excluded.seq, entry = excluded.entry WHERE excluded.seq >= seq"
)
_LOST_JOBS_QUERY = f"SELECT job_id FROM entries WHERE {SPACE} = ? AND job_id NOT IN (SELECT job_id FROM jobs)"  # noqa: S608
_SUMMARIES_QUERY = f"SELECT job_id, coalesce(summary, x'') FROM jobs WHERE {SPACE} = ?"  # noqa: S608
ENTRIES_QUERY = f"SELECT job_id, coalesce(entry, x'') FROM jobs LEFT JOIN entries USING (job_id) WHERE {SPACE} = ?"  # noqa: S608


class SqliteStorage(Storage):
    """Jobs in one SQLite file, which several processes may use at once."""

    keeps_copies = True

    def __init__(self, path: Path, space: str = "", database: Database | None = None) -> None:
        """Open nothing yet; `database` is the open database of another namespace of this file."""
        self._path = path
        self._prefix = f"{space}/" if space else ""
        self._database = database or Database(path)
        self._leases_folder = path.with_name(path.name + "-leases")
        self._spaces: dict[str, SqliteStorage] = {}

    @property
    @override
    def location(self) -> str:
        return str(self._path)

    @property
    @override
    def places(self) -> tuple[Path, ...]:
        state = self.local_state
        files = (state.path, *state.companions, state.mark, state.log_marks)
        return (*files, self._leases_folder.absolute(), self.programs)

    @property
    @override
    def local_state(self) -> LocalState:
        path = self._path.absolute()
        return LocalState(path, is_file=True, companions=companions(path))

    @override
    def as_evidence(self) -> Storage:
        space = self._prefix.removesuffix("/")
        return SqliteStorage(self._path, space, Database(self._path, is_evidence=True))

    @property
    @override
    def programs(self) -> Path:
        return self._path.with_name(self._path.name + "-programs").absolute()

    @override
    def space(self, name: str) -> Storage:
        if name not in self._spaces:
            self._spaces[name] = SqliteStorage(self._path, check_space(name), self._database)
        return self._spaces[name]

    @override
    async def create_job(self, job_id: str) -> None:
        row = (self._job_key(job_id), time.time_ns())
        query = "INSERT OR IGNORE INTO jobs (job_id, written) VALUES (?, ?)"
        if not await self._database.write(lambda db: db.execute(query, row).rowcount):
            raise job_exists(job_id)

    @override
    async def has_job(self, job_id: str) -> bool:
        key = self._job_key(job_id)
        return await self._database.read(lambda db: db is not None and _has_job(db, key))

    @override
    async def jobs(self, *, limit: int = 100, after: str | None = None) -> Page:
        written, job_id = (_MAX_WRITTEN, "") if after is None else place_in_jobs(after)
        # one row more than asked for, to learn whether more follow
        values = (self._prefix, written, self._prefix + job_id, limit + 1)
        rows = await self._database.read(lambda db: _fetch(db, JOBS_QUERY, values))
        return newest_first(((int(str(written)), self._job_id(key)) for written, key in rows), limit, after)

    @override
    async def runs(self, job_id: str, *, limit: int = 1000, after: str | None = None) -> Page:
        query = "SELECT run_id FROM runs WHERE job_id = ? AND EXISTS (SELECT 1 FROM records WHERE key = runs.n * ? + 1)"
        rows = await self._fetch_for_job(job_id, query, (self._job_key(job_id), _KEYS_PER_RUN))
        return page_of((str(run_id) for (run_id,) in rows), run_order, limit, after)

    @override
    async def append(self, ref: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        if not records:
            return
        check_id(ref.run_id, "run")
        check_job_id(ref.job_id)

        def work(db: sqlite3.Connection) -> None:
            base = self._assign_run_number(db, ref) * _KEYS_PER_RUN
            head = self._check_length(db, ref, base, expected_seq)
            head_after(head, records, self._log_name(ref))
            rows = [(base + expected_seq + 1 + index, record) for index, record in enumerate(records)]
            db.executemany("INSERT INTO records (key, line) VALUES (?, ?)", rows)

        await self._database.write(work)

    @override
    async def read(self, ref: RunRef, after: int = 0, limit: int | None = None) -> list[bytes]:
        check_id(ref.run_id, "run")
        key = self._job_key(ref.job_id)

        def work(db: sqlite3.Connection | None) -> list[bytes]:
            base = None if db is None else _base_key(db, key, ref.run_id)
            if base is None:
                return []
            # Also read the record before `after`: the hash chain continues from it.
            last = _KEYS_PER_RUN - 1 if limit is None else min(after + limit, _KEYS_PER_RUN - 1)
            span = (base + max(after, 1), base + last)
            rows = _fetch(db, "SELECT key, line FROM records WHERE key BETWEEN ? AND ? ORDER BY key", span)
            records = [(int(str(key)) - base, _to_bytes(line)) for key, line in rows]
            return verify_rows(records, after, self._log_name(ref), _MEDIUM)

        return await self._database.read(work)

    @override
    async def end(self, ref: RunRef, count: int) -> list[bytes]:
        check_id(ref.run_id, "run")
        key = self._job_key(ref.job_id)

        def work(db: sqlite3.Connection | None) -> list[bytes]:
            base = None if db is None else _base_key(db, key, ref.run_id)
            if base is None:
                return []
            values = (base + 1, base + _KEYS_PER_RUN - 1, count)
            rows = _fetch(db, "SELECT line FROM records WHERE key BETWEEN ? AND ? ORDER BY key DESC LIMIT ?", values)
            return [_to_bytes(line) for (line,) in reversed(rows)]

        return await self._database.read(work)

    @override
    async def redact(self, ref: RunRef, seq: int, record: bytes) -> None:
        check_id(ref.run_id, "run")
        key = self._job_key(ref.job_id)

        def work(db: sqlite3.Connection) -> None:
            db.execute("PRAGMA secure_delete = ON")
            base = _base_key(db, key, ref.run_id)
            if base is None:
                raise NotFound(f"{self._log_name(ref)} has no records, so there is none at {seq}")
            span = (base + 1, base + _KEYS_PER_RUN - 1)
            rows = _fetch(db, "SELECT line FROM records WHERE key BETWEEN ? AND ? ORDER BY key", span)
            check_redaction([_to_bytes(line) for (line,) in rows], seq, record, self._log_name(ref))
            db.execute("UPDATE records SET line = ? WHERE key = ?", (record, base + seq))

        await self._database.write(work)

    @override
    async def put_summary(self, job_id: str, summary: bytes) -> None:
        row = (summary, time.time_ns(), self._job_key(job_id))
        query = "UPDATE jobs SET summary = ?, written = ? WHERE job_id = ?"
        if not await self._database.write(lambda db: db.execute(query, row).rowcount, synced=False):
            raise no_job(job_id, self._path)

    @override
    async def summary(self, job_id: str) -> bytes | None:
        key = self._job_key(job_id)
        return await self._database.read(
            lambda db: _fetch_value(db, "SELECT summary FROM jobs WHERE job_id = ?", (key,))
        )

    @override
    async def summaries(self) -> Mapping[str, bytes]:
        rows = await self._database.read(lambda db: _fetch(db, _SUMMARIES_QUERY, (self._prefix,)))
        return {self._job_id(key): _to_bytes(summary) for key, summary in rows}

    @override
    async def put_entry(
        self, job_id: str, seq: int, entry: bytes, *, synced: bool = False, expected: tuple[RunRef, Head] | None = None
    ) -> None:
        row = (self._job_key(job_id), seq, entry)

        def work(db: sqlite3.Connection) -> None:
            self._require_job(db, job_id)
            if expected is None or self._has_record(db, *expected):
                db.execute(_PUT_ENTRY, row)

        await self._database.write(work, synced=synced)

    @override
    async def entries(self) -> Mapping[str, bytes]:
        rows = await self._database.read(lambda db: _fetch(db, ENTRIES_QUERY, (self._prefix,)))
        return {self._job_id(key): _to_bytes(entry) for key, entry in rows}

    @override
    async def entry(self, job_id: str) -> tuple[int, bytes] | None:
        query = "SELECT seq, entry FROM entries WHERE job_id = ?"
        key = self._job_key(job_id)
        rows = await self._database.read(lambda db: _fetch(db, query, (key,)))
        return (int(str(rows[0][0])), _to_bytes(rows[0][1])) if rows else None

    @override
    async def lost_jobs(self) -> tuple[str, ...]:
        rows = await self._database.read(lambda db: _fetch(db, _LOST_JOBS_QUERY, (self._prefix,)))
        return tuple(sorted(self._job_id(key) for (key,) in rows))

    @override
    async def put_run_setting(self, ref: RunRef, setting: bytes) -> None:
        check_id(ref.run_id, "run")
        check_job_id(ref.job_id)

        def work(db: sqlite3.Connection) -> None:
            db.execute("UPDATE runs SET setting = ? WHERE n = ?", (setting, self._assign_run_number(db, ref)))

        await self._database.write(work, synced=False)

    @override
    async def run_setting(self, ref: RunRef) -> bytes | None:
        ids = (self._job_key(ref.job_id), check_id(ref.run_id, "run"))
        query = "SELECT setting FROM runs WHERE job_id = ? AND run_id = ?"
        return await self._database.read(lambda db: _fetch_value(db, query, ids))

    @override
    async def put_checkpoint(self, job_id: str, checkpoint_id: str, data: bytes) -> None:
        check_id(checkpoint_id, "checkpoint")
        row = (self._job_key(job_id), checkpoint_id, data)

        def work(db: sqlite3.Connection) -> None:
            self._require_job(db, job_id)
            db.execute("INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?)", row)

        await self._database.write(work, synced=False)

    @override
    async def checkpoint(self, job_id: str, checkpoint_id: str) -> bytes | None:
        ids = (self._job_key(job_id), check_id(checkpoint_id, "checkpoint"))
        query = "SELECT data FROM checkpoints WHERE job_id = ? AND checkpoint_id = ?"
        return await self._database.read(lambda db: _fetch_value(db, query, ids))

    @override
    async def checkpoints(self, job_id: str, *, limit: int = 1000, after: str | None = None) -> Page:
        query = "SELECT checkpoint_id FROM checkpoints WHERE job_id = ?"
        rows = await self._fetch_for_job(job_id, query, (self._job_key(job_id),))
        return page_of((str(checkpoint_id) for (checkpoint_id,) in rows), checkpoint_order, limit, after)

    @override
    async def put_blob(self, job_id: str, data: bytes) -> str:
        (name,) = await self.put_blobs(job_id, (data,))
        return name

    @override
    async def put_blobs(self, job_id: str, blobs: Sequence[bytes]) -> tuple[str, ...]:
        key = self._job_key(job_id)

        def work(db: sqlite3.Connection) -> tuple[str, ...]:
            self._require_job(db, job_id)
            names = tuple(new_sha256(data).hexdigest() for data in blobs)
            db.executemany("INSERT OR IGNORE INTO blobs VALUES (?, ?)", zip(names, blobs, strict=True))
            db.executemany("INSERT OR IGNORE INTO job_blobs VALUES (?, ?)", ((key, name) for name in names))
            return names

        return await self._database.write(work, is_long=True)

    @override
    async def blob(self, job_id: str, sha256: str) -> bytes:
        ids = (self._job_key(job_id), check_id(sha256, "blob"))
        query = "SELECT data FROM job_blobs JOIN blobs USING (sha256) WHERE job_id = ? AND sha256 = ?"
        data = await self._database.read(lambda db: _fetch_value(db, query, ids))
        return checked_blob(data, job_id, sha256, self.location, _MEDIUM)

    @override
    async def sizes(self, job_ids: Sequence[str] | None = None) -> Mapping[str, JobSize]:
        keys = None if job_ids is None else {self._job_key(job_id) for job_id in job_ids}
        job_sizes = await self._database.read(lambda db: sizes_of(db, self._prefix))
        return {self._job_id(key): size for key, size in job_sizes.items() if keys is None or key in keys}

    @override
    async def size(self) -> int:
        return sum(path.stat().st_size for path in self.places if path.is_file())

    @override
    async def blobs(self, job_id: str) -> tuple[str, ...]:
        return await self._database.read(lambda db: _blob_names(self._require_job(db, job_id), self._job_key(job_id)))

    @override
    async def remove_blob(self, job_id: str, sha256: str) -> None:
        key = self._job_key(job_id)

        def work(db: sqlite3.Connection) -> None:
            self._require_job(db, job_id)
            _drop_blobs(db, key, (check_id(sha256, "blob"),))

        await self._database.write(work)

    async def erase_traces(self, job_id: str) -> None:
        """Rewrite the whole file without its unused pages and empty the write-ahead log."""
        if not await self.has_job(job_id):
            raise no_job(job_id, self._path)
        await self._database.rewrite()

    @override
    @asynccontextmanager
    async def lease(self, job_id: str, holder: str) -> AsyncGenerator[None]:
        if not await self.has_job(job_id):
            raise no_job(job_id, self._path)
        async with hold_file_lock(lambda: self._open_lease(job_id), holder, job_id):
            yield

    @override
    async def lease_info(self, job_id: str) -> LeaseInfo | None:
        try:
            fd = open_regular(self._lease_file(job_id))
        except FileNotFoundError:
            return None
        try:
            holder = lock_holder(fd)
        finally:
            os.close(fd)
        return None if holder is None else LeaseInfo(holder)

    @override
    async def delete_job(self, job_id: str, *, expected: tuple[RunRef, int] | None = None) -> None:
        async with self.lease(job_id, f"the deletion of it (pid {os.getpid()})"):
            await shield_until_done(self._delete(job_id, expected))

    async def _delete(self, job_id: str, expected: tuple[RunRef, int] | None) -> None:
        """Delete a Job in one transaction. Raises Conflict if the Run of `expected` has another length."""
        key = self._job_key(job_id)

        def work(db: sqlite3.Connection) -> None:
            if expected is not None:
                ref, seq = expected
                self._check_length(db, ref, self._assign_run_number(db, ref) * _KEYS_PER_RUN, seq)
            for (number,) in _fetch(db, "SELECT n FROM runs WHERE job_id = ?", (key,)):
                base = int(str(number)) * _KEYS_PER_RUN
                db.execute("DELETE FROM records WHERE key BETWEEN ? AND ?", (base, base + _KEYS_PER_RUN - 1))
            _drop_blobs(db, key, _blob_names(db, key))
            for table in ("runs", "checkpoints", "entries", "jobs"):
                db.execute(f"DELETE FROM {table} WHERE job_id = ?", (key,))  # noqa: S608 - names from above

        await self._database.write(work)
        self._lease_file(job_id).unlink(missing_ok=True)

    @override
    async def close(self) -> None:
        await self._database.close()

    async def _fetch_for_job(self, job_id: str, query: str, values: tuple[object, ...]) -> list[tuple[object, ...]]:
        def work(db: sqlite3.Connection | None) -> list[tuple[object, ...]]:
            self._require_job(db, job_id)
            return _fetch(db, query, values)

        return await self._database.read(work)

    def _assign_run_number(self, db: sqlite3.Connection, ref: RunRef) -> int:
        """Return the Run's number in the table `runs`; a new Run gets a row. Raises NotFound without its Job."""
        key = self._job_key(ref.job_id)
        number = _base_key(db, key, ref.run_id)
        if number is not None:
            return number // _KEYS_PER_RUN
        check_id(ref.run_id, "run")
        self._require_job(db, ref.job_id)
        db.execute("INSERT INTO runs (job_id, run_id) VALUES (?, ?)", (key, ref.run_id))
        number = _base_key(db, key, ref.run_id)
        if number is None:
            # A trigger in the database may drop the row; without a number of its own this log would mix with others.
            raise StorageError(
                f"{self._log_name(ref)}: the database did not keep a row for it: was it made by perstack?"
            )
        return number // _KEYS_PER_RUN

    def _read_head(self, db: sqlite3.Connection, ref: RunRef, base: int) -> Head:
        query = "SELECT key, line FROM records WHERE key BETWEEN ? AND ? ORDER BY key DESC LIMIT 1"
        rows = _fetch(db, query, (base, base + _KEYS_PER_RUN - 1))
        if not rows:
            return EMPTY_LOG
        seq = int(str(rows[0][0])) - base
        try:
            return Head(seq, open_line(_to_bytes(rows[0][1])).hash)
        except BrokenSeal as error:
            raise damage_error(self._log_name(ref), seq - 1, str(error), _MEDIUM) from error

    def _has_record(self, db: sqlite3.Connection, ref: RunRef, head: Head) -> bool:
        base = _base_key(db, self._job_key(ref.job_id), ref.run_id)
        line = None if base is None else _fetch_value(db, "SELECT line FROM records WHERE key = ?", (base + head.seq,))
        return line is not None and ends_at(line, head)

    def _check_length(self, db: sqlite3.Connection, ref: RunRef, base: int, expected_seq: int) -> Head:
        """Return the log's head. Raises Conflict unless the log has `expected_seq` records."""
        head = self._read_head(db, ref, base)
        if head.seq != expected_seq:
            raise stale_writer(self._log_name(ref), expected_seq, head.seq)
        return head

    def _open_lease(self, job_id: str) -> int:
        try:
            self._leases_folder.mkdir(FOLDER_MODE, exist_ok=True)
            return open_regular(self._lease_file(job_id), os.O_RDWR | os.O_CREAT, FILE_MODE)
        except OSError as error:
            raise StorageError(f"{self._lease_file(job_id)}: {system_reason(error)}") from error

    def _require_job(self, db: sqlite3.Connection | None, job_id: str) -> sqlite3.Connection:
        if db is None or not _has_job(db, self._job_key(job_id)):
            raise no_job(job_id, self._path)
        return db

    def _job_key(self, job_id: str) -> str:
        return self._prefix + check_job_id(job_id)

    def _job_id(self, key: object) -> str:
        return str(key).removeprefix(self._prefix)

    def _lease_file(self, job_id: str) -> Path:
        return self._leases_folder / self._job_key(job_id).replace("/", ".")

    def _log_name(self, ref: RunRef) -> str:
        return f"{self._path}, Run {ref.run_id}"


def _fetch(db: sqlite3.Connection | None, query: str, values: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    return [] if db is None else db.execute(query, values).fetchall()


def _fetch_value(db: sqlite3.Connection | None, query: str, values: tuple[object, ...]) -> bytes | None:
    rows = _fetch(db, query, values)
    return None if not rows or rows[0][0] is None else _to_bytes(rows[0][0])


def _to_bytes(value: object) -> bytes:
    # A user with a database shell may have stored text instead of bytes.
    return value if isinstance(value, bytes) else str(value).encode()


def _has_job(db: sqlite3.Connection, key: str) -> bool:
    return bool(_fetch(db, "SELECT 1 FROM jobs WHERE job_id = ?", (key,)))


def _base_key(db: sqlite3.Connection, key: str, run_id: str) -> int | None:
    """Return the key before the first record of a Run, its number times `_KEYS_PER_RUN`; None for an unknown Run."""
    rows = _fetch(db, "SELECT n FROM runs WHERE job_id = ? AND run_id = ?", (key, run_id))
    return int(str(rows[0][0])) * _KEYS_PER_RUN if rows else None
