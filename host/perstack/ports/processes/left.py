"""What a process that was killed has left running, as it recorded it: found by whoever continues its work.

Its guard ends that too, within seconds. This is for whoever comes sooner, and for when the guard was killed as well.
Each program has a file of its own while it runs, named by its mark: whose it is, and which process it is.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import field
from itertools import islice
from pathlib import Path

from perstack.dataclass import dataclass
from perstack.ports.processes.group import end_left, group_of
from perstack.ports.processes.identity import MARK, start_of, this_machine

_MOST_FILES = 10_000
_LONGEST = 1000


@dataclass(slots=True)
class Record:
    """The file of one program. A record that cannot be written is none: the guard does without."""

    path: Path
    _file: int = field(init=False, default=-1)

    def begin(self) -> None:
        """Before it starts."""
        machine, ours = this_machine(), os.getpid()
        if machine is None:
            return
        with suppress(OSError):
            self.path.parent.mkdir(0o700, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            os.write(self._file, f"{machine} {ours} {start_of(ours)}\n".encode())

    def is_up(self, pid: int, start: str | None) -> None:
        """When it has started."""
        if self._file >= 0 and start is not None:
            with suppress(OSError):
                os.write(self._file, f"{pid} {start}\n".encode())

    def close(self, *, is_ours: bool = True) -> None:
        """When nothing of it is left. In a forked process the file is its parent's."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            if is_ours:
                with suppress(OSError):
                    self.path.unlink()


async def end_left_programs(folder: Path) -> None:
    """End what a process that has ended has recorded in a folder, and all of its group.

    On return it is gone, but for what may not be ended because it has become another user's. Nothing is done to the
    programs of a process that lives, nor to those of another machine, whose numbers mean nothing here.
    """
    groups = _all_left(folder)
    await asyncio.gather(*(end_left(group) for group in set[int]().union(*groups.values())))
    for path in groups:
        with suppress(OSError):
            path.unlink()


def _all_left(folder: Path) -> dict[Path, set[int]]:
    """Of each record that is ours to end, the groups that are left."""
    groups: dict[Path, set[int]] = {}
    with suppress(OSError):
        for path in islice(folder.iterdir(), _MOST_FILES):
            found = _left(path)
            if found is not None:
                groups[path] = found
    return groups


def _left(path: Path) -> set[int] | None:
    """The groups that are left of a recorded program; None if it is not ours to end."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), encoding="utf-8") as file:
            lines = [line.split(" ") for line in file.read(_LONGEST).splitlines()]
    except (OSError, ValueError):
        return None
    if not lines or len(lines[0]) != 3 or lines[0][0] != this_machine():
        return None
    _, host, began = lines[0]
    if _start_of(host) == began:
        return None
    marked = _marked(path.name)
    if len(lines) > 1 and len(lines[1]) == 2:
        pid, start = lines[1]
        now = _start_of(pid)
        if now == start:
            return {int(pid)}
        # without its leader, only those of the group that bear the mark tell that it is the same
        return marked & {int(pid)} if now is None else set()
    return marked


def _start_of(pid: str) -> str | None:
    return start_of(int(pid)) if pid.isascii() and pid.isdigit() and len(pid) < 10 else None


def _marked(mark: str) -> set[int]:
    """The groups of processes with this mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    return {group for entry in Path("/proc").glob("[0-9]*") if _has(entry, wanted) and (group := group_of(entry))}


def _has(entry: Path, wanted: bytes) -> bool:
    try:
        return wanted in (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
