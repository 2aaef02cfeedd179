"""The guard: a small process that ends what we have started, if we end without doing so ourselves.

Nobody else is left to do it when our process is killed by SIGKILL. PR_SET_PDEATHSIG would reach a group's leader alone,
which for npx is not the server. There is one guard for all programs: it is told of each when it starts and when it has
ended, waits for its pipe to break, and then ends the groups that are left. It starts with the first program, and ends
with the last, or with the block of `kept`.

A program is known by a mark in its environment from before it starts: so the guard finds it even if we are killed in
the moment between its start and our telling its number. It cannot miss one: the program has our end of the pipe too
until it has its own environment.
"""

from __future__ import annotations

import os
import subprocess
from asyncio.subprocess import Process
from collections.abc import Generator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from threading import Lock

from perstack.ports.processes.identity import MARK, start_of
from perstack.ports.processes.left import Record

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


class Guard:
    """One for a process; its methods may be called from any thread. Where no guard can be started there is none."""

    def __init__(self) -> None:
        self._turn = Lock()
        self._shell: subprocess.Popen[bytes] | None = None
        self._users = 0
        self._known: dict[str, bytes] = {}
        """What the guard is told of each program, by its mark."""
        self._records: dict[str, Record] = {}
        self._marks: dict[Process, str] = {}
        self._prefix = os.urandom(8).hex()
        self._numbers = count(1)

    @contextmanager
    def kept(self) -> Generator[None]:
        """Meanwhile a guard that was started stays."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def expect(self, records: Path | None) -> str:
        """A mark for a program that is about to start, to be in its environment as MARK.

        It is also recorded in the folder, if one is given, for `end_left_programs`.
        """
        self._enter()
        mark = f"{self._prefix}.{next(self._numbers)}"
        if records is not None:
            self._records[mark] = Record(records / mark)
            self._records[mark].begin()
        self._note(mark, f"+ {mark}\n")
        return mark

    def watch(self, mark: str, process: Process) -> None:
        """It is up, and leads its own group."""
        start = start_of(process.pid)
        self._marks[process] = mark
        self._note(mark, f"+ {mark} {process.pid} {start or ''}\n")
        if mark in self._records:
            self._records[mark].is_up(process.pid, start)

    def forget(self, program: str | Process) -> None:
        """Nothing is left of it, or, given its mark, it has not started."""
        mark = self._marks.pop(program, None) if isinstance(program, Process) else program
        if mark is None:
            return
        with self._turn:
            known = self._known.pop(mark, None)
            if known is not None:
                self._tell(f"- {mark}\n".encode())
        record = self._records.pop(mark, None)
        if record is not None:
            record.close()
        if known is not None:
            self._leave()

    def abandon(self) -> None:
        """In a forked process: these are another's programs."""
        for record in self._records.values():
            record.close(is_ours=False)
        self._turn = Lock()
        shell, self._shell = self._shell, None
        self._users, self._known, self._marks, self._records = 0, {}, {}, {}
        self._prefix = os.urandom(8).hex()
        if shell is not None and shell.stdin is not None:
            with suppress(OSError):
                shell.stdin.close()

    def _enter(self) -> None:
        with self._turn:
            self._users += 1

    def _leave(self) -> None:
        with self._turn:
            self._users -= 1
            if self._users == 0:
                self._end()

    def _note(self, mark: str, line: str) -> None:
        with self._turn:
            self._known[mark] = line.encode()
            self._tell(self._known[mark])

    def _tell(self, line: bytes) -> None:
        if self._shell is not None and self._shell.stdin is not None:
            with suppress(OSError):
                os.write(self._shell.stdin.fileno(), line)
                return
            self._end()  # somebody has killed or stopped it
        with suppress(OSError):
            self._begin()

    def _begin(self) -> None:
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
                shell.stdin.write(b"".join(self._known.values()))
            os.set_blocking(shell.stdin.fileno(), False)

    def _end(self) -> None:
        shell, self._shell = self._shell, None
        if shell is not None:
            shell.kill()
            if shell.stdin is not None:
                shell.stdin.close()
            shell.wait()


GUARD = Guard()
os.register_at_fork(after_in_child=GUARD.abandon)
