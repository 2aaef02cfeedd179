"""For work that must not be left half done, such as a write that is under way in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


async def uninterrupted(work: Coroutine[Any, Any, _T]) -> _T:
    """Await work that must not be left half done: each cancellation waits for its end, and is raised then.

    If the work failed, that is raised in place of the cancellation: it was there first, and says what is wrong.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None and (task.cancelled() or task.exception() is None):
        raise cancelled
    return task.result()
