"""Programs in a sandbox of bubblewrap."""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import Process
from collections.abc import Mapping
from contextlib import ExitStack
from threading import Lock

from perstack.core.sandbox import SandboxPolicy
from perstack.dataclass import dataclass
from perstack.ports.processes.group import signal_group
from perstack.ports.processes.owned import owned
from perstack.ports.processes.start import launch
from perstack.ports.runtime import NOTHING_TO_SAY, Ending, Program, Surroundings
from perstack_bubblewrap.cgroups import Member
from perstack_bubblewrap.groups import Shared
from perstack_bubblewrap.handles import held_open
from perstack_bubblewrap.layout import DEFAULT_TMP, View, arguments, environment
from perstack_bubblewrap.limits import in_words, joined, numbered, own_limits
from perstack_bubblewrap.machine import seccomp, system
from perstack_bubblewrap.pid_max import Held, held_back
from perstack_bubblewrap.sealed import sealed
from perstack_bubblewrap.view import Watch
from perstack_bubblewrap.ways import Way, Ways

_LOOK_AGAIN = 0.1
"""Seconds between two looks at whether a program has run into a limit."""


@dataclass(slots=True)
class _Running:
    """A program with limits."""

    member: Member | None
    way: Way | None = None
    heard: int = 0
    """How much had been refused when it was started."""
    watching: asyncio.Task[None] | None = None
    limit: str = ""
    """What it ran into."""


class BubblewrapRuntime:
    """A policy on one workspace.

    The process that leads a program's group is bwrap, outside; the program is below it, in a space of processes of its
    own, which ends as a whole when bwrap does. What leaves its group or session inside is ended with it.
    """

    def __init__(self, bwrap: str, policy: SandboxPolicy, around: Surroundings, group: Shared | None = None) -> None:
        """`group` is that of the Job, if the kernel counts what its programs use."""
        self._bwrap = bwrap
        self._policy = policy
        self._watch = Watch(policy, around)
        self._group = group
        self._ways = Ways(around.on_notice)
        self._turn = Lock()
        self._running: dict[Process, _Running] = {}
        self._watching: set[asyncio.Task[None]] = set()

    async def start(self, program: Program) -> Process:
        """Raises SkillError if it cannot be made sure what the program would see."""
        policy = self._policy
        allowed = (*policy.network, *program.domains)
        way = await self._ways.to(allowed) if allowed else None
        view = await asyncio.to_thread(self._view, program, () if way is None else way.readable)
        env = {**environment(program.env, view), **({} if way is None else way.env)}
        member = None if self._group is None else self._group.group.member()
        running = _Running(member, way, 0 if way is None else way.count)
        try:
            process = await self._launched(program, view, env, running)
        except BaseException:
            if member is not None:
                await member.remove()
            raise
        if member is not None or way is not None or policy.time is not None:
            self._begin(process, running)
        return process

    async def _launched(self, program: Program, view: View, env: Mapping[str, str], running: _Running) -> Process:
        policy, way, member = self._policy, running.way, running.member
        mounts, tmp = () if way is None else way.mounts, policy.tmp or DEFAULT_TMP
        with ExitStack() as held:
            handles = held.enter_context(held_open(view))
            given = arguments(system(), view, cwd=str(program.cwd), env=env, tmp=tmp, more=mounts, handles=handles)
            words, filters = held.enter_context(sealed(given, seccomp()))
            back = held.enter_context(held_back(numbered(policy, member)))
            bound = () if back is None else back.words
            bwrap = (self._bwrap, *bound, "--args", str(words), "--seccomp", str(filters), "--")
            within = (*own_limits(policy, member), *(() if way is None else way.argv))
            process = await launch(
                (*joined(member), *bwrap, *within, *program.argv),
                cwd="/",
                # what bwrap itself had, such as LD_PRELOAD, would be done outside
                env={},
                stdin=program.stdin,
                stdout=program.stdout,
                stderr=program.stderr,
                records=program.records,
                pass_fds=(words, filters, *handles.values(), *(() if back is None else back.theirs)),
            )
            if back is not None:
                await _bound(back, process)
        return process

    def ending(self, process: Process) -> Ending:
        """The limit that it ran into, and what was refused to it or to those beside it."""
        running = self._running.pop(process, None)
        if running is None:
            return NOTHING_TO_SAY
        self._look(running)
        if running.way is None:
            return Ending(limit=running.limit)
        return Ending(running.limit, running.way.refused(running.heard))

    async def close(self) -> None:
        """Remove the groups of all programs, and that of the Job."""
        if self._watching:
            await asyncio.wait(self._watching)
        self._running.clear()
        await self._ways.close()
        if self._group is not None:
            self._group.leave()

    def _view(self, program: Program, more: tuple[str, ...]) -> View:
        with self._turn:
            return self._watch.now((*map(str, program.readable), *more))

    def _begin(self, process: Process, running: _Running) -> None:
        self._running[process] = running
        running.watching = asyncio.create_task(self._watched(process, running))
        self._watching.add(running.watching)
        running.watching.add_done_callback(self._watching.discard)

    async def _watched(self, process: Process, running: _Running) -> None:
        """Until it has ended: what goes too far is ended. After that its group is removed."""
        loop = asyncio.get_running_loop()
        time = self._policy.time
        until = None if time is None else loop.time() + time / 1000
        waiting = asyncio.create_task(process.wait())
        while not (await asyncio.wait({waiting}, timeout=_LOOK_AGAIN))[0]:
            self._look(running)
            if not running.limit and until is not None and loop.time() >= until:
                running.limit = f"it ran longer than {time} ms"
            if running.limit:
                signal_group(process.pid, signal.SIGKILL)
        self._look(running)
        if running.member is not None:
            await running.member.remove()

    def _look(self, running: _Running) -> None:
        over = None if running.limit or running.member is None else running.member.went_over()
        if over is not None:
            running.limit = in_words(over, self._policy)


async def _bound(back: Held, process: Process) -> None:
    """Its limit set; a program that can have none is ended before it begins."""
    try:
        await back.bind()
    except BaseException:
        async with owned(process):
            process.kill()
        raise
