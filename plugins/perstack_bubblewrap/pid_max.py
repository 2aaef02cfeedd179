"""How many processes a sandbox may have, where no cgroup counts them.

Since Linux 6.14 `pid_max` belongs to each space of processes, and is set from outside while the program has not begun.
Numbers below 300 are given out once only, so that so many more than the limit may be there at first.
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import field
from functools import cache
from pathlib import Path

from perstack.dataclass import dataclass
from perstack.errors import SkillError
from perstack_bubblewrap.machine import asked

SPARE = 300
_SINCE = (6, 14)
_CAP_SYS_ADMIN = 1 << 21
_PATIENCE = 10
"""Seconds for bwrap to say which process it has started."""
_PIECE = 4096
_CHILD = re.compile(rb'"child-pid": (\d+)\D')
_SET = 'echo "$0" > /proc/sys/kernel/pid_max'


@cache
def is_possible() -> bool:
    """Whether this process may set it, and the kernel has one for each space."""
    release = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])
    return os.geteuid() == 0 and release >= _SINCE and _may_administer() and _nsenter() is not None


@dataclass(slots=True)
class Held:
    """A program that waits until its sandbox has its limit."""

    processes: int
    said: int
    go: int
    theirs: list[int] = field(default_factory=list[int])
    """What bwrap inherits; closed here once it has."""

    @property
    def words(self) -> tuple[str, ...]:
        """For bwrap."""
        return "--info-fd", str(self.theirs[0]), "--block-fd", str(self.theirs[1])

    async def bind(self) -> None:
        """Set the limit, and let the program begin. Raises SkillError if that is not possible: it is to be ended."""
        self.let_go()
        try:
            async with asyncio.timeout(_PATIENCE):
                child = await self._child()
        except TimeoutError:
            child = None
        if child is None:
            return  # it has ended, and says itself why
        argv = (_nsenter() or "nsenter", f"--pid=/proc/{child}/ns/pid", "--", "/bin/sh", "-c", _SET)
        status, words = await asked(*argv, str(self.processes + SPARE))
        if status != 0:
            raise SkillError(f"the limit `processes` of [sandbox] cannot be set: {words.strip()}")
        with suppress(BrokenPipeError):
            os.write(self.go, b"\n")

    def let_go(self) -> None:
        """Of what is bwrap's."""
        while self.theirs:
            os.close(self.theirs.pop())

    async def _child(self) -> int | None:
        loop, heard = asyncio.get_running_loop(), b""
        while not (found := _CHILD.search(heard)):
            ready = asyncio.Event()
            loop.add_reader(self.said, ready.set)
            try:
                await ready.wait()
            finally:
                loop.remove_reader(self.said)
            piece = os.read(self.said, _PIECE)
            if not piece:
                return None
            heard += piece
        return int(found[1])


@contextmanager
def held_back(processes: int | None) -> Generator[Held | None]:
    """What holds a program back that must not begin without this limit; None without one."""
    if processes is None:
        yield None
        return
    said, saying = os.pipe()
    hearing, go = os.pipe()
    held = Held(processes, said, go, [saying, hearing])
    try:
        yield held
    finally:
        held.let_go()
        os.close(said)
        os.close(go)


def _nsenter() -> str | None:
    return shutil.which("nsenter", path="/usr/bin:/bin")


def _may_administer() -> bool:
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "CapEff":
                return bool(int(value, 16) & _CAP_SYS_ADMIN)
    return False
