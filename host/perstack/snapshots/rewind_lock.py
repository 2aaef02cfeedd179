"""Lock a workspace during a rewind: one rewind at a time, during which no Job is driven there.

A rewind takes the lock and then checks the leases of Jobs; a driver takes the lease and then checks the lock. So at
least one of the two sees the other. This module is imported with every Host, and must import next to nothing.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from perstack.errors import Conflict, StorageError
from perstack.system.files import FILE_MODE, FOLDER_MODE, open_regular, try_lock
from perstack.system.user import user_directory


class RewindInProgress(Conflict):
    """Raised while another process rewinds the files of the workspace."""


@contextmanager
def hold_rewind_lock(workspace: Path, lock: Path) -> Generator[None]:
    """Hold the lock for a rewind. Raises RewindInProgress while another process holds it, and StorageError."""
    handle = _take_lock(workspace, lock)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(handle)
        with suppress(OSError):  # it has a journal, or the lock of another workspace
            lock.parent.rmdir()


def is_rewound(lock: Path) -> bool:
    """Return whether a process is rewinding the files now."""
    try:
        handle = open_regular(lock)
    except OSError:
        return False
    try:
        return not try_lock(handle, shared=True)
    except OSError:
        return False
    finally:
        os.close(handle)


def _take_lock(workspace: Path, lock: Path) -> int:
    try:
        while True:
            lock.parent.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
            try:
                handle = open_regular(lock, os.O_RDWR | os.O_CREAT, FILE_MODE)
            except FileNotFoundError:
                continue  # another process has just removed the folder
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if lock.exists() and os.path.samestat(os.fstat(handle), lock.stat()):
                    return handle
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)  # the previous holder has removed the file
    except BlockingIOError:
        raise RewindInProgress(
            f"{workspace}: its files are being rewound by another process; wait for its end"
        ) from None
    except OSError as error:
        raise StorageError(f"{lock}: {(error.strerror or str(error)).lower()}") from error


# Paths.


def journal_path(workspace: Path) -> Path:
    """Return the journal's path, in the user's state directory, where neither a repository nor a program puts one."""
    name = f"{sha256(os.path.realpath(os.fsencode(workspace))).hexdigest()[:32]}.json"
    return user_directory("state", os.environ) / "rewinds" / name


def lock_path(workspace: Path) -> Path:
    """Return the path of the lock for rewinds of a workspace."""
    return journal_path(workspace).with_suffix(".lock")


# Repair: a rewind that was killed is completed or undone before a Job is driven or files are rewound, and at no other
# time: a command that only reads repairs nothing.

_REWIND_TIMEOUT_S = 10.0  # seconds to wait for a rewind that is under way
_RETRY_INTERVAL_S = 0.05

Settle = Callable[[], Awaitable[None]]
"""A function that completes or undoes a rewind of the workspace that was cut short."""


@asynccontextmanager
async def lease_without_rewind(
    workspace: Path,
    check: Callable[[], Awaitable[None]],
    settle: Settle,
    lease: Callable[[], AbstractAsyncContextManager[None]],
) -> AsyncGenerator[None]:
    """Hold a Job's lease while no rewind is under way; first `check`, and complete or undo an interrupted rewind.

    Raises RewindInProgress if a rewind takes too long, StorageError, and the errors of `check` and `lease`.
    """
    await check()
    journal, lock = journal_path(workspace), lock_path(workspace)
    deadline, is_held = time.monotonic() + _REWIND_TIMEOUT_S, False
    while True:
        try:
            if journal.exists():
                await settle()
            async with lease():
                if not journal.exists() and not is_rewound(lock):
                    is_held = True
                    yield
                    return
            message = f"{workspace}: its files are being rewound by another process; wait for its end"
            raise RewindInProgress(message)
        except RewindInProgress:
            if is_held or time.monotonic() > deadline:
                raise
            await asyncio.sleep(_RETRY_INTERVAL_S)
