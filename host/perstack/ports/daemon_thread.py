"""For calls that block and cannot be ended, such as a read from a network disk that went away."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


async def in_daemon_thread(work: Callable[[], _T], name: str) -> _T:
    """As `asyncio.to_thread`, but the process can end while it blocks; `name` is the thread's."""
    future: Future[_T] = Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised where it is awaited
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await asyncio.wrap_future(future)
