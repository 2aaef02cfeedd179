"""Programs in a sandbox of bubblewrap."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import Process
from threading import Lock

from perstack.core.sandbox import SandboxPolicy
from perstack.ports.processes.start import launch
from perstack.ports.runtime import NOTHING_TO_SAY, Ending, Program, Surroundings
from perstack_bubblewrap.layout import View, arguments, environment
from perstack_bubblewrap.machine import seccomp, system
from perstack_bubblewrap.sealed import sealed
from perstack_bubblewrap.view import Watch


class BubblewrapRuntime:
    """A policy on one workspace.

    The process that leads a program's group is bwrap, outside; the program is below it, in a space of processes of its
    own, which ends as a whole when bwrap does. What leaves its group or session inside is ended with it.
    """

    def __init__(self, bwrap: str, policy: SandboxPolicy, around: Surroundings) -> None:
        self._bwrap = bwrap
        self._watch = Watch(policy, around)
        self._turn = Lock()

    async def start(self, program: Program) -> Process:
        """Raises SkillError if it cannot be made sure what the program would see."""
        view = await asyncio.to_thread(self._view, program)
        env = environment(program.env, view)
        with sealed(arguments(system(), view, cwd=str(program.cwd), env=env), seccomp()) as (given, filters):
            return await launch(
                (self._bwrap, "--args", str(given), "--seccomp", str(filters), "--", *program.argv),
                cwd="/",
                # what bwrap itself had, such as LD_PRELOAD, would be done outside
                env={},
                stdin=program.stdin,
                stdout=program.stdout,
                stderr=program.stderr,
                records=program.records,
                pass_fds=(given, filters),
            )

    def ending(self, process: Process) -> Ending:
        """Nothing so far."""
        return NOTHING_TO_SAY

    async def close(self) -> None:
        """Nothing was made."""

    def _view(self, program: Program) -> View:
        with self._turn:
            return self._watch.now(tuple(map(str, program.readable)))
