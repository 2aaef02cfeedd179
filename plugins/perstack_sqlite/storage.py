"""The storage: one file, and beside it `{file}-leases/` with the locks of the Jobs that are driven now, and
`{file}-programs/` with a file for each program that runs now.

In the tables a Job of another space is called `{space}/{jobId}`, which is not an id, and its lock `{space}.{jobId}`.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256 as new_sha256
from pathlib import Path
from typing import TypeVar

from perstack.core.chain import EMPTY_LOG, BrokenSeal, Head, check, open_line
from perstack.core.ids import check_id, check_job_id
from perstack.errors import Conflict, Damaged, NotFound, StorageError
from perstack.ports.appending import check_redaction, ends_at, head_after, stale
from perstack.ports.leases import hold, holder_of
from perstack.ports.paging import check_space, checkpoint_order, newest_first, page_of, place_in_jobs, run_order
from perstack.ports.state_folder import FILE_MODE, FOLDER_MODE
from perstack.ports.storage import JobSize, LeaseInfo, Page, RunRef, Storage
from perstack.ports.uninterrupted import uninterrupted
from perstack_sqlite.database import SPACE, Database
from perstack_sqlite.shared import drop_shared, put_shared, shared_blob, shared_names
from perstack_sqlite.sizes import sizes_of

T = TypeVar("T")

_PLACES = 1 << 32
"""How many records a Run may have."""

_LATEST = (1 << 63) - 1

JOBS = (
    f"SELECT written, job_id FROM jobs WHERE {SPACE} = ? AND (written, job_id) < (?, ?)"  # noqa: S608 - no input
    " ORDER BY written DESC, job_id DESC LIMIT ?"
)
PUT_ENTRY = (
    "INSERT INTO entries VALUES (?, ?, ?) ON CONFLICT (job_id) DO UPDATE"
    " SET seq = excluded.seq, entry = excluded.entry WHERE excluded.seq >= seq"
)
LOST = f"SELECT job_id FROM entries WHERE {SPACE} = ? AND job_id NOT IN (SELECT job_id FROM jobs)"  # noqa: S608
SUMMARIES = f"SELECT job_id, coalesce(summary, x'') FROM jobs WHERE {SPACE} = ?"  # noqa: S608
ENTRIES = f"SELECT job_id, coalesce(entry, x'') FROM jobs LEFT JOIN entries USING (job_id) WHERE {SPACE} = ?"  # noqa: S608


class SqliteStorage:
    """Keeps Jobs in one SQLite file. Several processes may use it at a time."""

    def __init__(self, path: Path, space: str = "", database: Database | None = None) -> None:
        self._path = path
        self._prefix = f"{space}/" if space else ""
        self._database = database or Database(path)
        self._leases = path.with_name(path.name + "-leases")
        self._spaces: dict[str, SqliteStorage] = {}

    @property
    def location(self) -> str:
        """The file."""
        return str(self._path)

    @property
    def places(self) -> tuple[Path, ...]:
        """The file, and what stands beside it."""
        beside = (self._path.with_name(f"{self._path.name}{end}") for end in ("-wal", "-shm", "-journal"))
        return (self._path.absolute(), *(path.absolute() for path in beside), self._leases.absolute(), self.programs)

    def is_there(self) -> bool:
        """Whether the file has been made."""
        return self._path.is_file() and self._path.stat().st_size > 0

    @property
    def programs(self) -> Path:
        """Where the programs are recorded that run now."""
        return self._path.with_name(self._path.name + "-programs").absolute()

    def space(self, name: str) -> Storage:
        """Another set of Jobs in the same file."""
        if name not in self._spaces:
            self._spaces[name] = SqliteStorage(self._path, check_space(name), self._database)
        return self._spaces[name]

    async def create_job(self, job_id: str) -> None:
        """Make an empty Job. Raises Conflict if the id exists."""
        row = (self._key(job_id), time.time_ns())
        query = "INSERT OR IGNORE INTO jobs (job_id, written) VALUES (?, ?)"
        if not await self._database.write(lambda db: db.execute(query, row).rowcount):
            raise Conflict(f"job {job_id} exists already: choose another id, or continue it")

    async def has_job(self, job_id: str) -> bool:
        """Whether there is a Job of that id."""
        key = self._key(job_id)
        return await self._database.read(lambda db: db is not None and _has_job(db, key))

    async def jobs(self, *, limit: int = 100, after: str | None = None) -> Page:
        """Job ids, the one whose summary was written last first."""
        written, job_id = (_LATEST, "") if after is None else place_in_jobs(after)
        # one more than is wanted, to see whether there are more
        values = (self._prefix, written, self._prefix + job_id, limit + 1)
        rows = await self._database.read(lambda db: _rows(db, JOBS, values))
        return newest_first(((int(str(written)), self._id(key)) for written, key in rows), limit, after)

    async def runs(self, job_id: str, *, limit: int = 1000, after: str | None = None) -> Page:
        """Ids of the Runs that have a log, by their number. Raises NotFound for an unknown Job."""
        query = "SELECT run_id FROM runs WHERE job_id = ? AND EXISTS (SELECT 1 FROM records WHERE key = runs.n * ? + 1)"
        rows = await self._rows_of_job(job_id, query, (self._key(job_id), _PLACES))
        return page_of((str(run_id) for (run_id,) in rows), run_order, limit, after)

    async def append(self, run: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        """Add records after the first `expected_seq`; they survive power loss when this returns. Raises Conflict."""
        if not records:
            return
        check_id(run.run_id, "run")
        self._key(run.job_id)

        def work(db: sqlite3.Connection) -> None:
            base = self._number(db, run) * _PLACES
            head = self._head_at(db, run, base, expected_seq)
            head_after(head, records, self._place(run))
            keyed = [(base + expected_seq + 1 + index, record) for index, record in enumerate(records)]
            db.executemany("INSERT INTO records (key, line) VALUES (?, ?)", keyed)

        await self._database.write(work)

    async def read(self, run: RunRef, after: int = 0, limit: int | None = None) -> list[bytes]:
        """The records after place `after`, at most `limit`. An unknown Run has none. Raises Damaged."""
        check_id(run.run_id, "run")
        key = self._key(run.job_id)

        def work(db: sqlite3.Connection | None) -> list[bytes]:
            base = None if db is None else _find_run(db, key, run.run_id)
            if base is None:
                return []
            # the record before is read too: the chain goes on from it
            last = _PLACES - 1 if limit is None else min(after + limit, _PLACES - 1)
            span = (base + max(after, 1), base + last)
            rows = _rows(db, "SELECT key, line FROM records WHERE key BETWEEN ? AND ? ORDER BY key", span)
            return self._verified(run, after, [(int(str(key)) - base, _bytes(line)) for key, line in rows])

        return await self._database.read(work)

    async def end(self, run: RunRef, count: int) -> list[bytes]:
        """The last records, unchecked."""
        key = self._key(run.job_id)

        def work(db: sqlite3.Connection | None) -> list[bytes]:
            base = None if db is None else _find_run(db, key, run.run_id)
            if base is None:
                return []
            values = (base + 1, base + _PLACES - 1, count)
            rows = _rows(db, "SELECT line FROM records WHERE key BETWEEN ? AND ? ORDER BY key DESC LIMIT ?", values)
            return [_bytes(line) for (line,) in reversed(rows)]

        return await self._database.read(work)

    async def redact(self, run: RunRef, seq: int, record: bytes) -> None:
        """Put a record without content in the place of one. Raises NotFound and Conflict."""
        check_id(run.run_id, "run")
        key = self._key(run.job_id)

        def work(db: sqlite3.Connection) -> None:
            db.execute("PRAGMA secure_delete = ON")
            base = _find_run(db, key, run.run_id)
            span = (0, -1) if base is None else (base + 1, base + _PLACES - 1)
            rows = _rows(db, "SELECT line FROM records WHERE key BETWEEN ? AND ? ORDER BY key", span)
            check_redaction([_bytes(line) for (line,) in rows], seq, record, self._place(run))
            db.execute("UPDATE records SET line = ? WHERE key = ?", (record, (base or 0) + seq))

        await self._database.write(work)

    async def put_summary(self, job_id: str, summary: bytes) -> None:
        """Replace the Job's summary."""
        row = (summary, time.time_ns(), self._key(job_id))
        query = "UPDATE jobs SET summary = ?, written = ? WHERE job_id = ?"
        if not await self._database.write(lambda db: db.execute(query, row).rowcount, synced=False):
            raise self._no_job(job_id)

    async def summary(self, job_id: str) -> bytes | None:
        """The summary; None if there is none."""
        key = self._key(job_id)
        return await self._database.read(lambda db: _one(db, "SELECT summary FROM jobs WHERE job_id = ?", (key,)))

    async def summaries(self) -> Mapping[str, bytes]:
        """The summary of every Job."""
        rows = await self._database.read(lambda db: _rows(db, SUMMARIES, (self._prefix,)))
        return {self._id(key): _bytes(summary) for key, summary in rows}

    async def put_entry(
        self, job_id: str, seq: int, entry: bytes, *, synced: bool = False, expected: tuple[RunRef, Head] | None = None
    ) -> None:
        """Replace a Job's entry, unless it is of a later place, or the log is not the expected one."""
        row = (self._key(job_id), seq, entry)

        def work(db: sqlite3.Connection) -> None:
            self._require(db, job_id)
            if expected is None or self._has_record(db, *expected):
                db.execute(PUT_ENTRY, row)

        await self._database.write(work, synced=synced)

    async def entries(self) -> Mapping[str, bytes]:
        """The entry of every Job."""
        rows = await self._database.read(lambda db: _rows(db, ENTRIES, (self._prefix,)))
        return {self._id(key): _bytes(entry) for key, entry in rows}

    async def entry(self, job_id: str) -> tuple[int, bytes] | None:
        """The entry of one Job, and the place that it tells of."""
        query = "SELECT seq, entry FROM entries WHERE job_id = ?"
        key = self._key(job_id)
        rows = await self._database.read(lambda db: _rows(db, query, (key,)))
        return (int(str(rows[0][0])), _bytes(rows[0][1])) if rows else None

    async def lost_jobs(self) -> tuple[str, ...]:
        """The ids that have an entry and no row among the Jobs."""
        rows = await self._database.read(lambda db: _rows(db, LOST, (self._prefix,)))
        return tuple(sorted(self._id(key) for (key,) in rows))

    async def put_run_setting(self, run: RunRef, setting: bytes) -> None:
        """Replace the Run's setting."""
        check_id(run.run_id, "run")
        self._key(run.job_id)

        def work(db: sqlite3.Connection) -> None:
            db.execute("UPDATE runs SET setting = ? WHERE n = ?", (setting, self._number(db, run)))

        await self._database.write(work, synced=False)

    async def run_setting(self, run: RunRef) -> bytes | None:
        """The Run's setting; None if there is none."""
        ids = (self._key(run.job_id), check_id(run.run_id, "run"))
        query = "SELECT setting FROM runs WHERE job_id = ? AND run_id = ?"
        return await self._database.read(lambda db: _one(db, query, ids))

    async def put_checkpoint(self, job_id: str, checkpoint_id: str, data: bytes) -> None:
        """Replace a checkpoint."""
        check_id(checkpoint_id, "checkpoint")
        query = "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?)"
        await self._put(job_id, query, (self._key(job_id), checkpoint_id, data), synced=False)

    async def checkpoint(self, job_id: str, checkpoint_id: str) -> bytes | None:
        """What was put under that id; None if nothing was."""
        ids = (self._key(job_id), check_id(checkpoint_id, "checkpoint"))
        query = "SELECT data FROM checkpoints WHERE job_id = ? AND checkpoint_id = ?"
        return await self._database.read(lambda db: _one(db, query, ids))

    async def checkpoints(self, job_id: str, *, limit: int = 1000, after: str | None = None) -> Page:
        """Ids of the checkpoints that were put, in the order of their ids' Run and place."""
        query = "SELECT checkpoint_id FROM checkpoints WHERE job_id = ?"
        rows = await self._rows_of_job(job_id, query, (self._key(job_id),))
        return page_of((str(one) for (one,) in rows), checkpoint_order, limit, after)

    async def put_blob(self, job_id: str, data: bytes) -> str:
        """Keep bytes, once; returns their sha256 in hex. Synced before it returns."""
        name = new_sha256(data).hexdigest()
        query = "INSERT OR IGNORE INTO blobs VALUES (?, ?, ?)"
        await self._put(job_id, query, (self._key(job_id), name, data), synced=True)
        return name

    async def put_blobs(self, job_id: str, blobs: Sequence[bytes]) -> tuple[str, ...]:
        """Keep many bytes, each content once for all Jobs; returns their names. Synced before it returns."""

        def work(db: sqlite3.Connection) -> tuple[str, ...]:
            self._require(db, job_id)
            return put_shared(db, self._key(job_id), blobs)

        return await self._database.write(work, is_long=True)

    async def blob(self, job_id: str, sha256: str) -> bytes:
        """Raises NotFound, and StorageError if the content is not what its name says."""
        ids = (self._key(job_id), check_id(sha256, "blob"))
        query = "SELECT data FROM blobs WHERE job_id = ? AND sha256 = ?"
        data = await self._database.read(lambda db: _one(db, query, ids))
        if data is None:
            data = await self._database.read(lambda db: shared_blob(db, *ids))
        if data is None:
            raise NotFound(f"job {job_id} has no blob {sha256}")
        if new_sha256(data).hexdigest() != sha256:
            raise StorageError(f"{self._path}: blob {sha256} of job {job_id} is damaged; put the file back from a copy")
        return data

    async def sizes(self, job_ids: Sequence[str] | None = None) -> Mapping[str, JobSize]:
        """How many bytes each Job takes, the tables' own structure left out."""
        wanted = None if job_ids is None else {self._key(one) for one in job_ids}
        found = await self._database.read(lambda db: sizes_of(db, self._prefix, _PLACES))
        return {self._id(key): size for key, size in found.items() if wanted is None or key in wanted}

    async def size(self) -> int:
        """The file, and what is beside it."""
        return sum(path.stat().st_size for path in self.places if path.is_file())

    async def blobs(self, job_id: str) -> tuple[str, ...]:
        """The names of a Job's blobs."""
        key = self._key(job_id)

        def work(db: sqlite3.Connection | None) -> tuple[str, ...]:
            there = self._require(db, job_id)
            own = there.execute("SELECT sha256 FROM blobs WHERE job_id = ?", (key,))
            return tuple({str(name) for (name,) in own}.union(shared_names(there, key)))

        return await self._database.read(work)

    async def remove_blob(self, job_id: str, sha256: str) -> None:
        """Remove a blob, if it is there."""
        key = self._key(job_id)

        def work(db: sqlite3.Connection) -> None:
            self._require(db, job_id)
            db.execute("DELETE FROM blobs WHERE job_id = ? AND sha256 = ?", (key, check_id(sha256, "blob")))
            drop_shared(db, key, (sha256,))

        await self._database.write(work)

    async def erase_traces(self, job_id: str) -> None:
        """Write the whole file anew, without its unused pages, and empty the log beside it."""
        if not await self.has_job(job_id):
            raise self._no_job(job_id)
        await self._database.rewrite()

    @asynccontextmanager
    async def lease(self, job_id: str, holder: str) -> AsyncGenerator[None]:
        """The right to drive a Job, free the moment its holder dies. Raises Conflict, naming the holder."""
        if not await self.has_job(job_id):
            raise self._no_job(job_id)
        async with hold(lambda: self._open_lease(job_id), holder, job_id):
            yield

    async def lease_info(self, job_id: str) -> LeaseInfo | None:
        """Who holds the lease now; None if nobody does."""
        try:
            fd = os.open(self._lease_file(job_id), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            holder = holder_of(fd)
        finally:
            os.close(fd)
        return None if holder is None else LeaseInfo(holder)

    async def delete_job(self, job_id: str, *, expected: tuple[RunRef, int] | None = None) -> None:
        """Remove a Job. Raises NotFound, and Conflict while it is driven or if its log is not as expected."""
        async with self.lease(job_id, f"the deletion of it (pid {os.getpid()})"):
            await uninterrupted(self._delete(job_id, expected))

    async def _delete(self, job_id: str, expected: tuple[RunRef, int] | None) -> None:
        key = self._key(job_id)

        def work(db: sqlite3.Connection) -> None:
            if expected is not None:
                run, seq = expected
                self._head_at(db, run, self._number(db, run) * _PLACES, seq)
            for (number,) in _rows(db, "SELECT n FROM runs WHERE job_id = ?", (key,)):
                base = int(str(number)) * _PLACES
                db.execute("DELETE FROM records WHERE key BETWEEN ? AND ?", (base, base + _PLACES - 1))
            drop_shared(db, key, shared_names(db, key))
            for table in ("runs", "checkpoints", "blobs", "entries", "jobs"):
                db.execute(f"DELETE FROM {table} WHERE job_id = ?", (key,))  # noqa: S608 - names from above

        await self._database.write(work)
        self._lease_file(job_id).unlink(missing_ok=True)

    async def close(self) -> None:
        """Close the file."""
        await self._database.close()

    async def _put(self, job_id: str, query: str, row: tuple[object, ...], *, synced: bool) -> None:
        def work(db: sqlite3.Connection) -> None:
            self._require(db, job_id)
            db.execute(query, row)

        await self._database.write(work, synced=synced)

    async def _rows_of_job(self, job_id: str, query: str, values: tuple[object, ...]) -> list[tuple[object, ...]]:
        def work(db: sqlite3.Connection | None) -> list[tuple[object, ...]]:
            self._require(db, job_id)
            return _rows(db, query, values)

        return await self._database.read(work)

    def _verified(self, run: RunRef, after: int, rows: list[tuple[int, bytes]]) -> list[bytes]:
        """The records behind place `after`, each checked against the one before it."""
        lines: list[bytes] = []
        head = EMPTY_LOG
        try:
            if after and rows and rows[0][0] == after:
                head = Head(after, open_line(rows.pop(0)[1]).hash)
            for seq, line in rows:
                if seq != head.seq + 1:
                    raise BrokenSeal("it is missing")
                _, head = check(head, line)
                lines.append(line)
        except BrokenSeal as broken:
            raise self._damaged(run, head.seq, broken) from broken
        return lines

    def _number(self, db: sqlite3.Connection, run: RunRef) -> int:
        """The number of a Run in this file, which it is given now if it has none."""
        key = self._key(run.job_id)
        number = _find_run(db, key, run.run_id)
        if number is not None:
            return number // _PLACES
        check_id(run.run_id, "run")
        self._require(db, run.job_id)
        added = db.execute("INSERT INTO runs (job_id, run_id) VALUES (?, ?)", (key, run.run_id)).lastrowid
        return added or 0

    def _head(self, db: sqlite3.Connection, run: RunRef, base: int) -> Head:
        query = "SELECT key, line FROM records WHERE key BETWEEN ? AND ? ORDER BY key DESC LIMIT 1"
        rows = _rows(db, query, (base, base + _PLACES - 1))
        if not rows:
            return EMPTY_LOG
        seq = int(str(rows[0][0])) - base
        try:
            return Head(seq, open_line(_bytes(rows[0][1])).hash)
        except BrokenSeal as broken:
            raise self._damaged(run, seq - 1, broken) from broken

    def _has_record(self, db: sqlite3.Connection, run: RunRef, head: Head) -> bool:
        base = _find_run(db, self._key(run.job_id), run.run_id)
        line = None if base is None else _one(db, "SELECT line FROM records WHERE key = ?", (base + head.seq,))
        return line is not None and ends_at(line, head)

    def _head_at(self, db: sqlite3.Connection, run: RunRef, base: int, expected_seq: int) -> Head:
        """The head of a log that has so many records. Raises Conflict if it has not."""
        head = self._head(db, run, base)
        if head.seq != expected_seq:
            raise stale(self._place(run), expected_seq, head.seq)
        return head

    def _open_lease(self, job_id: str) -> int:
        try:
            self._leases.mkdir(FOLDER_MODE, exist_ok=True)
            return os.open(self._lease_file(job_id), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            raise StorageError(f"{self._lease_file(job_id)}: {(error.strerror or str(error)).lower()}") from error

    def _require(self, db: sqlite3.Connection | None, job_id: str) -> sqlite3.Connection:
        if db is None or not _has_job(db, self._key(job_id)):
            raise self._no_job(job_id)
        return db

    def _key(self, job_id: str) -> str:
        """What the tables call a Job."""
        return self._prefix + check_job_id(job_id)

    def _id(self, key: object) -> str:
        return str(key).removeprefix(self._prefix)

    def _lease_file(self, job_id: str) -> Path:
        return self._leases / self._key(job_id).replace("/", ".")

    def _no_job(self, job_id: str) -> NotFound:
        return NotFound(f"there is no Job {job_id} in {self._path}")

    def _damaged(self, run: RunRef, readable: int, broken: BrokenSeal) -> Damaged:
        return Damaged(
            f"{self._place(run)}, record {readable + 1}: {broken}; records before it that can be read: {readable}. "
            "Put the file back from a copy",
            readable=readable,
        )

    def _place(self, run: RunRef) -> str:
        return f"{self._path}, run {run.run_id}"


def _rows(db: sqlite3.Connection | None, query: str, values: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    return [] if db is None else db.execute(query, values).fetchall()


def _one(db: sqlite3.Connection | None, query: str, values: tuple[object, ...]) -> bytes | None:
    rows = _rows(db, query, values)
    return None if not rows or rows[0][0] is None else _bytes(rows[0][0])


def _bytes(value: object) -> bytes:
    # somebody with a database shell may have stored text where bytes belong
    return value if isinstance(value, bytes) else str(value).encode()


def _has_job(db: sqlite3.Connection, key: str) -> bool:
    return bool(_rows(db, "SELECT 1 FROM jobs WHERE job_id = ?", (key,)))


def _find_run(db: sqlite3.Connection, key: str, run_id: str) -> int | None:
    """The key that a Run's records follow; None if the Run is unknown."""
    rows = _rows(db, "SELECT n FROM runs WHERE job_id = ? AND run_id = ?", (key, run_id))
    return int(str(rows[0][0])) * _PLACES if rows else None
