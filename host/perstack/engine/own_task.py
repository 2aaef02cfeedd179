"""Work in a task of its own, for a caller who may have other things to do in theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from perstack.ports.uninterrupted import outlasting

_T = TypeVar("_T")


async def in_own_task(work: Coroutine[Any, Any, _T]) -> _T:
    """What comes of the work. Cancelling the caller cancels it, and waits for its end.

    What it fails with then goes before the cancellation: a record that could not be written must be heard of. Raises
    CancelledError if the work was cancelled, by whomever.
    """
    task = asyncio.create_task(work)
    cancelled = await outlasting(task, task.cancel)
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result
