"""Keeping the keys in the host's environment from the programs that it starts: they are its user's too.

Linux shows a process's environment as it was when the process began to all of its user, in /proc/PID/environ, and its
memory as well. Elsewhere nothing is done.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

_PR_SET_DUMPABLE = 4
_ENV_START, _ENV_END = 47, 48
"""Of the fields after the name in /proc/PID/stat: between which addresses the environment began."""


def keep_environment_private() -> None:
    """Blank the environment as the system shows it, and let no process without privileges look into this one.

    `os.environ` and what libraries read (`getenv`) stay as they are. To be called before there are threads.
    """
    if sys.platform != "linux":
        return
    with suppress(OSError, ValueError, IndexError):
        _blank_the_first()
    with suppress(OSError, AttributeError, ImportError):
        _show_nobody()


def _blank_the_first() -> None:
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_END])
    if not 0 < start < end:
        return
    # each gets a new place, which nobody else is shown; then nothing points to the old ones any more
    for name, value in os.environb.items():
        os.putenv(name, value)
    with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
        memory.seek(start)
        memory.write(bytes(end - start))


def _show_nobody() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
