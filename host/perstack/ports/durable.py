"""Asking the system to keep what was written, whatever happens to the power. Every storage and every file goes by here.

macOS hands data to its disk at `fsync`, and the disk may keep it in a cache: only F_FULLFSYNC empties that.
"""

from __future__ import annotations

import errno
import os
import sys

_NOT_TAKEN = (errno.EINVAL, errno.ENOTTY, errno.ENOTSUP, errno.EOPNOTSUPP)
"""How file systems say that they have no F_FULLFSYNC: those of a network, above all."""


def sync(fd: int) -> None:
    """The content and metadata of an open file, or the names in a directory, survive power loss. Raises OSError."""
    if sys.platform == "darwin":
        _sync_to_the_medium(fd)
    else:
        os.fsync(fd)


def sync_data(fd: int) -> None:
    """The content of an open file, and of its metadata what is needed to read it. Raises OSError."""
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
