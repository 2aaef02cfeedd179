"""The file: its tables, and its connections, one to write and one to read."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TypeVar
from urllib.parse import quote

from perstack.errors import StorageError
from perstack.ports.state_folder import FILE_MODE, make_state_folder, sync_directory
from perstack.ports.uninterrupted import uninterrupted
from perstack_sqlite.worker import BUSY_SECONDS, Worker, is_busy

T = TypeVar("T")

_APPLICATION = 0x70727374  # "prst"
_VERSION = 4
_SMALLEST = 512
"""Bytes: no database is smaller."""
_DAMAGED = "it is damaged: put it back from a copy"
_NO_DATABASE = "this is not an SQLite database; name another file in `storage`"

_PAUSE = 0.01
"""Seconds until a file is looked at again that others open."""

_MAKING = Lock()
"""Held while a file is made: to close it would take from this process the locks that it has on it."""

SPACE = "substr(job_id, 1, instr(job_id, '/'))"
"""The space of a row, as it is in the index of Jobs."""

# A record's key is its Run's number here (runs.n) times 2^32 plus its place: one tree in the order of reading.
_TABLES = """
CREATE TABLE jobs (job_id TEXT PRIMARY KEY, written INTEGER NOT NULL, summary BLOB) WITHOUT ROWID;
CREATE TABLE runs (n INTEGER PRIMARY KEY, job_id TEXT NOT NULL, run_id TEXT NOT NULL, setting BLOB,
    UNIQUE (job_id, run_id));
CREATE TABLE records (key INTEGER PRIMARY KEY, line BLOB NOT NULL);
CREATE TABLE checkpoints (job_id TEXT NOT NULL, checkpoint_id TEXT NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (job_id, checkpoint_id));
CREATE TABLE blobs (job_id TEXT NOT NULL, sha256 TEXT NOT NULL, data BLOB NOT NULL, PRIMARY KEY (job_id, sha256));
"""

_SINCE = {
    2: "CREATE TABLE entries (job_id TEXT PRIMARY KEY, seq INTEGER NOT NULL, entry BLOB NOT NULL)",
    3: f"""
DROP INDEX IF EXISTS jobs_by_time;
CREATE INDEX IF NOT EXISTS jobs_by_space ON jobs ({SPACE}, written, job_id)
""",
    4: """
