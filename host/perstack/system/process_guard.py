"""The guard: a small process that ends the programs we started if our own process dies without doing so.

After a SIGKILL nothing else can: PR_SET_PDEATHSIG would reach only a group's leader, which for npx is not the server.
One guard serves all programs. It is notified when each starts and ends, waits for its pipe to break, and then ends the
remaining groups. It starts with the first program and ends with the last one, or at the end of `keep_running`.

A program is identified by a mark in its environment from before it starts. So the guard finds it even if we are killed
between its start and the report of its process id. It cannot miss one: until the program has its own environment, it
holds our end of the pipe open.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from asyncio.subprocess import Process
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import field
from itertools import count, islice
from pathlib import Path
from threading import Lock

from perstack.dataclass import dataclass
from perstack.system.process_groups import MARK, boot_identity, end_orphaned, group_of, process_start_time

# Records of running programs, so that the process that resumes a Job can end programs of a killed one.
#
# The guard ends them too, within seconds. The records are for a process that resumes sooner, or if the guard is killed.
# While a program runs it has a file, named by its mark, with the identity of its host process and of itself.

_MAX_FILES = 10_000
_MAX_RECORD_BYTES = 1000


@dataclass(slots=True)
class ProgramRecord:
    """The record file of one program. If it cannot be written, only the guard ends the program."""

    path: Path
    _file: int = field(init=False, default=-1)

    def begin(self) -> None:
        """Record the host process, before the program starts."""
        machine, own_pid = boot_identity(), os.getpid()
        if machine is None:
            return
        with suppress(OSError):
            self.path.parent.mkdir(0o700, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            os.write(self._file, f"{machine} {own_pid} {process_start_time(own_pid)}\n".encode())

    def record_program(self, pid: int, start: str | None) -> None:
        """Record the program's process, after its start."""
        if self._file >= 0 and start is not None:
            with suppress(OSError):
                os.write(self._file, f"{pid} {start}\n".encode())

    def close(self, *, is_ours: bool = True) -> None:
        """Close and remove the file after the program ended. In a forked process the file is left to the parent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            if is_ours:
                with suppress(OSError):
                    self.path.unlink()


async def end_orphaned_programs(folder: Path) -> None:
    """End the programs, with their groups, that ended host processes recorded in a folder.

    On return they are gone, except processes that now run as another user, which cannot be ended. Programs of a living
    host process are not touched, nor programs of another machine, whose process ids mean nothing here.
    """
    groups = _all_remaining_groups(folder)
    await asyncio.gather(*(end_orphaned(group) for group in set[int]().union(*groups.values())))
    for path in groups:
        with suppress(OSError):
            path.unlink()


def _all_remaining_groups(folder: Path) -> dict[Path, set[int]]:
    groups: dict[Path, set[int]] = {}
    with suppress(OSError):
        for path in islice(folder.iterdir(), _MAX_FILES):
            remaining_groups = _remaining_groups(path)
            if remaining_groups is not None:
                groups[path] = remaining_groups
    return groups


def _remaining_groups(path: Path) -> set[int] | None:
    """Return the remaining groups of a recorded program; None if it may not be ended from here."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), encoding="utf-8") as file:
            lines = [line.split(" ") for line in file.read(_MAX_RECORD_BYTES).splitlines()]
    except (OSError, ValueError):
        return None
    if not lines or len(lines[0]) != 3 or lines[0][0] != boot_identity():
        return None
    _, host_pid, host_start = lines[0]
    if _start_time(host_pid) == host_start:
        return None
    groups = _groups_with_mark(path.name)
    if len(lines) > 1 and len(lines[1]) == 2:
        pid, start = lines[1]
        current_start = _start_time(pid)
        if current_start == start:
            return {int(pid)}
        # without its leader, only processes with the mark identify the group
        return groups & {int(pid)} if current_start is None else set()
    return groups


def _start_time(pid: str) -> str | None:
    return process_start_time(int(pid)) if pid.isascii() and pid.isdigit() and len(pid) < 10 else None


def _groups_with_mark(mark: str) -> set[int]:
    variable = f"{MARK}={mark}".encode()
    return {
        group for entry in Path("/proc").glob("[0-9]*") if _has_variable(entry, variable) and (group := group_of(entry))
    }


