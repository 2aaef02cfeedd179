"""The runtime port: where programs of tools run, and what they may reach there.

A policy is prepared once for a Job, and each program that a tool starts is started under it. `local` confines nothing:
it is what there is without a sandbox.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from perstack.core.sandbox import LOCAL, SandboxPolicy
from perstack.dataclass import dataclass

if TYPE_CHECKING:  # the hooks are read before anything is started
    from asyncio.subprocess import Process

    from perstack.ports.processes.start import Stream


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What of this machine a policy is about."""

    workspace: Path
    """The folder that programs work in, absolute."""
    job_id: str
    env: Mapping[str, str]
    """The host's own environment."""
    hidden: tuple[Path, ...] = ()
    """Files and folders that no program may reach: where the state is, keys and variables. Some may not be there yet.
    A file of variables that `readable` names is none of them."""
    protected: tuple[Path, ...] = ()
    """Files that no program may change: the definitions of Experts."""
    on_notice: Callable[[str], None] = lambda line: None
    """Shows a person a line, at once."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program that is to be started."""

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    """All of its environment."""
    stdin: Stream
    stdout: Stream
    stderr: Stream
    records: Path | None = None
    """Where it is recorded while it runs."""
    cwd_handle: int | None = None
    """`cwd`, held open: a runtime that shares the host's files starts it there, whatever has the name by then."""
    domains: tuple[str, ...] = ()
    """`allowedDomains` of the skill that starts it."""
    readable: tuple[Path, ...] = ()
    """Files and folders that this program must be able to read besides."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What a runtime has to say of a program that has ended."""

    limit: str = ""
    """The limit that ended it, in words for a model; empty if none did."""
    refused: tuple[str, ...] = ()
    """What it wanted to reach over the network and may not, each with why."""


NOTHING_TO_SAY = Ending()


class Runtime(Protocol):
    """A policy, prepared. Programs may be started concurrently."""

    async def start(self, program: Program) -> Process:
        """The program as the leader of its own group, as `perstack.ports.processes.start.launch` starts one.

        To be a task that `started` waits for; the process is then to be used in a block of `owned`. Raises OSError or
        ValueError if it cannot be started, and SkillError for what a person must see to.
        """
        ...

    def ending(self, process: Process) -> Ending:
        """What to say of a program of its own that has ended. To be asked once."""
        ...

    async def close(self) -> None:
        """Remove what was made for the policy. Every program has ended."""
        ...


class RuntimeFactory(Protocol):
    """What a runtime plugin registers. Creating one must import nothing heavy."""

    @property
    def name(self) -> str:
        """For `runtime = "…"`, `--runtime` and `perstack plugins`."""
        ...

    async def check(self, policy: SandboxPolicy, around: Surroundings) -> Sequence[str]:
        """What of a policy it cannot enforce on this machine, each with why. Asked before anything runs.

        Raises UsageError, with what to install or to allow, if it cannot be used here at all, and for a folder that
        would give too much away.
        """
        ...

    async def prepare(self, policy: SandboxPolicy, around: Surroundings) -> Runtime:
        """Once for a Job and a policy. Raises SkillError for what a person must see to."""
        ...


@runtime_checkable
class DescribesLimits(RuntimeFactory, Protocol):
    """A runtime that can say how it keeps limits, for `perstack doctor`."""

    def limits(self) -> Mapping[str, str]:
        """For each key of `[sandbox]` that is a limit, how it is kept on this machine, or that it is not."""
        ...


class LocalRuntime:
    """Programs run as the host's user, with all its rights; when they end, all of their group does."""

    async def start(self, program: Program) -> Process:
        """The program, in its directory."""
        from perstack.ports.processes.start import launch

        return await launch(
            program.argv,
            cwd=_by_handle(program.cwd_handle, program.cwd),
            env=program.env,
            stdin=program.stdin,
            stdout=program.stdout,
            stderr=program.stderr,
            records=program.records,
        )

    def ending(self, process: Process) -> Ending:
        """Nothing: it has no limits."""
        return NOTHING_TO_SAY

    async def close(self) -> None:
        """Nothing was made."""


LOCAL_RUNTIME: Runtime = LocalRuntime()


class LocalRuntimeFactory:
    """`local`, which is there always."""

    name = LOCAL

    async def check(self, policy: SandboxPolicy, around: Surroundings) -> Sequence[str]:
        """What only a sandbox can hold programs to."""
        return tuple(f"`{key}`: only a sandbox can, such as `bubblewrap`" for key in policy.limited)

    async def prepare(self, policy: SandboxPolicy, around: Surroundings) -> Runtime:
        """The one that there is."""
        return LOCAL_RUNTIME


def _by_handle(handle: int | None, path: Path) -> str | Path:
    """A name of the directory that is held open, where the system has such names: no race can exchange it."""
    if handle is None:
        return path
    name = Path(f"/proc/self/fd/{handle}")
    return name if name.exists() else path
