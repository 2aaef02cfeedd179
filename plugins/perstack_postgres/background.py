"""Tasks that work beside others."""

from __future__ import annotations

import asyncio


async def end(task: asyncio.Task[None] | None) -> None:
    """Cancel a task, and wait for its end. One of a loop that is gone has ended with it."""
    if task is not None and not task.done() and task.get_loop() is asyncio.get_running_loop():
        task.cancel()
        await asyncio.wait({task})
