"""Open files only if they are regular files, never a pipe, a device or a folder.

A plain `open` of a named pipe blocks until its other end is opened, and no signal interrupts the blocked thread; a
device may be endless. Anyone who can write to a folder can put one there under a name that we use. So all our files,
and all files that a definition or a model names, are opened here: without blocking, and only if the opened file is
regular. Reads are limited.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC  # flags to open a folder
REAL_FOLDER = FOLDER | os.O_NOFOLLOW  # flags to open a folder that must not be a link
_SAFE = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PIECE_BYTES = 1 << 20


class NotRegular(OSError):
    """A name that belongs to a folder, a pipe, a socket or a device instead of a file."""


class TooLarge(OSError):
    """A file that exceeds its size limit."""


def open_regular(
    name: str | bytes | Path,
    flags: int = os.O_RDONLY,
    mode: int = 0o600,
    *,
    folder: int | None = None,
    follow: bool = False,
) -> int:
    """Open a regular file, below `folder` if given; `follow`: it may be a link. Raises OSError, NotRegular."""
    links = 0 if follow else os.O_NOFOLLOW
    try:
        file = os.open(name, flags | links | _SAFE, mode, dir_fd=folder)
    except OSError as error:
        # ENXIO: a socket, a pipe without a reader, a device without a driver. EISDIR: a folder opened for writing.
        if error.errno in (errno.ENXIO, errno.EISDIR):
            raise _not_regular(name) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise _not_regular(name)
    except BaseException:
        os.close(file)
        raise
    return file


@contextmanager
def opened(name: str | bytes | Path, folder: int | None = None, *, follow: bool = False) -> Generator[int]:
    """Open a regular file for reading, as `open_regular` does, during the block. Raises OSError."""
    file = open_regular(name, folder=folder, follow=follow)
    try:
        yield file
    finally:
        os.close(file)


def read_regular(path: Path, most: int) -> bytes:
    """Return a file's content; it may be a link. Raises OSError, NotRegular, and TooLarge above `most` bytes."""
    with opened(path, follow=True) as file:
        return read_rest(file, most)


def read_below(folder: Path, path: str, most: int) -> bytes:
    """Return a file's content; no link below the folder is followed. Raises OSError (NotRegular, TooLarge)."""
    *above, name = path.split("/")
    if ".." in above or name in ("", ".", ".."):
        raise _not_regular(path)
    handle = os.open(folder, FOLDER)
    try:
        for part in above:
            inner = os.open(part, REAL_FOLDER, dir_fd=handle)
            os.close(handle)
            handle = inner
        with opened(name, handle) as file:
            return read_rest(file, most)
    finally:
        os.close(handle)


def read_rest(file: int, most: int) -> bytes:
    """Return the rest of an open file. Raises TooLarge if that is more than `most` bytes."""
    data = bytearray()
    while len(data) <= most and (piece := os.read(file, min(_PIECE_BYTES, most + 1 - len(data)))):
        data += piece
    if len(data) > most:
        raise TooLarge(errno.EFBIG, f"it has more than {most:,} bytes")
    return bytes(data)


def _not_regular(name: str | bytes | Path) -> NotRegular:
    return NotRegular(errno.EINVAL, "it is no ordinary file", name)
