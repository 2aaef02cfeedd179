"""For work that must not be left half done, such as a write that is under way in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


async def uninterrupted(work: Coroutine[Any, Any, _T]) -> _T:
    """Await work that must not be left half done: each cancellation waits for its end, and is raised then.

    If the work failed, that is raised in place of the cancellation: it was there first, and says what is wrong.
    """
    task = asyncio.ensure_future(work)
    cancelled = await outlasting(task)
    if cancelled is not None and (task.cancelled() or task.exception() is None):
        raise cancelled
    return task.result()


async def outlasting(
    task: asyncio.Task[_T], on_cancel: Callable[[], object] = lambda: None
) -> asyncio.CancelledError | None:
    """Wait until a task is done, however often the caller is cancelled; the last cancellation is for it to raise.

    `on_cancel` is called at each.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
            on_cancel()
    return cancelled
