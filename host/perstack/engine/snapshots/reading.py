"""Files of a folder that anybody may change meanwhile: what was read of one, whole, or why it was not read.

Everything is opened relative to an open folder. No link is followed, and nothing is waited for that is no file.
"""

from __future__ import annotations

import errno
import os
import stat

from perstack.core.snapshots.tree import Reason
from perstack.dataclass import dataclass
from perstack.errors import StorageError

_OF_THE_SYSTEM = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
"""Errors that say nothing of what was to be read."""

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PIECE = 1 << 20
_TRIES = 3
"""How often a file is read that changes while it is read."""

Stamp = tuple[int, int, int, int, int, int]
"""What tells that something is what it was: times of change, bytes, number, mode, device."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a file had in it."""

    data: bytes
    stamp: Stamp
    is_steady: bool
    """Nobody changed it while it was read. Otherwise this is what was read last."""


@dataclass(frozen=True, slots=True)
class Unread:
    """Why a file was not read; None: it is not there any more, or no file by now."""

    reason: Reason | None
    stamp: Stamp | None = None
    size: int | None = None


def stamp_of(found: os.stat_result) -> Stamp:
    """What an unchanged file or folder keeps."""
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_mode, found.st_dev


def read_file(name: bytes, folder: int, most: int) -> Content | Unread:
    """A file of an open folder, of at most so many bytes. Raises StorageError where the system has no means to read."""
    try:
        file = os.open(name, _FILE, dir_fd=folder)
    except FileNotFoundError:
        return Unread(None)
    except OSError as error:
        check_system(error)
        return Unread("unreadable", _stamp(name, folder))
    try:
        return _read(file, most)
    except OSError as error:
        check_system(error)
        return Unread("unreadable", _stamp(name, folder))
    finally:
        os.close(file)


def check_system(error: OSError) -> None:
    """Raises StorageError for one that says nothing of a file: a later try may read it."""
    if error.errno in _OF_THE_SYSTEM:
        words = (error.strerror or str(error)).lower()
        raise StorageError(f"the workspace cannot be recorded now: {words}; then resume") from error


def read_link(name: bytes, folder: int) -> bytes | None:
    """Where a link leads; None if it is none any more."""
    try:
        return os.readlink(name, dir_fd=folder) or None
    except OSError:
        return None


def _read(file: int, most: int) -> Content | Unread:
    content: Content | None = None
    for _ in range(_TRIES):
        before = os.fstat(file)
        if not stat.S_ISREG(before.st_mode):
            return Unread(None)
        if before.st_size > most:
            return Unread("tooLarge", stamp_of(before), before.st_size)
        os.lseek(file, 0, os.SEEK_SET)
        data = _all(file, most, before.st_size)
        after = os.fstat(file)
        if len(data) > most:
            return Unread("tooLarge", stamp_of(after), after.st_size)
        content = Content(data, stamp_of(after), stamp_of(before) == stamp_of(after) and len(data) == after.st_size)
        if content.is_steady:
            break
    return content or Unread("changing")


def _all(file: int, most: int, expected: int) -> bytes:
    first = os.read(file, min(expected, most) + 1)
    if len(first) == expected:
        return first
    data = bytearray(first)
    while len(data) <= most and (piece := os.read(file, min(_PIECE, most + 1 - len(data)))):
        data += piece
    return bytes(data)


def _stamp(name: bytes, folder: int) -> Stamp | None:
    try:
        return stamp_of(os.stat(name, dir_fd=folder, follow_symlinks=False))
    except OSError:
        return None
