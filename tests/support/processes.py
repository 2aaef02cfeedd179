"""Commands in processes of their own that tests stop, and what has become of them."""

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
    """A command on the scripted model."""
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
    """A command as `start` begins it, with a terminal for its stderr."""

    def __init__(self, terminal: Terminal, *args: str, provider: str = "scripted") -> None:
        """`provider`: empty for a command that drives nothing."""
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
        """Wait for its end: what it wrote to stdout, and what the terminal showed."""
        out, _ = self.process.communicate(timeout=SECONDS)
        while data := self._read():
            self._seen += data
        os.close(self._ours)
        return out, self._seen.decode().replace("\r\n", "\n")

    def _read(self) -> bytes:
        poll = select.poll()
        poll.register(self._ours, select.POLLIN)
        assert poll.poll(SECONDS * 1000), "the terminal stays silent"
        # Linux says EIO when the last process has closed the other end
        try:
            return os.read(self._ours, 65536)
        except OSError:
            return b""


def until(condition: Callable[[], object], what: str) -> None:
    """Wait, within a bound."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.005)  # a poll of another process, bounded above


def alive(pid: int) -> bool:
    """Whether a process runs; one that waits to be reaped does not, where the system says so."""
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
"""For each folder the processes that were found to be of others: their ids, and their places in /proc by number."""


def at_work(folder: Path) -> dict[tuple[int, str], str]:
    """The living processes that descend from this one, or work in a folder: their ids and times of start, and commands.

    One whose parent has died is no descendant any more, but still in the folder of its test. Where there is no /proc,
    nobody is known.
    """
    strangers = _STRANGERS.setdefault(folder, set())
    there = _there()
    # what has been looked at and was of others is not looked at again: this is asked after each of thousands of tests
    strangers &= there
    stats = {pid: stat for pid, _ in there - strangers if (stat := _stat(pid))}
    ours = {os.getpid()}
    for pid in sorted(stats):
        # a child has the greater number, but for the rare time that numbers begin anew
        if stats[pid][1] in ours or _works_in(pid, folder):
            ours.add(pid)
    strangers |= {(pid, place) for pid, place in there if pid in stats and pid not in ours}
    ours.discard(os.getpid())
    return {(pid, stats[pid][2]): _command(pid) for pid in ours if stats[pid][0] not in "ZX"}


def _there() -> set[tuple[int, int]]:
    """Every process: its id, and the number of its place in /proc, which is another where the id is used again."""
    try:
        with os.scandir("/proc") as entries:
            return {(int(entry.name), entry.inode()) for entry in entries if entry.name.isdecimal()}
    except FileNotFoundError:
        return set()


def _stat(pid: int) -> tuple[str, int, str] | None:
    """State, parent and time of start."""
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


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()
    except OSError:
        return ""
