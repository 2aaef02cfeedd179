"""Durable writes: sync files and directories, replace files atomically. Every storage syncs with these functions.

On macOS `fsync` only hands data to the disk, which may keep it in a cache; F_FULLFSYNC empties that cache.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from pathlib import Path

_NOT_TAKEN = (errno.EINVAL, errno.ENOTTY, errno.ENOTSUP, errno.EOPNOTSUPP)  # by network file systems


def sync(fd: int) -> None:
    """Make the content and metadata of an open file, or a directory's entries, survive power loss. Raises OSError."""
    if sys.platform == "darwin":
        _sync_to_the_medium(fd)
    else:
        os.fsync(fd)


def sync_data(fd: int) -> None:
    """Make the content of an open file survive power loss, and the metadata needed to read it. Raises OSError."""
    if sys.platform == "linux":
        os.fdatasync(fd)
    else:
        sync(fd)


if sys.platform == "darwin":
    import fcntl

    def _sync_to_the_medium(fd: int) -> None:
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in _NOT_TAKEN:
                raise
            os.fsync(fd)


# Small files that only their owner may read.


def replace_private_file(path: Path, content: bytes) -> None:
    """Replace a file atomically and durably, readable only by its owner. Its folder must exist. Raises OSError."""
    handle, name = tempfile.mkstemp(dir=path.parent)  # mkstemp makes it readable only by the user
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            sync(file.fileno())
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


# For storages that keep files: a folder that only its owner may read and that git ignores.

FOLDER_MODE = 0o700
FILE_MODE = 0o600  # state contains what models were sent and tools returned, so only its owner may read it


def make_state_folder(path: Path) -> bool:
    """Create the folder and its parents durably; False, without change, if it exists. Raises OSError."""
    if path.is_dir():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(FOLDER_MODE)
    except FileExistsError:
        if not path.is_dir():
            raise
        return False
    (path / ".gitignore").write_text("*\n")
    sync_directory(path.parent)
    return True


def sync_directory(path: Path) -> None:
    """Make a directory's entries survive power loss. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(fd)
    finally:
        os.close(fd)
