"""Who rewinds the files of a workspace: one at a time, and nobody drives a Job there meanwhile.

Who rewinds takes the lock, and then looks who has the lease of a Job; who drives has the lease, and then looks at the
lock. So one of the two sees the other. The lock is a file beside the journal, for what is in the workspace is locked by
programs as they like. It is free the moment its holder's process dies.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from perstack.errors import Conflict, StorageError
from perstack.ports.state_folder import FILE_MODE, FOLDER_MODE

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class Occupied(Conflict):
    """Another process rewinds the files of the workspace."""


@contextmanager
def rewound_in(workspace: Path, lock: Path) -> Generator[None]:
    """The files are rewound here. Raises Occupied while somebody else does that, and StorageError."""
    handle = _taken(workspace, lock)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(handle)
        with suppress(OSError):  # a journal is there, or the lock of another workspace
            lock.parent.rmdir()


def is_rewound(lock: Path) -> bool:
    """Whether somebody rewinds the files now."""
    try:
        handle = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


def _taken(workspace: Path, lock: Path) -> int:
    try:
        while True:
            lock.parent.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
            try:
                handle = os.open(lock, _FLAGS, FILE_MODE)
            except FileNotFoundError:
                continue  # somebody has just removed the folder
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if lock.exists() and os.path.samestat(os.fstat(handle), lock.stat()):
                    return handle
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)  # who had it has removed it
    except BlockingIOError:
        raise Occupied(f"{workspace}: its files are being rewound by another process; wait for its end") from None
    except OSError as error:
        raise StorageError(f"{lock}: {(error.strerror or str(error)).lower()}") from error
