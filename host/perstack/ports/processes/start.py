"""Starting a process so that a cancellation, or several, leave nothing behind."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import Process

from perstack.ports.processes.group import kill_group


async def started(starting: asyncio.Task[Process]) -> Process:
    """The process, up, of a task that starts it as the leader of its own group. Raises what the task raises.

    If this is cancelled, what has been started is killed and reaped before the cancellation goes on.
    """
    cancelled = await _outlasting_cancellation(starting)
    if cancelled is None:
        return starting.result()
    if not starting.cancelled() and starting.exception() is None:
        await _outlasting_cancellation(asyncio.create_task(kill_group(starting.result())))
    raise cancelled


async def reaped(process: Process) -> None:
    """Wait until a process that has been killed is gone; a cancellation goes on only then."""
    cancelled = await _outlasting_cancellation(asyncio.create_task(process.wait()))
    if cancelled is not None:
        raise cancelled


async def _outlasting_cancellation(task: asyncio.Task[object]) -> asyncio.CancelledError | None:
    """Wait until a task is done; the last cancellation that came in the meantime is for the caller to go on with."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled
