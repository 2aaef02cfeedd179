"""Ending a process together with everything that it started.

A program that a tool starts leads a group of its own; what it starts is in that group, unless it leaves on purpose
(`setsid`).
"""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import Process
from pathlib import Path

GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL, and for those that are killed to be gone."""

_FINISHING = 0.1
"""Seconds for what only writes its last words after its parent, such as the end of a shell's `> >(tee log)`."""

_LOOK_AGAIN = 0.01

_DEAD = ("Z", "X")


async def end_group(process: Process) -> None:
    """Ask all of the group to end, make them after a grace, and reap the leader.

    If this is cancelled, the group is killed at once.
    """
    gone = False
    try:
        gone = process.returncode is not None and await _vanishes(process.pid, _FINISHING)
        if not gone:
            signal_group(process.pid, signal.SIGTERM)
            gone = await _vanishes(process.pid, GRACE)
    finally:
        if not gone:
            signal_group(process.pid, signal.SIGKILL)
    await process.wait()
    if not gone:
        await _vanishes(process.pid, GRACE)


async def kill_group(process: Process) -> None:
    """End all of the group without asking, and reap the leader."""
    signal_group(process.pid, signal.SIGKILL)
    await process.wait()
    await _vanishes(process.pid, GRACE)


async def end_left(group: int) -> None:
    """The same for a group whose leader another process has started: it is nobody's here to reap."""
    if signal_group(group, signal.SIGTERM) and not await _vanishes(group, GRACE):
        signal_group(group, signal.SIGKILL)
        await _vanishes(group, GRACE)


def group_of(entry: Path) -> int:
    """The group of a living process, given its folder in /proc; 0 if it has ended."""
    state, group = _state_and_group(entry / "stat")
    return 0 if state in _DEAD else group


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


async def _vanishes(group: int, patience: float) -> bool:
    """Whether the group is gone within some seconds; not worth waiting for when only the dead are left in it."""
    loop = asyncio.get_running_loop()
    until = loop.time() + patience
    while signal_group(group, 0):
        if loop.time() >= until or not _has_living(group):
            return False
        await asyncio.sleep(_LOOK_AGAIN)
    return True


def _has_living(group: int) -> bool:
    """Whether anybody of the group still runs: in a container without a reaper the dead stay listed."""
    states = [_state_and_group(entry) for entry in Path("/proc").glob("[0-9]*/stat")]
    return not states or any(state not in _DEAD and own == group for state, own in states)


def _state_and_group(entry: Path) -> tuple[str, int]:
    try:
        state, _, group = entry.read_text(errors="replace").rpartition(")")[2].split()[:3]
    except OSError:
        return "X", 0
    return state, int(group)