CREATE TABLE IF NOT EXISTS contents (sha256 TEXT PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS shared (
    job_id TEXT NOT NULL, sha256 TEXT NOT NULL, PRIMARY KEY (job_id, sha256)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS shared_by_content ON shared (sha256)
""",
}
"""What each version has more than the one before it."""


class Database:
    """Opens the file when it is first used.

    Another process may keep it locked for seconds, and a disk may be slow: what has to wait does so in threads, one
    that writes and one that reads, and reading never waits for a write that waits.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opening = Lock()
        self._reader = Worker(self._open_to_read, "perstack-sqlite-read")
        self._writer = Worker(self._open_to_write, "perstack-sqlite-write")
        self._syncs: bool | None = None
        """Whether the connection that writes syncs what it commits; None if nobody has said so."""

    async def read(self, work: Callable[[sqlite3.Connection | None], T]) -> T:
        """What `work` returns, given a connection; None if the file does not exist.

        Raises StorageError for SQLite's errors. A cancellation abandons it if it waits.
        """

        def reading() -> T:
            return work(self._reader.connection() if self._reader.is_open or self.path.exists() else None)

        with self._explained():
            return await self._reader.do(reading, wholly=False)

    async def write(self, work: Callable[[sqlite3.Connection], T], *, synced: bool = True, is_long: bool = False) -> T:
        """What `work` returns, in a transaction that is done when it ends, or not at all if it raises.

        Unless `synced` is false it survives power loss then; otherwise with the next one that is. If it waits, a
        cancellation waits until it has been done or not, so that nothing happens behind its caller's back.
        """

        def writing() -> T:
            connection = self._writer.connection()
            if self._syncs is not synced:
                connection.execute(f"PRAGMA synchronous = {'FULL' if synced else 'NORMAL'}")
                self._syncs = synced
            with _transaction(connection):
                return work(connection)

        with self._explained():
            return await self._writer.do(writing, wholly=True, is_long=is_long)

    async def rewrite(self) -> None:
        """Write the file anew, with nothing in it but what is kept, and empty the log beside it.

        Takes time by the size of the file, and as much room again meanwhile. Raises StorageError if another process
        is at work in it.
        """

        def rewriting() -> None:
            connection = self._writer.connection()
            connection.execute("VACUUM")
            (is_busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if is_busy:
                raise StorageError(
                    f"{self.path}-wal: another process is reading the database: old content stays there until that has"
                    " ended; try again then"
                )

        with self._explained():
            await self._writer.do(rewriting, wholly=True)

    async def close(self) -> None:
        """Close the connections, when what has begun has been done."""
        await uninterrupted(self._reader.close())
        await uninterrupted(self._writer.close())

    def _open_to_write(self) -> sqlite3.Connection:
        self._syncs = None
        return self._open()

    def _open(self) -> sqlite3.Connection:
        with self._opening:
            is_new = self._make()
            self._check_size()
            connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            try:
                if sys.platform == "darwin":  # where a sync alone leaves data in the cache of the disk
                    connection.execute("PRAGMA fullfsync = 1")
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            if is_new:
                sync_directory(self.path.parent)
            return connection

    def _open_to_read(self) -> sqlite3.Connection:
        """Where nothing may be written, without writing anything: no table, and none of the files beside this one."""
        if os.access(self.path, os.W_OK) and os.access(self.path.parent, os.W_OK):
            return self._open()
        self._check_size()
        # what is in the log beside it counts, and SQLite then needs what it keeps of it in a third file
        log = self.path.with_name(self.path.name + "-wal")
        mode = "mode=ro" if log.exists() and log.stat().st_size else "immutable=1"
        connection = sqlite3.connect(
            f"file:{quote(str(self.path))}?{mode}", uri=True, isolation_level=None, check_same_thread=False
        )
        try:
            self._check_identity(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        if not _is_empty(connection):
            self._check_identity(connection)
            if _pragma(connection, "user_version") == _VERSION:
                return
        _write_ahead(connection)
        with _transaction(connection):
            # looked at again inside the transaction: another process may have made the tables meanwhile
            if _is_empty(connection):
                _execute_all(connection, _TABLES)
                connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            for version in range(max(_pragma(connection, "user_version"), 1) + 1, _VERSION + 1):
                _execute_all(connection, _SINCE[version])
                connection.execute(f"PRAGMA user_version = {version}")

    def _make(self) -> bool:
        """Make the file, empty, with the mode that SQLite gives the files beside it too. False if it is there."""
        with _MAKING:
            if self.path.exists():
                return False
            make_state_folder(self.path.parent)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
            return True

    def _check_size(self) -> None:
        # SQLite itself takes a very short file for an empty one, and would write over it. It is not read here: closing
        # it would end all locks that this process has on it, and whoever else closes it then would take the log beside
        # it away from under a connection that writes
        if 0 < self.path.stat().st_size < _SMALLEST:
            raise StorageError(f"{self.path}: {_NO_DATABASE}")

    def _check_identity(self, connection: sqlite3.Connection) -> None:
        if _pragma(connection, "application_id") != _APPLICATION:
            raise StorageError(f"{self.path}: this is the database of another program; name another file in `storage`")
        version = _pragma(connection, "user_version")
        if version > _VERSION:
            raise StorageError(f"{self.path}: written by a newer perstack (schema {version}); upgrade perstack")

    @contextmanager
    def _explained(self) -> Generator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StorageError(f"{self.path}: {_reason(error)}") from error
        except ValueError as error:  # a message of SQLite that is no UTF-8, or a value of another type
            raise StorageError(f"{self.path}: {_DAMAGED}") from error
        except OSError as error:
            raise StorageError(f"{self.path}: {(error.strerror or str(error)).lower()}") from error


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Generator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Have the file written by a log ahead of it. SQLite itself does not wait here for others who open it now."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE)


def _execute_all(connection: sqlite3.Connection, statements: str) -> None:
    # executescript() would end the transaction
    for statement in statements.split(";"):
        connection.execute(statement)


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _is_empty(connection: sqlite3.Connection) -> bool:
    return _pragma(connection, "schema_version") == 0


def _reason(error: sqlite3.Error) -> str:
    text = " ".join(str(error).split())  # a damaged schema comes with its lines
    if "not a database" in text:
        return _NO_DATABASE
    if "is full" in text:
        return f"{text}: free some space, then resume"
    if "locked" in text:
        return f"another process has kept it locked for {BUSY_SECONDS:.0f} s; try again when it is done"
    return text
