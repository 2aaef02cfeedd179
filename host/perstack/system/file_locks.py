"""Leases of storages whose users share a machine: an OS lock (`flock`) on an open file.

The kernel frees the lock when the last descriptor of that opening closes, so the death of the holder frees it at once.
Child programs do not inherit descriptors that Python opens, so they never keep a lease alive.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

from perstack.errors import Conflict, NotFound

_LOCK_ATTEMPTS = 5
_MAX_HOLDER_BYTES = 1000


@asynccontextmanager
async def hold_file_lock(open_file: Callable[[], int], holder: str, job_id: str) -> AsyncGenerator[None]:
    """Hold the lock on the file that `open_file` opens for reading and writing, and write `holder` into it.

    Raises Conflict, naming the holder, if another opening of the file has the lock, and NotFound if the file was
    deleted meanwhile.
    """
    fd = open_file()
    try:
        await _lock(fd, job_id)
        if os.fstat(fd).st_nlink == 0:
            raise NotFound(f"job {job_id} was deleted")
        _sign(fd, holder)
        try:
            yield
        finally:
            _sign(fd, "")
    finally:
        os.close(fd)


def lock_holder(fd: int) -> str | None:
    """Return the text that the holder of the lock on this open file wrote; None if nobody holds it."""
    if try_lock(fd, shared=True):
        fcntl.flock(fd, fcntl.LOCK_UN)
        return None
    return os.pread(fd, _MAX_HOLDER_BYTES, 0).decode(errors="replace") or "another process"


def _sign(fd: int, holder: str) -> None:
    # the lock works without the text: a full disk must not end a Job because of it
    with suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, holder.encode()[:_MAX_HOLDER_BYTES], 0)


async def _lock(fd: int, job_id: str) -> None:
    # retry: a process in `lock_holder` has the lock for a moment
    for attempt in range(_LOCK_ATTEMPTS):
        if try_lock(fd):
            return
        await asyncio.sleep(0.001 * attempt)
    holder = os.pread(fd, _MAX_HOLDER_BYTES, 0).decode(errors="replace") or "another process"
    raise Conflict(f"job {job_id} is being driven by {holder}: wait until it ends, or stop it")


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """Lock an open file without waiting. Return False if another opening of the file has a conflicting lock."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
