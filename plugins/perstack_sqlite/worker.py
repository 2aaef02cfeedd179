"""A connection, and the thread that works with it where that may take long."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from threading import Lock
from typing import TypeVar

from perstack.ports.pace import Pace
from perstack.ports.uninterrupted import uninterrupted

T = TypeVar("T")

BUSY_SECONDS = 10.0
"""How long the thread waits for another process that has the file locked."""

_OF_PARENTS: list[object] = []
"""Connections and threads that a fork has left to this process: they must not be used here, nor closed."""


def is_busy(error: sqlite3.OperationalError) -> bool:
    """Whether another process has the file locked. An error of Python's own, of a text that is none, has no code."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF == sqlite3.SQLITE_BUSY


class Worker:
    """Opens its connection in its thread when it is first needed, in a child process anew.

    On a quick disk work is done at once, by whoever asks, since a change of threads would take longer. What the file's
    other users hold up, what comes while something else is done, and everything on a slow disk goes to the thread.
    """

    def __init__(self, open_connection: Callable[[], sqlite3.Connection], name: str) -> None:
        self._open = open_connection
        self._name = name
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None
        self._process = os.getpid()
        self._turn = Lock()
        self._pace = Pace()

    async def do(self, work: Callable[[], T], *, wholly: bool, is_long: bool = False) -> T:
        """What it returns. If it has to wait, a cancellation leaves it behind, or, `wholly`, waits for its end.

        Work that found the file locked is done again, in the thread; what is long is done there at once, and says
        nothing about the disk.
        """
        is_ready = self._connection is not None and self._process == os.getpid() and not self._pace.is_slow
        is_ready = is_ready and not is_long
        if is_ready and self._turn.acquire(blocking=False):
            try:
                with self._pace.measured():
                    return work()
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
            finally:
                self._turn.release()
        waiting = self._in_thread(work, is_long=is_long)
        return await (uninterrupted(waiting) if wholly else waiting)

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    def connection(self) -> sqlite3.Connection:
        """The connection: only for what is done by `do`."""
        if self._connection is None:
            self._connection = self._open()
        return self._connection

    async def close(self) -> None:
        """Close the connection, and end the thread. It begins again if it is given something to do."""
        if self._process != os.getpid() or self._thread is None:
            return
        thread, self._thread = self._thread, None
        await asyncio.get_running_loop().run_in_executor(thread, self._disconnect)
        thread.shutdown()

    async def _in_thread(self, work: Callable[[], T], *, is_long: bool) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._running(), self._patiently, work, is_long)

    def _patiently(self, work: Callable[[], T], is_long: bool) -> T:
        with self._turn:
            if self._connection is not None:
                self._connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000:.0f}")
            try:
                with nullcontext() if is_long else self._pace.measured():
                    return work()
            finally:
                if self._connection is not None:
                    self._connection.execute("PRAGMA busy_timeout = 0")

    def _running(self) -> ThreadPoolExecutor:
        if self._process != os.getpid():
            _OF_PARENTS.extend((self._connection, self._thread))
            self._connection, self._thread, self._process, self._turn = None, None, os.getpid(), Lock()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, self._name)
        return self._thread

    def _disconnect(self) -> None:
        with self._turn:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
