"""Ending a process together with everything that it started.

A process that the exec tool starts leads a group of its own; what it starts is in that group, unless it leaves on
purpose (`setsid`).
"""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import Process

GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL."""

_FINISHING = 0.1
"""Seconds for what only writes its last words after its parent, such as the end of a shell's `> >(tee log)`."""

_LOOK_AGAIN = 0.01


async def end_group(process: Process) -> None:
    """Ask all of the group to end, make them after a grace, and reap the leader.

    If this is cancelled, the group is killed at once.
    """
    try:
        if process.returncode is not None and await _is_gone(process, _FINISHING):
            return
        signal_group(process.pid, signal.SIGTERM)
        await _is_gone(process, GRACE)
    finally:
        signal_group(process.pid, signal.SIGKILL)
    await process.wait()


def signal_group(group: int, number: int) -> bool:
    """Send a signal; False if nobody of the group is left."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        # what is left has become another user's (sudo): it cannot be ended, but it is there
        return True
    return True


async def _is_gone(process: Process, patience: float) -> bool:
    loop = asyncio.get_running_loop()
    until = loop.time() + patience
    while signal_group(process.pid, 0):
        if loop.time() >= until:
            return False
        await asyncio.sleep(_LOOK_AGAIN)
    return True
