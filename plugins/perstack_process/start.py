"""Starting a process so that a cancellation, or several, leave nothing behind."""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import Process

from perstack_process.group import signal_group


async def started(starting: asyncio.Task[Process]) -> Process:
    """The process, up, of a task that starts it as the leader of its own group. Raises what the task raises.

    If this is cancelled, what has been started is killed and reaped before the cancellation goes on.
    """
    cancelled: asyncio.CancelledError | None = None
    while not starting.done():
        try:
            await asyncio.wait({starting})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return starting.result()
    if not starting.cancelled() and starting.exception() is None:
        signal_group(starting.result().pid, signal.SIGKILL)
        await reaped(starting.result())
    raise cancelled


async def reaped(process: Process) -> None:
    """Wait until a process that has been killed is gone; a cancellation goes on only then."""
    cancelled: asyncio.CancelledError | None = None
    while process.returncode is None:
        try:
            await process.wait()
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
