"""Fail at the n-th boundary of a process: a change that it makes on disk, counted from 1.

A boundary is a write, a rename, a sync, or any other change of a file or folder; with SQLite, a statement that changes
the database. Only changes inside `root` count, so that imports and output do not.

    prepare()                       # before anything else is imported
    arm(root, Fault("kill", 7))     # this process ends by SIGKILL right before its seventh change
"""

from __future__ import annotations

import errno
import mmap
import os
import signal
import sqlite3
import stat
import struct
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

from perstack.dataclass import dataclass

FaultKind = Literal["kill", "torn", "EIO", "ENOSPC", "EMFILE"]
"""`kill`: SIGKILL right before the boundary. `torn`: SIGKILL in the middle of a write. Others: errors of the system."""

FAULT_KINDS: tuple[FaultKind, ...] = get_args(FaultKind)

_WRITE_FUNCTIONS = ("write", "pwrite")
_HANDLE_FUNCTIONS = ("fsync", "fdatasync", "ftruncate")
_PATH_FUNCTIONS = ("rename", "replace", "link", "symlink", "mkdir", "rmdir", "unlink", "remove")
_CHANGING_STATEMENTS = ("BEGIN", "COMMIT", "INSERT", "UPDATE", "DELETE", "CREATE", "ALTER", "DROP", "REPLACE")
_FORMAT = struct.Struct("qqq")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault and its boundary within one process. EMFILE counts opened files instead of changes."""

    kind: FaultKind
    at: int


@dataclass(frozen=True, slots=True)
class Count:
    """Number of boundaries that a process reached, and whether it met its fault."""

    changes: int
    opens: int
    reached: bool

    def of(self, kind: FaultKind) -> int:
        """Return the number of boundaries that a fault of this kind counts."""
        return self.opens if kind == "EMFILE" else self.changes


class Board:
    """Counts in memory shared with the forking process, so that they outlive the counted process."""

    def __init__(self) -> None:
        """Map the shared memory."""
        self._shared = mmap.mmap(-1, _FORMAT.size)

    def write(self, changes: int, opens: int, reached: bool) -> None:
        """Store the current counts."""
        self._shared[:] = _FORMAT.pack(changes, opens, reached)

    def read(self) -> Count:
        """Return the last stored counts."""
        changes, opens, reached = _FORMAT.unpack(self._shared[:])
        return Count(changes, opens, bool(reached))


@dataclass
class _Injector:
    root: str
    fault: Fault | None
    board: Board
    changes: int = 0
    opens: int = 0
    reached: bool = False

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def change(self) -> FaultKind | None:
        with self._lock:
            self.changes += 1
            return self._reach(self.changes, of_opens=False)

    def open(self) -> FaultKind | None:
        with self._lock:
            self.opens += 1
            return self._reach(self.opens, of_opens=True)

    def _reach(self, number: int, *, of_opens: bool) -> FaultKind | None:
        fault = self.fault
        is_reached = fault is not None and (fault.kind == "EMFILE") == of_opens and fault.at == number
        self.reached = self.reached or is_reached
        self.board.write(self.changes, self.opens, self.reached)
        return fault.kind if fault is not None and is_reached else None

    def is_inside(self, path: object) -> bool:
        if isinstance(path, Path | str | bytes):
            text = os.fsdecode(path)
            return not text.startswith("/") or text == self.root or text.startswith(self.root + "/")
        return False


write_uncounted = os.write  # writes without counting, for observers of a process

_state: dict[str, _Injector] = {}  # the injector of this process, under the only key "armed", once it is armed


def prepare() -> None:
    """Install the counters, inactive. Must be called before importing what is to be counted."""
    for name in _WRITE_FUNCTIONS:
        _replace(os, name, _counting_write)
    for name in _HANDLE_FUNCTIONS:
        _replace(os, name, _counting_by_handle)
    for name in _PATH_FUNCTIONS:
        _replace(os, name, _counting_by_path)
    connect = sqlite3.connect

    def connect_counted(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **{"factory": _FailingConnection, **kwargs})
        return connection

    _replace(sqlite3, "connect", lambda _: connect_counted)
    sys.addaudithook(_on_audit)


def arm(root: Path, fault: Fault | None, board: Board) -> None:
    """Start counting what this process does inside `root`, and inject the fault."""
    _state["armed"] = _Injector(str(root.resolve()), fault, board)


def _replace(module: object, name: str, wrapped: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    if not hasattr(module, name):
        return
    real = getattr(module, name)
    counted = wrapped(real)
    # shutil looks functions up in these sets to find out what the system supports
    for supported in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if real in supported:
            supported.add(counted)
    setattr(module, name, counted)


def _counting_write(real: Callable[..., int]) -> Callable[..., int]:
    def write(fd: int, data: bytes, *args: Any) -> int:
        injector = _state.get("armed")
        if injector is None or not _is_on_disk(fd):
            return real(fd, data, *args)
        kind = injector.change()
        if kind == "torn":
            real(fd, bytes(memoryview(data)[: len(data) // 2]), *args)
            _die()
        _fail(kind)
        return real(fd, data, *args)

    return write


def _counting_by_handle(real: Callable[..., Any]) -> Callable[..., Any]:
    def call(fd: Any, *args: Any) -> Any:
        injector = _state.get("armed")
        number = fd if isinstance(fd, int) else fd.fileno()
        return (
            real(fd, *args)
            if injector is None or not _is_on_disk(number)
            else _count_and_call(injector, real, fd, *args)
        )

    return call


def _counting_by_path(real: Callable[..., Any]) -> Callable[..., Any]:
    def call(path: Any, *args: Any, **kwargs: Any) -> Any:
        injector = _state.get("armed")
        if injector is None or not injector.is_inside(path):
            return real(path, *args, **kwargs)
        return _count_and_call(injector, real, path, *args, **kwargs)

    return call


def _count_and_call(injector: _Injector, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    kind = injector.change()
    if kind == "torn":
        with suppress(OSError):  # a call that fails as expected, as of a directory that exists, is a boundary too
            real(*args, **kwargs)
        _die()
    _fail(kind)
    return real(*args, **kwargs)


class _FailingConnection(sqlite3.Connection):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        injector = _state.get("armed")
        if injector is not None and injector.open() is not None:
            raise _sqlite_error("EMFILE")
        super().__init__(*args, **kwargs)

    def execute(self, sql: str, /, *args: Any) -> sqlite3.Cursor:
        return self._count_statement(super().execute, sql, args)

    def executemany(self, sql: str, /, *args: Any) -> sqlite3.Cursor:
        return self._count_statement(super().executemany, sql, args)

    def _count_statement(self, real: Callable[..., sqlite3.Cursor], sql: str, args: Iterable[Any]) -> sqlite3.Cursor:
        injector = _state.get("armed")
        if injector is None or not sql.lstrip().upper().startswith(_CHANGING_STATEMENTS):
            return real(sql, *args)
        kind = injector.change()
        if kind == "torn":
            real(sql, *args)
            _die()
        if kind == "kill":
            _die()
        if kind is not None:
            raise _sqlite_error(kind)
        return real(sql, *args)


def _sqlite_error(kind: FaultKind) -> sqlite3.OperationalError:
    text = {"EIO": "disk I/O error", "ENOSPC": "database or disk is full"}.get(kind, "unable to open database file")
    code = {"EIO": sqlite3.SQLITE_IOERR, "ENOSPC": sqlite3.SQLITE_FULL}.get(kind, sqlite3.SQLITE_CANTOPEN)
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


def _on_audit(event: str, args: tuple[Any, ...]) -> None:
    injector = _state.get("armed")
    if injector is None or event != "open":
        return
    path, mode, flags = args
    # the mode is None for os.open(); open() of a file descriptor opens no file, and is_inside() is false for it
    if not injector.is_inside(path):
        return
    if injector.open() is not None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), os.fsdecode(path))
    if mode is not None and isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR):
        _fail(injector.change())


def _is_on_disk(fd: int) -> bool:
    if fd <= 2:
        return False
    mode = os.fstat(fd).st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def _fail(kind: FaultKind | None) -> None:
    if kind in ("kill", "torn"):
        _die()
    if kind is not None:
        code = getattr(errno, kind)
        raise OSError(code, os.strerror(code))


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL was survived")
