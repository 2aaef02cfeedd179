"""Which process a number means: numbers are given out again, and mean other processes on other machines."""

from __future__ import annotations

from functools import cache
from pathlib import Path

MARK = "PERSTACK_PROGRAM"
"""The variable by which a program that we start is found; its value is another one for each."""


@cache
def this_machine() -> str | None:
    """This boot of this machine, and whose view of its processes; None where the system does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def start_of(pid: int) -> str | None:
    """When a living process started, in the system's own unit; None if there is none, or the system does not say."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if state in (b"Z", b"X") else fields[18].decode()
    except (OSError, IndexError, ValueError):
        return None
