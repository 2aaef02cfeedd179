"""End a process and its process group, which its children leave only on purpose (`setsid`)."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import Process
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Literal

TERM_TIMEOUT_S = 1.0  # seconds between SIGTERM and SIGKILL, and maximum seconds to wait for killed processes

_FLUSH_TIME_S = 0.1
"""Seconds for processes that only flush output after their parent ended, as a shell's `> >(tee log)` does."""

_FIRST_CHECK_INTERVAL_S = 0.0005  # each pause doubles up to `_MAX_CHECK_INTERVAL_S`
_MAX_CHECK_INTERVAL_S = 0.01

_DEAD = ("Z", "X")

_GroupState = Literal["living", "dead", "nobody"]


async def end_group(process: Process) -> None:
    """End the group by SIGTERM, after TERM_TIMEOUT_S or if cancelled by SIGKILL, and reap the leader."""
    state: _GroupState = "living"
    try:
        if process.returncode is not None:
            state = await _wait_for_end(process.pid, _FLUSH_TIME_S)
        if state == "living":
            signal_group(process.pid, signal.SIGTERM)
            state = await _wait_for_end(process.pid, TERM_TIMEOUT_S)
    finally:
        if state != "nobody":
            signal_group(process.pid, signal.SIGKILL)
    await process.wait()
    if state == "living":
        await _wait_for_end(process.pid, TERM_TIMEOUT_S)


async def kill_group(process: Process) -> None:
    """Kill the group at once and reap the leader."""
    signal_group(process.pid, signal.SIGKILL)
    await process.wait()
    await _wait_for_end(process.pid, TERM_TIMEOUT_S)


async def end_orphaned(group: int) -> None:
    """End a group whose leader another process started, as `end_group` does, but without reaping the leader."""
    if signal_group(group, signal.SIGTERM) and await _wait_for_end(group, TERM_TIMEOUT_S) != "nobody":
        signal_group(group, signal.SIGKILL)
        await _wait_for_end(group, TERM_TIMEOUT_S)


def group_of(entry: Path) -> int:
    """Return the group of a living process, given its folder in /proc; 0 if it has ended."""
    state, group = _state_and_group(f"{entry}/stat")
    return 0 if state in _DEAD else group


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a group. Return False if it has no process left."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        # the remaining processes run as another user (sudo): they exist, but cannot be ended
        return True
    return True


async def _wait_for_end(group: int, timeout_s: float) -> _GroupState:
    """Wait up to `timeout_s` seconds for the group to end, and return its remaining state.

    Return "dead" without waiting if only zombies are left that their parent has not reaped. A group that ends soon is
    noticed soon; the slower check for zombies comes only after the first pauses.
    """
    loop = asyncio.get_running_loop()
    deadline, pause = loop.time() + timeout_s, _FIRST_CHECK_INTERVAL_S
    while signal_group(group, 0):
        if pause > 2 * _FIRST_CHECK_INTERVAL_S and not _has_living_process(group):
            return "dead"
        if loop.time() >= deadline:
            return "living"
        await asyncio.sleep(pause)
        pause = min(2 * pause, _MAX_CHECK_INTERVAL_S)
    return "nobody"


def _has_living_process(group: int) -> bool:
    """Return whether a process of the group still runs. In a container without a reaper, zombies stay listed."""
    with suppress(OSError):
        states = [_state_and_group(f"/proc/{name}/stat") for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
        return not states or any(state not in _DEAD and own_group == group for state, own_group in states)
    return True


def _state_and_group(path: str) -> tuple[str, int]:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - called hundreds of times in a row
            state, _, group = file.read(4096).rpartition(b")")[2].split()[:3]
    except (OSError, ValueError):
        return "X", 0
    return state.decode("ascii", "replace"), int(group)


# Identity of a process: ids are reused, and mean other processes on other machines.

MARK = "PERSTACK_PROGRAM"  # environment variable that identifies a program of ours; its value differs for each program


@cache
def boot_identity() -> str | None:
    """Return an id of this machine's boot and process namespace; None if the system does not provide it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def process_start_time(pid: int) -> str | None:
    """Return the start time of a living process in clock ticks since boot; None if it has ended or is unknown."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if state in (b"Z", b"X") else fields[18].decode()
    except (OSError, IndexError, ValueError):
        return None
