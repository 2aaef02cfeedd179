"""The SQLite file: its schema, its writing connection and its reading connection."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import sys
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from perstack.errors import StorageError
from perstack.system.concurrency import LatencyMonitor, shield_until_done
from perstack.system.files import FILE_MODE, make_state_folder, open_for_reading, sync_directory, system_reason

if TYPE_CHECKING:
    from tempfile import TemporaryDirectory

T = TypeVar("T")

BUSY_TIMEOUT_S = 10.0  # seconds that the thread waits while another process has the file locked

_INHERITED: list[object] = []
"""Connections and threads inherited across a fork: this process must neither use nor close them."""


def is_busy(error: sqlite3.OperationalError) -> bool:
    """Return whether another process has the file locked. Errors raised by Python itself have no SQLite code."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF == sqlite3.SQLITE_BUSY


class DatabaseConnection:
    """A connection, opened on first use (again in a forked child), and a thread for operations that may block.

    On a fast disk only long operations and those that would wait run in the thread: a thread switch would take longer
    than the operation.
    """

    def __init__(self, open_connection: Callable[[], sqlite3.Connection], name: str) -> None:
        """Open nothing yet; `name` names the thread."""
        self._open_or_create = open_connection
        self._name = name
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None
        self._process = os.getpid()
        self._turn = Lock()
        self._pace = LatencyMonitor()

    async def do(self, work: Callable[[], T], *, wholly: bool, is_long: bool = False) -> T:
        """Run an operation and return its result; a cancellation abandons its wait, or with `wholly` waits for its end.

        A long operation runs in the thread at once, and does not count for the disk's latency.
        """
        is_ready = self._connection is not None and self._process == os.getpid() and not self._pace.is_slow
        is_ready = is_ready and not is_long
        if is_ready and self._turn.acquire(blocking=False):
            try:
                # if another task has closed it meanwhile, the thread opens it again, so that a later `close` closes it
                if self._connection is not None:
                    with self._pace.measure():
                        return work()
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
            finally:
                self._turn.release()
        result = self._in_thread(work, is_long=is_long)
        return await (shield_until_done(result) if wholly else result)

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def connection(self) -> sqlite3.Connection:
        """Return the connection, opening it if needed. Call it only inside an operation of `do`."""
        if self._connection is None:
            self._connection = self._open_or_create()
        return self._connection

    async def close(self) -> None:
        """Close the connection and end the thread. A later operation starts them again."""
        if self._process != os.getpid() or self._thread is None:
            return
        thread, self._thread = self._thread, None
        try:
            await asyncio.get_running_loop().run_in_executor(thread, self._disconnect)
        finally:
            thread.shutdown()

    async def _in_thread(self, work: Callable[[], T], *, is_long: bool) -> T:
        return await asyncio.get_running_loop().run_in_executor(
            self._running_thread(), self._run_waiting, work, is_long
        )

    def _run_waiting(self, work: Callable[[], T], is_long: bool) -> T:
        with self._turn:
            if self._connection is not None:
                self._connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_S * 1000:.0f}")
            try:
                with nullcontext() if is_long else self._pace.measure():
                    return work()
            finally:
                if self._connection is not None:
                    self._connection.execute("PRAGMA busy_timeout = 0")

    def _running_thread(self) -> ThreadPoolExecutor:
        if self._process != os.getpid():
            _INHERITED.extend((self._connection, self._thread))
            self._connection, self._thread, self._process, self._turn = None, None, os.getpid(), Lock()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, self._name)
        return self._thread

    def _disconnect(self) -> None:
        with self._turn:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


_APPLICATION = 0x70727374  # "prst"
_VERSION = 5  # schema version. Lower ones were never released.
_MIN_FILE_BYTES = 512  # minimum size of a database file in bytes
_DAMAGED = "it is damaged: restore it from a copy"
_NO_DATABASE = "this is not an SQLite database: name another file in `storage`"

_RETRY_INTERVAL_S = 0.01  # seconds between attempts while another process opens the file

_CREATION_LOCK = Lock()
"""Held while a file is created: closing its descriptor would release this process's locks on the file."""

_CHUNK_BYTES = 1 << 20


def companions(path: Path) -> tuple[Path, ...]:
    """Return the files with which SQLite may complete or change the content of a database file."""
    return tuple(path.with_name(f"{path.name}{suffix}") for suffix in ("-wal", "-shm", "-journal"))


SPACE = "substr(job_id, 1, instr(job_id, '/'))"  # SQL expression for a row's namespace, exactly as in the index of Jobs

