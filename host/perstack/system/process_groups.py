"""Ending a process together with everything that it started.

A program that a tool starts leads a group of its own; what it starts is in that group, unless it leaves on purpose
(`setsid`).
"""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import Process
from contextlib import suppress
from pathlib import Path
from typing import Literal

GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL, and for those that are killed to be gone."""

_FINISHING = 0.1
"""Seconds for what only writes its last words after its parent, such as the end of a shell's `> >(tee log)`."""

_LOOK_SOON = 0.0005
"""The first pause, for what is about to be gone; each one is twice as long as the last."""
_LOOK_AGAIN = 0.01

_DEAD = ("Z", "X")

_Left = Literal["living", "dead", "nobody"]


async def end_group(process: Process) -> None:
    """Ask all of the group to end, make them after a grace, and reap the leader.

    If this is cancelled, the group is killed at once.
    """
    left: _Left = "living"
    try:
        if process.returncode is not None:
            left = await _left(process.pid, _FINISHING)
        if left == "living":
            signal_group(process.pid, signal.SIGTERM)
            left = await _left(process.pid, GRACE)
    finally:
        if left != "nobody":
            signal_group(process.pid, signal.SIGKILL)
    await process.wait()
    if left == "living":
        await _left(process.pid, GRACE)


async def kill_group(process: Process) -> None:
    """End all of the group without asking, and reap the leader."""
    signal_group(process.pid, signal.SIGKILL)
    await process.wait()
    await _left(process.pid, GRACE)


async def end_left(group: int) -> None:
    """The same for a group whose leader another process has started: it is nobody's here to reap."""
    if signal_group(group, signal.SIGTERM) and await _left(group, GRACE) != "nobody":
        signal_group(group, signal.SIGKILL)
        await _left(group, GRACE)


def group_of(entry: Path) -> int:
    """The group of a living process, given its folder in /proc; 0 if it has ended."""
    state, group = _state_and_group(f"{entry}/stat")
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


async def _left(group: int, patience: float) -> _Left:
    """Who of the group is left within some seconds. The dead, whom their reaper has not reaped, are not waited for.

    What is about to be gone is looked at soon and often, and at the dead, which takes longer, only after that.
    """
    loop = asyncio.get_running_loop()
    until, pause = loop.time() + patience, _LOOK_SOON
    while signal_group(group, 0):
        if pause > 2 * _LOOK_SOON and not _has_living(group):
            return "dead"
        if loop.time() >= until:
            return "living"
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LOOK_AGAIN)
    return "nobody"


def _has_living(group: int) -> bool:
    """Whether anybody of the group still runs: in a container without a reaper the dead stay listed."""
    with suppress(OSError):
        states = [_state_and_group(f"/proc/{name}/stat") for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
        return not states or any(state not in _DEAD and own == group for state, own in states)
    return True


def _state_and_group(path: str) -> tuple[str, int]:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - hundreds of times in a row
            state, _, group = file.read(4096).rpartition(b")")[2].split()[:3]
    except (OSError, ValueError):
        return "X", 0
    return state.decode("ascii", "replace"), int(group)
