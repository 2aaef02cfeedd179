"""Commands in separate processes that tests stop, and checks for remaining processes."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import warm
from terminal import SECONDS, Terminal


def start(terminal: Terminal, *args: str, stdin: IO[str] | None = None) -> subprocess.Popen[str]:
    """Start a command with the scripted model."""
    return warm.perstack(
        *args,
        "--provider",
        "scripted",
        cwd=terminal.workspace,
        env=terminal.env,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class Attended:
    """A command started as by `start`, with a terminal as its stderr."""

    def __init__(self, terminal: Terminal, *args: str, provider: str = "scripted") -> None:
        """Start the command. `provider` is empty for a command that drives nothing."""
        self._ours, theirs = pty.openpty()
        self._seen = b""
        self.process = warm.perstack(
            *args,
            *(("--provider", provider) if provider else ()),
            cwd=terminal.workspace,
            env={**terminal.env, "TERM": "dumb"},
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
        )
        os.close(theirs)

    def reads(self, words: str) -> None:
        """Wait until the terminal shows these words."""
        while words not in self._seen.decode(errors="replace") and (data := self._read()):
            self._seen += data
        assert words in self._seen.decode(errors="replace")

    def end(self) -> tuple[str, str]:
        """Wait for its end. Return its stdout, and what the terminal showed."""
        out, _ = self.process.communicate(timeout=SECONDS)
        while data := self._read():
            self._seen += data
        os.close(self._ours)
        return out, self._seen.decode().replace("\r\n", "\n")

    def _read(self) -> bytes:
        poll = select.poll()
        poll.register(self._ours, select.POLLIN)
        assert poll.poll(SECONDS * 1000), "the terminal stays silent"
        # Linux reports EIO when the last process has closed the other end
        try:
            return os.read(self._ours, 65536)
        except OSError:
            return b""


def wait_until(condition: Callable[[], object], subject: str) -> None:
    """Wait until the condition is true, with a timeout."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {subject}"
        time.sleep(0.005)  # a poll of another process, bounded above


def alive(pid: int) -> bool:
    """Return whether a process runs; zombies do not, where the system reports them."""
    if sys.platform != "linux":
        return _takes_signals(pid)
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _takes_signals(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


_STRANGERS: dict[Path, set[tuple[int, int]]] = {}
"""For each folder, processes known to be unrelated: ids and inodes of their /proc entries."""


def at_work(folder: Path) -> dict[tuple[int, str], str]:
    """Return the living processes that descend from this one or have a working directory in a folder.

    The keys are ids and start times, the values commands. A process whose parent has died is no longer a descendant,
    but still in the folder of its test. Empty on systems without /proc.
    """
    strangers = _STRANGERS.setdefault(folder, set())
    entries = _list_processes()
    # unrelated processes are remembered and skipped: this is called after each of thousands of tests
    strangers &= entries
    stats = {pid: stat for pid, _ in entries - strangers if (stat := _read_stat(pid))}
    descendants = {os.getpid()}
    for pid in sorted(stats):
        # a child has the greater id, except in the rare case that ids wrap around
        if stats[pid][1] in descendants or _works_in(pid, folder):
            descendants.add(pid)
    strangers |= {(pid, inode) for pid, inode in entries if pid in stats and pid not in descendants}
    descendants.discard(os.getpid())
    return {(pid, stats[pid][2]): _read_command(pid) for pid in descendants if stats[pid][0] not in "ZX"}


def _list_processes() -> set[tuple[int, int]]:
    """Return every process: its id, and the inode of its /proc entry, which differs when an id is reused."""
    try:
        with os.scandir("/proc") as entries:
            return {(int(entry.name), entry.inode()) for entry in entries if entry.name.isdecimal()}
    except FileNotFoundError:
        return set()


def _read_stat(pid: int) -> tuple[str, int, str] | None:
    """Return state, parent and start time of a process; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[1]), fields[19]


def _works_in(pid: int, folder: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/cwd").readlink().is_relative_to(folder)
    except OSError:
        return False


def _read_command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()
    except OSError:
        return ""
