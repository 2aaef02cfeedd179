"""Running a program as a tool of an Expert would, for a person who wants to find out what it can do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import field

from perstack.core.definitions import Expert
from perstack.core.sandbox import SandboxPolicy
from perstack.dataclass import dataclass
from perstack.engine.guarding import guarded, programs_of
from perstack.engine.setup import Setup
from perstack.errors import PerstackError, UsageError
from perstack.ports.processes.environment import inherited
from perstack.ports.processes.owned import owned
from perstack.ports.processes.start import started
from perstack.ports.runtime import DescribesLimits, Ending, Program, RuntimeFactory


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of it."""

    status: int
    """Its exit status; the number of the signal that ended it, negative."""
    ending: Ending


@dataclass(frozen=True, slots=True)
class RuntimeState:
    """Whether a runtime can be used on this machine."""

    name: str
    is_wanted: bool
    """Whether some Expert's programs run in it."""
    problem: str = ""
    """What is in the way, and what to do; empty if nothing is."""
    limits: Mapping[str, str] = field(default_factory=dict[str, str])
    """How each limit is kept."""


async def runtimes(setup: Setup) -> tuple[RuntimeState, ...]:
    """Each that is installed, in the order of their names."""
    policies = [setup.policy(expert) or SandboxPolicy() for expert in setup.project.experts.values()]
    found = sorted(setup.plugins.runtimes.values(), key=lambda one: one.name)
    return tuple(
        [await _state(setup, one, [policy for policy in policies if policy.runtime == one.name]) for one in found]
    )


async def _state(setup: Setup, factory: RuntimeFactory, policies: Sequence[SandboxPolicy]) -> RuntimeState:
    problem = ""
    try:
        for policy in policies or (SandboxPolicy(runtime=factory.name),):
            problem = problem or "; ".join(await factory.check(policy, setup.surroundings("")))
    except PerstackError as error:
        problem = str(error)
    if not isinstance(factory, DescribesLimits):
        return RuntimeState(factory.name, bool(policies), problem)
    return RuntimeState(factory.name, bool(policies), problem, factory.limits())


async def run_program(setup: Setup, expert: Expert, argv: Sequence[str]) -> Tried:
    """In the Expert's runtime, in the workspace, on this process's own input and output.

    Raises UsageError if it cannot be started, and as `Setup.check_sandbox`.
    """
    async with guarded(setup.storage), setup.ground(expert.key) as ground:
        env = {**inherited(setup.env, ground.variables), "PWD": str(setup.workspace)}
        program = Program(tuple(argv), setup.workspace, env, 0, 1, 2, records=programs_of(setup.storage))
        try:
            process = await started(asyncio.create_task(ground.runtime.start(program)))
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise UsageError(f"{argv[0]} cannot be started: {reason.lower()}") from error
        async with owned(process):
            status = await process.wait()
        return Tried(status, ground.runtime.ending(process))
