"""Limit the Jobs that one process drives at a time, because a process may have only so many files open."""

from __future__ import annotations

import asyncio
import resource
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from threading import Lock

_FILES_PER_JOB = 12
"""Files that one Job opens: lease, log, workspace, a program with its pipes, servers, the model's connection."""
_MIN_SLOTS = 4
_MAX_SLOTS = 5_000

_IS_INSIDE: ContextVar[bool] = ContextVar("is_inside_a_slot", default=False)


def slots_for(max_open_files: int) -> int:
    """Return the maximum number of Jobs that a process may drive. A quarter of its files, at most 256, stays free."""
    return max(_MIN_SLOTS, min(_MAX_SLOTS, (max_open_files - min(256, max_open_files // 4)) // _FILES_PER_JOB))


class Slots:
    """Limit on concurrent Jobs, with a first-in, first-out queue. One instance serves any number of event loops."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._free = limit
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._mutex = Lock()

    @asynccontextmanager
    async def hold(self) -> AsyncGenerator[None]:
        """Hold a slot for the block. Nested use inside the block takes none, because it would wait for itself."""
        if _IS_INSIDE.get():
            yield
            return
        await self._acquire()
        token = _IS_INSIDE.set(True)
        try:
            yield
        finally:
            _IS_INSIDE.reset(token)
            self._release()

    async def _acquire(self) -> None:
        with self._mutex:
            if self._free:
                self._free -= 1
                return
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            with self._mutex:
                was_granted = waiter not in self._waiting
                if not was_granted:
                    self._waiting.remove(waiter)
            if was_granted:
                self._release()
            raise

    def _release(self) -> None:
        with self._mutex:
            if not self._waiting:
                self._free += 1
                return
            waiter = self._waiting.popleft()
        waiter.get_loop().call_soon_threadsafe(_wake, waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


_PROCESS_SLOTS: list[Slots] = []


def job_slots() -> Slots:
    """Return the Job limit of this process, computed once from its limit of open files."""
    if not _PROCESS_SLOTS:
        _PROCESS_SLOTS.append(Slots(slots_for(resource.getrlimit(resource.RLIMIT_NOFILE)[0])))
    return _PROCESS_SLOTS[0]
