"""Files below a folder, read from handles: no link on the way is followed, and only an ordinary file is opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PIECE = 1 << 20


class NotOrdinary(OSError):
    """What was asked for is a folder, a pipe or a device."""


class TooLarge(OSError):
    """A file is larger than it may be."""


def read_below(folder: Path, path: str, most: int) -> bytes:
    """A file below a folder, which itself may be a link. `path` has slashes, and no `..`.

    Raises OSError, with NotOrdinary and TooLarge among them.
    """
    *above, name = path.split("/")
    if ".." in above or name in ("", ".", ".."):
        raise NotOrdinary(f"{path} is no path below a folder")
    handle = os.open(folder, FOLDER)
    try:
        for part in above:
            inner = os.open(part, FOLDER | os.O_NOFOLLOW, dir_fd=handle)
            os.close(handle)
            handle = inner
        with opened(name, handle) as file:
            return read_rest(file, most)
    finally:
        os.close(handle)


def read_rest(file: int, most: int) -> bytes:
    """All of an open file. Raises TooLarge for one that has more."""
    data = bytearray()
    while len(data) <= most and (piece := os.read(file, min(_PIECE, most + 1 - len(data)))):
        data += piece
    if len(data) > most:
        raise TooLarge(f"the file has more than {most} bytes")
    return bytes(data)


@contextmanager
def opened(name: str, handle: int, *, follow: bool = False) -> Generator[int]:
    """An ordinary file of an open folder, open; with `follow` its name may be a link. Raises OSError."""
    file = os.open(name, _FILE & ~os.O_NOFOLLOW if follow else _FILE, dir_fd=handle)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise NotOrdinary(f"{name} is no ordinary file")
        yield file
    finally:
        os.close(file)
