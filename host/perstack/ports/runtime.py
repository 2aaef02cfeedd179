"""The runtime port: where tools' programs run, and what they can reach.

The host prepares a sandbox policy once per Job, and starts every program of a tool under it. `local` enforces nothing:
it is the default without a sandbox.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from perstack.core.definitions.sandbox import SandboxPolicy
from perstack.dataclass import dataclass

if TYPE_CHECKING:  # this module is imported at every start, by the hooks
    from asyncio.subprocess import Process

    from perstack.system.processes import Stream


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The parts of this machine that a policy applies to."""

    workspace: Path  # the programs' working folder, absolute
    job_id: str
    env: Mapping[str, str]  # the host's own environment
    hidden: tuple[Path, ...] = ()
    """Files and folders that no program may reach: state, keys, and files of variables that `readable` does not name.
    Some may not exist yet."""
    protected: tuple[Path, ...] = ()
    """Files that no program may change or create: the definitions of Experts, and what the host or a permission rule
    runs."""
    shown: tuple[Path, ...] = ()  # folders below hidden ones that a program may still read: unpacked Agent Skills
    included: Callable[[], Iterable[Path]] = tuple  # returns the files that `include` names; no program may add one
    on_notice: Callable[[str], None] = lambda line: None  # shows a line to the user immediately


@dataclass(frozen=True, slots=True)
class Program:
    """A program to start."""

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]  # the complete environment of the program
    stdin: Stream
    stdout: Stream
    stderr: Stream
    records: Path | None = None  # folder in which the program is recorded while it runs; None to record nothing
    cwd_handle: int | None = None
    """File descriptor of `cwd`, or None. A runtime that shares the host's files starts the program there, even if
    `cwd` has become another directory."""
    domains: tuple[str, ...] = ()  # `allowedDomains` of the skill that starts it
    readable: tuple[Path, ...] = ()  # additional files and folders that this program must be able to read


@dataclass(frozen=True, slots=True)
class Ending:
    """A runtime's report on a program that has ended."""

    limit: str = ""  # the limit that ended the program, as text for a model; empty if none did
    refused: tuple[str, ...] = ()  # refused network targets, and files that were set aside, each with the reason


NOTHING_TO_SAY = Ending()


class Runtime(ABC):
    """A prepared policy. Programs may be started concurrently."""

    @abstractmethod
    async def start(self, program: Program) -> Process:
        """Start a program as the leader of its own process group, as `perstack.system.processes.launch` does.

        Must be called in a task that `await_start` waits for; the process is then used in a block of `end_with_block`.
        Raises OSError or ValueError if the program cannot be started, and SkillError for what the user must fix.
        """

    @abstractmethod
    def ending(self, process: Process) -> Ending:
        """Return the report on a program of this runtime that has ended. Called once per program."""

    @abstractmethod
    async def close(self) -> None:
        """Remove what was made for the policy. Called after every program has ended."""


class RuntimeFactory(ABC):
    """Factory of runtimes, registered by a plugin. Creating one must import nothing heavy."""

    name: str  # the name in `runtime = "…"`, `--runtime` and `perstack plugins`

    @abstractmethod
    async def check(self, policy: SandboxPolicy, surroundings: Surroundings) -> Sequence[str]:
        """Return the parts of a policy that cannot be enforced on this machine, each with the reason.

        Called before anything runs. Raises UsageError, with what to install or to allow, if the runtime cannot be used
        here at all, and for a folder that would expose too much.
        """

    @abstractmethod
    async def prepare(self, policy: SandboxPolicy, surroundings: Surroundings) -> Runtime:
        """Prepare a policy, once per Job and policy. Raises SkillError for what the user must fix."""

    def limits(self) -> Mapping[str, str]:
        """Return how this machine enforces each limit of `[sandbox]`, or that it does not, for `perstack doctor`."""
        return {}


class LocalRuntime(Runtime):
    """Runtime without limits: programs have the rights of the host's user. Each one's process group ends with it."""

    @override
    async def start(self, program: Program) -> Process:
        from perstack.system.processes import launch

        return await launch(
            program.argv,
            cwd=_fixed_path(program.cwd_handle, program.cwd),
            env=program.env,
            stdin=program.stdin,
            stdout=program.stdout,
            stderr=program.stderr,
            records=program.records,
        )

    @override
    def ending(self, process: Process) -> Ending:
        return NOTHING_TO_SAY

    @override
    async def close(self) -> None:
        pass


LOCAL_RUNTIME: Runtime = LocalRuntime()


def _fixed_path(handle: int | None, path: Path) -> str | Path:
    """Return a path to the open directory, if the system has such paths, so that a rename cannot replace it."""
    if handle is None:
        return path
    name = Path(f"/proc/self/fd/{handle}")
    return name if name.exists() else path
