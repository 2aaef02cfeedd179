"""Commands in processes of their own that tests stop, and what has become of them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from terminal import SECONDS, Terminal


def start(terminal: Terminal, *args: str) -> subprocess.Popen[str]:
    """A command on the scripted model."""
    return subprocess.Popen(
        [sys.executable, "-m", "perstack", *args, "--provider", "scripted"],
        cwd=terminal.workspace,
        env=terminal.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(condition: Callable[[], object], what: str) -> None:
    """Wait, within a bound."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.005)  # a poll of another process, bounded above


def alive(pid: int) -> bool:
    """Whether a process runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