# A record's key is its Run's number (runs.n) times 2^32 plus its sequence number: one tree in reading order.
_TABLES = f"""
CREATE TABLE jobs (job_id TEXT PRIMARY KEY, written INTEGER NOT NULL, summary BLOB) WITHOUT ROWID;
CREATE TABLE runs (n INTEGER PRIMARY KEY, job_id TEXT NOT NULL, run_id TEXT NOT NULL, setting BLOB,
    UNIQUE (job_id, run_id));
CREATE TABLE records (key INTEGER PRIMARY KEY, line BLOB NOT NULL);
CREATE TABLE checkpoints (job_id TEXT NOT NULL, checkpoint_id TEXT NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (job_id, checkpoint_id));
CREATE TABLE entries (job_id TEXT PRIMARY KEY, seq INTEGER NOT NULL, entry BLOB NOT NULL);
CREATE INDEX jobs_by_space ON jobs ({SPACE}, written, job_id);
CREATE TABLE blobs (sha256 TEXT PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE job_blobs (job_id TEXT NOT NULL, sha256 TEXT NOT NULL, PRIMARY KEY (job_id, sha256)) WITHOUT ROWID;
CREATE INDEX job_blobs_by_blob ON job_blobs (sha256)
"""


class Database:
    """A database file, opened on first use, with a writing and a reading thread.

    Reads do not wait for a write that another process or a slow disk blocks.
    """

    def __init__(self, path: Path, *, is_evidence: bool = False) -> None:
        """Open nothing yet. `is_evidence`: reading creates and changes no file next to this one."""
        self.path = path
        self._is_evidence = is_evidence
        # copy that is read instead if SQLite would have to apply a log to the file
        self._copy: TemporaryDirectory[str] | None = None
        self._opening = Lock()
        self._reader = DatabaseConnection(self._open_to_read, "perstack-sqlite-read")
        self._writer = DatabaseConnection(self._open_to_write, "perstack-sqlite-write")
        self._syncs: bool | None = None  # True if the writing connection syncs its commits; None if not set yet

    async def read(self, work: Callable[[sqlite3.Connection | None], T]) -> T:
        """Return the result of `work`, called with None without a file. Cancellation abandons it."""

        def reading() -> T:
            return work(self._reader.connection() if self._reader.is_open or self._has_content() else None)

        with self._explain_errors():
            return await self._reader.do(reading, wholly=False)

    async def write(self, work: Callable[[sqlite3.Connection], T], *, synced: bool = True, is_long: bool = False) -> T:
        """Return the result of `work`, run in a transaction that is rolled back if it raises.

        Without `synced` the commit becomes durable with the next synced one. A cancellation waits for the end of the
        transaction, so that nothing is written after the caller continues.
        """

        def writing() -> T:
            connection = self._writer.connection()
            if self._syncs is not synced:
                connection.execute(f"PRAGMA synchronous = {'FULL' if synced else 'NORMAL'}")
                self._syncs = synced
            with _transaction(connection):
                return work(connection)

        with self._explain_errors():
            return await self._writer.do(writing, wholly=True, is_long=is_long)

    async def rewrite(self) -> None:
        """Rewrite the file without unused pages (VACUUM) and empty its write-ahead log.

        Needs as much disk space again. Raises StorageError while another process is reading the database.
        """

        def rewriting() -> None:
            connection = self._writer.connection()
            connection.execute("VACUUM")
            (is_busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if is_busy:
                raise StorageError(
                    f"{self.path}-wal: another process is reading the database: old content stays there until it ends;"
                    " then try again"
                )

        with self._explain_errors():
            await self._writer.do(rewriting, wholly=True)

    async def close(self) -> None:
        """Close the connections after the running operations have ended."""
        await shield_until_done(self._close_both())

    async def _close_both(self) -> None:
        try:
            await self._reader.close()
        finally:
            await self._writer.close()
            copy, self._copy = self._copy, None
            if copy is not None:
                copy.cleanup()

    def _open_to_write(self) -> sqlite3.Connection:
        self._syncs = None
        return self._open_or_create()

    def _open_or_create(self) -> sqlite3.Connection:
        """Open the file for writing, creating it and its tables if they are missing. Raises StorageError."""
        with self._opening:
            is_new = self._create_file()
            self._check_size()
            connection = sqlite3.connect(self.path, BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
            try:
                if sys.platform == "darwin":  # for systems on which a plain sync leaves data in the disk's cache
                    connection.execute("PRAGMA fullfsync = 1")
                self._ensure_tables(connection)
            except BaseException:
                connection.close()
                raise
            if is_new:
                sync_directory(self.path.parent)
            return connection

    def _open_to_read(self) -> sqlite3.Connection:
        """Open the reading connection. On a read-only path create neither tables nor companion files."""
        if self._is_evidence:
            return self._open_evidence()
        if os.access(self.path, os.W_OK) and os.access(self.path.parent, os.W_OK):
            return self._open_or_create()
        self._check_size()
        # A non-empty WAL must be read, and SQLite then needs the -shm file; otherwise `immutable` needs no other file.
        log = self.path.with_name(self.path.name + "-wal")
        return self._open_unchanged(self.path, "mode=ro" if log.exists() and log.stat().st_size else "immutable=1")

    def _has_content(self) -> bool:
        """Return whether there is a database to read; as evidence, an empty file does not count."""
        try:
            return self.path.stat().st_size > 0 or not self._is_evidence
        except OSError:
            return self.path.exists()

    def _open_evidence(self) -> sqlite3.Connection:
        """Open the file without writing next to it: if SQLite would have to apply a log first, open a copy."""
        self._check_size()
        if not any(os.path.lexists(path) for path in companions(self.path)):
            return self._open_unchanged(self.path, "immutable=1")
        from tempfile import TemporaryDirectory  # at rest few databases have one of these files

        self._copy = TemporaryDirectory(prefix="perstack-")
        for path in (self.path, *companions(self.path)):
            copy = Path(self._copy.name, path.name)
            with suppress(FileNotFoundError), open_for_reading(path) as file, copy.open("wb") as new:
                while data := os.read(file, _CHUNK_BYTES):
                    new.write(data)
        return self._open_unchanged(Path(self._copy.name, self.path.name), "mode=rw")

    def _open_unchanged(self, path: Path, mode: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?{mode}", uri=True, isolation_level=None, check_same_thread=False
        )
        try:
            self._check_identity(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _ensure_tables(self, connection: sqlite3.Connection) -> None:
        if _is_empty(connection):
            _enable_write_ahead_log(connection)
            with _transaction(connection):
                # Check again inside the transaction: another process may have created the tables in the meantime.
                if _is_empty(connection):
                    # executescript() would end the transaction.
                    for statement in _TABLES.split(";"):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                    connection.execute(f"PRAGMA user_version = {_VERSION}")
        self._check_identity(connection)

    def _create_file(self) -> bool:
        """Create the empty file with our mode, which SQLite copies to its companion files.

        Return False if it exists.
        """
        with _CREATION_LOCK:
            if self.path.exists():
                return False
            make_state_folder(self.path.parent)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
            return True

    def _check_size(self) -> None:
        # SQLite treats a very short file as empty and would overwrite it. Do not open the file here: closing it
        # would release all locks that this process has on it, and another process that closes it then would remove the
        # WAL that a connection is still writing.
        status = self.path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise StorageError(f"{self.path}: it is not a regular file")
        if 0 < status.st_size < _MIN_FILE_BYTES:
            raise StorageError(f"{self.path}: {_NO_DATABASE}")

    def _check_identity(self, connection: sqlite3.Connection) -> None:
        """Raise StorageError for another program's database, or one of another version."""
        if _read_pragma(connection, "application_id") != _APPLICATION:
            raise StorageError(f"{self.path}: this is another program's database: name another file in `storage`")
        version = _read_pragma(connection, "user_version")
        if version > _VERSION:
            raise StorageError(f"{self.path}: written by a newer perstack (schema {version}); upgrade perstack")
        if version < _VERSION:
            raise StorageError(
                f"{self.path}: written before the first release of perstack (schema {version}); name another file in"
                " `storage`"
            )
        if not _has_our_tables(connection):
            raise StorageError(f"{self.path}: its tables are not those of perstack: name another file in `storage`")

    @contextmanager
    def _explain_errors(self) -> Generator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StorageError(f"{self.path}: {_error_line(error)}") from error
        except ValueError as error:  # a message of SQLite that is not UTF-8, or a value of another type
            raise StorageError(f"{self.path}: {_DAMAGED}") from error
        except OSError as error:
            raise StorageError(f"{self.path}: {system_reason(error)}") from error


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


def _enable_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switch to WAL mode, with retries: SQLite does not apply its busy timeout here while others open the file."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
        time.sleep(_RETRY_INTERVAL_S)


def _read_pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _is_empty(connection: sqlite3.Connection) -> bool:
    return _read_pragma(connection, "schema_version") == 0


def _has_our_tables(connection: sqlite3.Connection) -> bool:
    """Return whether the file has exactly our tables and indices, and nothing else that SQLite would execute.

    A view with the name of a table can be a query that never ends, and a trigger runs with each change.
    """
    rows = connection.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    statements = [_join_lines(sql) for kind, name, sql in rows if not _belongs_to_sqlite(kind, name)]
    return sorted(statements) == sorted(map(_join_lines, _TABLES.split(";")))


def _belongs_to_sqlite(kind: str, name: str) -> bool:
    """Return whether an object belongs to SQLite itself, such as the statistics of ANALYZE."""
    return kind == "table" and name.startswith("sqlite_")


def _join_lines(statement: str) -> str:
    return " ".join(statement.split())


def _error_line(error: sqlite3.Error) -> str:
    text = " ".join(str(error).split())  # a damaged schema's message contains newlines
    if "not a database" in text:
        return _NO_DATABASE
    if "is full" in text:
        return f"{text}: free some space, then resume"
    if "locked" in text:
        return f"another process has kept it locked for {BUSY_TIMEOUT_S:.0f} s; try again when it is done"
    return text
