"""Tests do not wait until a disk has what they wrote.

A whole run asks for that some hundred thousand times, and would wait for it longer than it works. What was written is
there for every process all the same: the difference is seen after a power loss, which tests play (`_Powered` of
tests/engine/runs/test_crashes.py).
"""

from __future__ import annotations

import os


def do_not_wait_for_disk() -> None:
    """Let this process, and those forked from it, go on before the disk has what was written.

    With PERSTACK_FAULTS=all everything is tried as it is, and this does nothing.
    """
    if os.environ.get("PERSTACK_FAULTS") == "all":
        return
    for name in {"fsync", "fdatasync"} & set(dir(os)):  # macOS has no fdatasync
        setattr(os, name, _accept)


def _accept(fd: int) -> None:
    """Raise OSError for a closed descriptor, as a sync does; otherwise do nothing."""
    os.fstat(fd)  # raises for what is not open, as a sync does