def _has_variable(entry: Path, variable: bytes) -> bool:
    try:
        return variable in (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


_SCRIPT = r"""
trap '' TERM HUP INT
cd /
forget() { kept=; for one in $all; do case $one in "$1":*) ;; *) kept="$kept $one" ;; esac; done; all=$kept; }
while read -r what mark pid start; do
  forget "$mark"
  if [ "$what" = + ]; then all="$all $mark:$pid:$start"; fi
done
groups=
for one in $all; do
  pid=${one#*:}
  if [ "$pid" != : ]; then groups="$groups $pid"; continue; fi
  for file in $(grep -lszxF "$0=${one%%:*}" /proc/[0-9]*/environ); do
    if read -r stat < "${file%environ}stat"; then set -- ${stat##*) }; groups="$groups $3:"; fi
  done
done
is_other() {
  if [ -z "$2" ] || ! read -r stat < "/proc/$1/stat"; then return 1; fi
  started=$2; set -- ${stat##*) }; shift 19
  [ "$1" != "$started" ]
}
tell() { left=; for one in $groups; do
  if is_other "${one%%:*}" "${one#*:}"; then continue; fi
  if kill -s "$1" -- "-${one%%:*}"; then left=1; fi
done; [ -n "$left" ]; }
tell TERM
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  if ! tell 0; then exit; fi
  sleep 0.1
done
tell KILL
"""


class ProcessGuard:
    """The guard of this process. Methods may be called from any thread, and do nothing if no guard can be started."""

    def __init__(self) -> None:
        """Start no guard yet: the first program starts it."""
        self._mutex = Lock()
        self._shell: subprocess.Popen[bytes] | None = None
        self._users = 0
        self._sent_lines: dict[str, bytes] = {}  # the line sent to the guard for each program, by mark
        self._records: dict[str, ProgramRecord] = {}
        self._marks: dict[Process, str] = {}
        self._prefix = os.urandom(8).hex()
        self._numbers = count(1)

    @contextmanager
    def keep_running(self) -> Generator[None]:
        """Keep a started guard running during the block."""
        self._add_user()
        try:
            yield
        finally:
            self._remove_user()

    def expect(self, records: Path | None) -> str:
        """Announce a program and return its mark, for MARK in its environment. `records`: folder of its record."""
        self._add_user()
        mark = f"{self._prefix}.{next(self._numbers)}"
        if records is not None:
            self._records[mark] = ProgramRecord(records / mark)
            self._records[mark].begin()
        self._announce(mark, f"+ {mark}\n")
        return mark

    def watch(self, mark: str, process: Process) -> None:
        """Report that the program has started, as the leader of a process group."""
        start = process_start_time(process.pid)
        self._marks[process] = mark
        self._announce(mark, f"+ {mark} {process.pid} {start or ''}\n")
        if mark in self._records:
            self._records[mark].record_program(process.pid, start)

    def forget(self, program: str | Process) -> None:
        """Report that the program has ended or, given its mark, that it did not start."""
        mark = self._marks.pop(program, None) if isinstance(program, Process) else program
        if mark is None:
            return
        with self._mutex:
            line = self._sent_lines.pop(mark, None)
            if line is not None:
                self._send(f"- {mark}\n".encode())
        record = self._records.pop(mark, None)
        if record is not None:
            record.close()
        if line is not None:
            self._remove_user()

    def abandon(self) -> None:
        """Drop all programs after a fork: they belong to the parent process."""
        for record in self._records.values():
            record.close(is_ours=False)
        self._mutex = Lock()
        shell, self._shell = self._shell, None
        self._users, self._sent_lines, self._marks, self._records = 0, {}, {}, {}
        self._prefix = os.urandom(8).hex()
        if shell is not None and shell.stdin is not None:
            with suppress(OSError):
                shell.stdin.close()

    def _add_user(self) -> None:
        with self._mutex:
            self._users += 1

    def _remove_user(self) -> None:
        with self._mutex:
            self._users -= 1
            if self._users == 0:
                self._end_shell()

    def _announce(self, mark: str, line: str) -> None:
        with self._mutex:
            self._sent_lines[mark] = line.encode()
            self._send(self._sent_lines[mark])

    def _send(self, line: bytes) -> None:
        """Send a line to the guard; start a new guard, with all lines, if there is none."""
        if self._shell is not None and self._shell.stdin is not None:
            with suppress(OSError):
                os.write(self._shell.stdin.fileno(), line)
                return
            self._end_shell()  # another process has killed or stopped the guard
        with suppress(OSError):
            self._start_shell()

    def _start_shell(self) -> None:
        shell = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, MARK, "guard"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.defpath},
            start_new_session=True,
            bufsize=0,
        )
        self._shell = shell
        if shell.stdin is not None:
            with suppress(OSError):
                shell.stdin.write(b"".join(self._sent_lines.values()))
            os.set_blocking(shell.stdin.fileno(), False)

    def _end_shell(self) -> None:
        shell, self._shell = self._shell, None
        if shell is not None:
            shell.kill()
            if shell.stdin is not None:
                shell.stdin.close()
            shell.wait()


GUARD = ProcessGuard()
os.register_at_fork(after_in_child=GUARD.abandon)
