"""The file: its tables, and one connection a process."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from perstack.errors import StorageError

_APPLICATION = 0x70727374  # "prst"
_VERSION = 2
_MAGIC = b"SQLite format 3\0"
_NO_DATABASE = "this is no SQLite database; name another file in `storage`"
_BUSY_SECONDS = 10.0

# A record's key is its Run's number here (runs.n) times 2^32 plus its place: one tree in the order of reading.
_TABLES = """
CREATE TABLE jobs (job_id TEXT PRIMARY KEY, written INTEGER NOT NULL, summary BLOB) WITHOUT ROWID;
CREATE INDEX jobs_by_time ON jobs (written, job_id);
CREATE TABLE runs (n INTEGER PRIMARY KEY, job_id TEXT NOT NULL, run_id TEXT NOT NULL, setting BLOB,
    UNIQUE (job_id, run_id));
CREATE TABLE records (key INTEGER PRIMARY KEY, line BLOB NOT NULL);
CREATE TABLE checkpoints (job_id TEXT NOT NULL, checkpoint_id TEXT NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (job_id, checkpoint_id));
CREATE TABLE blobs (job_id TEXT NOT NULL, sha256 TEXT NOT NULL, data BLOB NOT NULL, PRIMARY KEY (job_id, sha256));
"""

_SINCE_2 = "CREATE TABLE entries (job_id TEXT PRIMARY KEY, seq INTEGER NOT NULL, entry BLOB NOT NULL)"


class Database:
    """Opens the file when it is first used, and again in a child process: a connection must not cross a fork."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None
        self._process = 0

    @contextmanager
    def reading(self) -> Generator[sqlite3.Connection | None]:
        """The connection; None if the file does not exist. Raises StorageError for SQLite's errors."""
        with self._explained():
            yield self._connect() if self._is_open() or self.path.exists() else None

    @contextmanager
    def writing(self, *, synced: bool = True) -> Generator[sqlite3.Connection]:
        """A transaction that is done when the block ends, or not at all if it raises.

        Unless `synced` is false it survives power loss then; otherwise with the next one that is.
        """
        with self._explained():
            connection = self._connect()
            connection.execute(f"PRAGMA synchronous = {'FULL' if synced else 'NORMAL'}")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None and self._is_open():
            self._connection.close()
        self._connection = None

    def _is_open(self) -> bool:
        return self._connection is not None and self._process == os.getpid()

    def _connect(self) -> sqlite3.Connection:
        if self._connection is not None and self._is_open():
            return self._connection
        is_new = not self.path.exists()
        if is_new:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        else:
            self._check_magic()
        connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        if is_new:
            _sync_directory(self.path.parent)
        self._connection, self._process = connection, os.getpid()
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        if not _is_empty(connection):
            self._check_identity(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        # looked at again inside the transaction: another process may have made the tables meanwhile
        if _is_empty(connection):
            for statement in _TABLES.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
        if pragma(connection, "user_version") < _VERSION:
            connection.execute(_SINCE_2)
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        connection.execute("COMMIT")

    def _check_magic(self) -> None:
        # SQLite itself takes a very short file for an empty one, and would write over it
        with self.path.open("rb") as file:
            start = file.read(len(_MAGIC))
        if start and start != _MAGIC:
            raise StorageError(f"{self.path}: {_NO_DATABASE}")

    def _check_identity(self, connection: sqlite3.Connection) -> None:
        if pragma(connection, "application_id") != _APPLICATION:
            raise StorageError(f"{self.path}: this is the database of another program; name another file in `storage`")
        version = pragma(connection, "user_version")
        if version > _VERSION:
            raise StorageError(f"{self.path}: written by a newer perstack (schema {version}); upgrade perstack")

    @contextmanager
    def _explained(self) -> Generator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StorageError(f"{self.path}: {_reason(error)}") from error
        except OSError as error:
            raise StorageError(f"{self.path}: {(error.strerror or str(error)).lower()}") from error


def pragma(connection: sqlite3.Connection, name: str) -> int:
    """The value of a numeric pragma."""
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _is_empty(connection: sqlite3.Connection) -> bool:
    return pragma(connection, "schema_version") == 0


def _reason(error: sqlite3.Error) -> str:
    text = str(error)
    if "not a database" in text:
        return _NO_DATABASE
    if "locked" in text:
        return f"another process has kept it locked for {_BUSY_SECONDS:.0f} s; try again when it is done"
    return text


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
