"""Places in a workspace, reached from an open handle of it: no link on the way is followed, whoever puts one there."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from perstack.ports.durable import sync

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PIECE = 1 << 20


def open_root(workspace: Path) -> int:
    """A handle of a workspace, which alone may be reached through links. Raises OSError."""
    return os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


@contextmanager
def parent_of(root: int, path: bytes) -> Generator[tuple[int, bytes]]:
    """The folder that a path is in, open, and its name there.

    Raises OSError: FileNotFoundError if a folder above is missing, and ENOTDIR if a link or a file is in its place.
    """
    *above, name = path.split(b"/")
    handle = os.dup(root)
    try:
        for part in above:
            inner = os.open(part, FOLDER, dir_fd=handle)
            os.close(handle)
            handle = inner
        yield handle, name
    finally:
        os.close(handle)


def make_folder(handle: int, name: bytes) -> bool:
    """Make a folder; false if something of that name is there. Raises OSError."""
    try:
        os.mkdir(name, dir_fd=handle)
    except FileExistsError:
        return False
    return True


def status_at(handle: int, name: bytes) -> os.stat_result | None:
    """Of the thing itself, not of what it may link to; None if it is not there. Raises OSError."""
    try:
        return os.stat(name, dir_fd=handle, follow_symlinks=False)
    except FileNotFoundError:
        return None


def read_file(handle: int, name: bytes, most: int) -> bytes | None:
    """The content of an ordinary file; None if it has more bytes than `most`. Raises OSError."""
    fd = os.open(name, _FILE, dir_fd=handle)
    try:
        data = bytearray()
        while len(data) <= most and (piece := os.read(fd, min(_PIECE, most + 1 - len(data)))):
            data += piece
    finally:
        os.close(fd)
    return None if len(data) > most else bytes(data)


def write_file(handle: int, name: bytes, data: bytes, mode: int) -> None:
    """A new file, whose content survives power loss when this returns. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(name, flags, 0o600, dir_fd=handle)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fchmod(fd, mode)
        sync(fd)
    finally:
        os.close(fd)
