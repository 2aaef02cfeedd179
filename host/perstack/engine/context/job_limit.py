"""Limit the Jobs that one process drives at a time: each has files open, and a process may have only so many."""

from __future__ import annotations

import asyncio
import resource
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from threading import Lock

_A_JOB_S = 12
"""Files that one Job opens: lease, log, workspace, a program with its pipes, servers, the model's connection."""
_FEWEST = 4
_MOST = 5_000

_IS_INSIDE: ContextVar[bool] = ContextVar("is_inside_a_slot", default=False)


def slots_for(files: int) -> int:
    """Return how many Jobs a process that may open `files` files may drive; a quarter, at most 256, stays free."""
    return max(_FEWEST, min(_MOST, (files - min(256, files // 4)) // _A_JOB_S))


class Slots:
    """Limit on concurrent Jobs, with a first-in, first-out queue. One instance serves any number of event loops."""

    def __init__(self, most: int) -> None:
        """Start with `most` free slots."""
        self.most = most
        self._free = most
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._turn = Lock()

    @asynccontextmanager
    async def hold(self) -> AsyncGenerator[None]:
        """Hold a slot for the block. Nested use inside the block takes none, because it would wait for itself."""
        if _IS_INSIDE.get():
            yield
            return
        await self._take()
        token = _IS_INSIDE.set(True)
        try:
            yield
        finally:
            _IS_INSIDE.reset(token)
            self._give_back()

    async def _take(self) -> None:
        with self._turn:
            if self._free:
                self._free -= 1
                return
            mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            with self._turn:
                was_given = mine not in self._waiting
                if not was_given:
                    self._waiting.remove(mine)
            if was_given:
                self._give_back()
            raise

    def _give_back(self) -> None:
        with self._turn:
            if not self._waiting:
                self._free += 1
                return
            next_one = self._waiting.popleft()
        next_one.get_loop().call_soon_threadsafe(_wake, next_one)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


_OF_THIS_PROCESS: list[Slots] = []


def job_slots() -> Slots:
    """Return the limit of this process, computed from its limit of open files when the first Job began."""
    if not _OF_THIS_PROCESS:
        _OF_THIS_PROCESS.append(Slots(slots_for(resource.getrlimit(resource.RLIMIT_NOFILE)[0])))
    return _OF_THIS_PROCESS[0]
