"""Properties of files that do not depend on their location: names, kinds, identities, and messages for errors."""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from perstack.core.files.file_names import GIT_CONTENT, Parts

MAX_SCANNED_NAMES = 20_000  # maximum number of names scanned to find another name of a file

Identity = tuple[int, int]


def status_at(name: str, directory: int) -> os.stat_result | None:
    """Return the status of an entry in an open directory without following a link; None if it does not exist."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def is_repository(directory: int) -> bool:
    """Return whether an open directory is a git repository, or nearly one."""
    head = status_at("HEAD", directory)
    if head is None or stat.S_ISDIR(head.st_mode):
        return False
    return any(status_at(name, directory) is not None for name in GIT_CONTENT)


def identity(status: os.stat_result) -> Identity:
    """Return device and inode number, which all names of a file share."""
    return status.st_dev, status.st_ino


def printable(text: str) -> str:
    """Return a file name as text that JSON can represent; bytes that are not UTF-8 become replacement characters."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if is_encodable(text) else repr(text)


def kind_of(mode: int) -> str:
    """Return `file`, `directory`, `symlink` or `other`."""
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "other"


def is_encodable(text: str) -> bool:
    """Return whether a path has no lone surrogates except escaped bytes."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def is_at_or_below(way: Parts, ways: Iterable[Parts]) -> bool:
    """Return whether a path is one of these or below one. All must be case-folded."""
    return any(way[: len(prefix)] == prefix for prefix in ways)


def inodes(starts: Iterable[Path]) -> Iterator[int]:
    """Yield the inode numbers of files below some directories, nearest first, for MAX_SCANNED_NAMES names at most."""
    pending, count = deque(starts), 0
    while pending and count < MAX_SCANNED_NAMES:
        with suppress(OSError), os.scandir(pending.popleft()) as entries:
            for entry in entries:
                count += 1
                if entry.is_dir(follow_symlinks=False):
                    pending.append(Path(entry.path))
                else:
                    yield entry.inode()


_EXPLANATIONS = {
    errno.ENOENT: "does not exist; listDirectory shows what does",
    errno.ENOTDIR: "is not a directory, or a part of the path is not; listDirectory shows the directories",
    errno.EISDIR: "is a directory; name a file",
    errno.EEXIST: "already exists; use another path, or delete it first",
    errno.ENOTEMPTY: "is not empty; delete its content first, or set recursive",
    errno.EACCES: "may not be accessed (permission denied); use another path",
    errno.EPERM: "may not be changed (operation not permitted); use another path",
    errno.ELOOP: "changed while it was used; try again",
    errno.ENAMETOOLONG: "has too long a name; use a shorter one",
    errno.ENOSPC: "cannot be written: the disk is full; delete something first",
    errno.EROFS: "cannot be written: the file system is read-only; use another path",
    errno.EXDEV: "is on another file system; write a copy and delete the original",
}


def explain(error: OSError, display_path: str) -> str:
    """Return the one-line message for the model."""
    return f"{display_path} {_EXPLANATIONS.get(error.errno or 0, f'cannot be used: {error.strerror or error}')}"
