"""Tasks that work beside others."""

from __future__ import annotations

import asyncio

_AGAIN = 0.5
"""Seconds until a task is cancelled once more: `asyncio.wait_for` of Python 3.11 can lose a cancellation."""


async def end(task: asyncio.Task[None] | None) -> None:
    """Cancel a task, and wait for its end. One of a loop that is gone has ended with it."""
    if task is None or task.get_loop() is not asyncio.get_running_loop():
        return
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_AGAIN)
