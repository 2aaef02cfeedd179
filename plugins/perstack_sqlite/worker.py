"""A thread with a connection of its own, which does one thing after the other."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

_OF_PARENTS: list[object] = []
"""Connections and threads that a fork has left to this process: they must not be used here, nor closed."""


class Worker:
    """Starts its thread, and opens its connection, when they are first needed: in a child process anew."""

    def __init__(self, open_connection: Callable[[], sqlite3.Connection], name: str) -> None:
        self._open = open_connection
        self._name = name
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None
        self._process = os.getpid()

    async def do(self, work: Callable[[], T]) -> T:
        """What it returns, done in the thread after all that it was given before."""
        return await asyncio.get_running_loop().run_in_executor(self._running(), work)

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    def connection(self) -> sqlite3.Connection:
        """The connection: only for what is done in the thread."""
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

    def _running(self) -> ThreadPoolExecutor:
        if self._process != os.getpid():
            _OF_PARENTS.extend((self._connection, self._thread))
            self._connection, self._thread, self._process = None, None, os.getpid()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, self._name)
        return self._thread

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
