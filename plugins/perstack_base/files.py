"""What file tools know of files apart from where they are: names, kinds, identities, and why the system refused one."""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from perstack.core.protected import Parts

MOST_SEEN = 20_000
"""Names that are looked at to find a file's other ones."""

Identity = tuple[int, int]


def status_at(name: str, directory: int) -> os.stat_result | None:
    """Of what has this name in an open directory, itself and not what it may link to; None if there is nothing."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def identity(status: os.stat_result) -> Identity:
    """What stays the same for a file under all its names."""
    return status.st_dev, status.st_ino


def printable(text: str) -> str:
    """A file name as text that can be written as JSON; a byte that is not UTF-8 shows as a replacement character."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if is_encodable(text) else repr(text)


def kind_of(mode: int) -> str:
    """`file`, `directory`, `symlink` or `other`."""
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "other"


def is_encodable(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def leads_into(way: Parts, ways: Iterable[Parts]) -> bool:
    """Whether a way is one of these, or begins with one; all of them folded."""
    return any(way[: len(own)] == own for own in ways)


def inodes(starts: Iterable[Path]) -> Iterator[int]:
    """Those of all files below some directories, the nearest first; of so many names at most."""
    waiting, seen = deque(starts), 0
    while waiting and seen < MOST_SEEN:
        with suppress(OSError), os.scandir(waiting.popleft()) as entries:
            for entry in entries:
                seen += 1
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                else:
                    yield entry.inode()


_EXPLANATIONS = {
    errno.ENOENT: "does not exist; listDirectory shows what does",
    errno.ENOTDIR: "is not a directory, or a part of it is not; listDirectory shows what is",
    errno.EISDIR: "is a directory; name a file",
    errno.EEXIST: "exists already; use another path, or delete it first",
    errno.ENOTEMPTY: "is not empty; delete what is in it, or set recursive",
    errno.EACCES: "may not be accessed (permission denied); use another path",
    errno.EPERM: "may not be changed (operation not permitted); use another path",
    errno.ELOOP: "changed while it was used; try again",
    errno.ENAMETOOLONG: "is too long a name; use a shorter one",
    errno.ENOSPC: "cannot be written: the disk is full; delete something first",
    errno.EROFS: "cannot be written: the file system is read-only; use another path",
    errno.EXDEV: "is on another file system; write it again and delete the old one",
}


def explain(error: OSError, shown: str) -> str:
    """What the model is told, in a line."""
    return f"{shown} {_EXPLANATIONS.get(error.errno or 0, f'cannot be used: {error.strerror or error}')}"
