"""The process of a server: it leads a process group and is ended together with the group.

How it ends:

- closed: its stdin is closed, so that a well-behaved server exits; then the group gets SIGTERM and SIGKILL.
- cancelled or failed to connect: the same, at once.
- host killed by SIGKILL: the server's guard process ends the group (`perstack.system.processes`).
- a process that left the group on purpose (`setsid`) only sees the end of its stdin.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from asyncio.subprocess import Process
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path, PurePath
from typing import BinaryIO

from perstack.core.definitions.secrets import secrets_of
from perstack.core.definitions.skills import McpStdioSkill
from perstack.core.secrets.names import is_secret_name
from perstack.dataclass import dataclass
from perstack.errors import SkillError
from perstack.ports.environment import inherit_variables
from perstack.ports.runtime import LOCAL_RUNTIME, Ending, Program, Runtime
from perstack.ports.skill import SkillContext
from perstack.support.variables import fill, require_secrets_known, variables_in
from perstack.system import processes
from perstack.system.process_groups import end_group
from perstack.system.processes import end_with_block
from perstack_mcp.server_interface import MAX_LINE_CHARS

_MIN_SECRET_CHARS = 6  # minimum characters of a secret that is masked; shorter ones would occur in ordinary words


@dataclass(frozen=True, slots=True)
class Launch:
    """Command line with its environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    records: Path | None = None  # directory with a record of the running process
    secrets: tuple[str, ...] = ()  # texts to mask in stderr lines, longest first
    runtime: Runtime = LOCAL_RUNTIME
    # network addresses that the process may reach, for runtimes that restrict the network
    domains: tuple[str, ...] = ()


def launch_of(definition: McpStdioSkill, context: SkillContext) -> Launch:
    """Build the launch of a server. Raises SkillError that names a missing variable."""
    missing = [name for name in definition.required_env if not context.env.get(name)]
    if missing:
        names = ", ".join(missing)
        raise SkillError(f"skill {definition.name!r} needs {names}: set it in the environment or in a .env file")
    require_secrets_known((*definition.args, *definition.env.values()), definition.name)
    args = fill({str(number): arg for number, arg in enumerate(definition.args)}, context.env, definition.name, "args")
    env = fill(definition.env, context.env, definition.name, "env")
    filled_definition = definition.model_copy(update={"args": tuple(args.values()), "env": env})
    variables = variables_in((*definition.args, *definition.env.values()))
    named_secrets = {context.env[name] for name in variables if is_secret_name(name)}
    secrets = {
        secret for secret in (*secrets_of(filled_definition), *named_secrets) if len(secret) >= _MIN_SECRET_CHARS
    }
    return Launch(
        _command_line(filled_definition),
        {**inherit_variables(context.env, (*definition.required_env, *context.variables)), **env},
        context.workspace,
        context.programs,
        tuple(sorted(secrets, key=len, reverse=True)),
        context.runtime,
        definition.allowed_domains,
    )


def _command_line(definition: McpStdioSkill) -> tuple[str, ...]:
    package = (definition.package_name,) if definition.package_name else ()
    is_npx = PurePath(definition.command).name == "npx"
    # npx asks before it installs, and nobody could answer
    consent = ("-y",) if is_npx and not {"-y", "--yes"}.intersection(definition.args) else ()
    return (definition.command, *consent, *package, *definition.args)


EXIT_TIMEOUT_S = 1.0  # seconds for a server to exit after its stdin was closed

_DRAIN_TIMEOUT_S = 0.2  # seconds to wait for the last stderr lines: a process that left the group may hold stderr open

_KEPT_LINES = 10
_BUFFER_BYTES = 1 << 20


class Child:
    """A running server process."""

    def __init__(self, process: Process, on_stderr: Callable[[str], None], secrets: Sequence[str] = ()) -> None:
        self.process = process
        self._secrets = secrets
        self.failure = ""  # reason for giving up the server; empty otherwise
        self.show = on_stderr  # function that shows a line to the person
        self._last_lines: deque[str] = deque(maxlen=_KEPT_LINES)

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader

    def note_stderr(self, line: str) -> None:
        """Show a line of stderr with secrets masked, and keep the last ones for errors."""
        for secret in self._secrets:
            line = line.replace(secret, "…")
        self._last_lines.append(line[:MAX_LINE_CHARS].rstrip())
        self.show(line)

    def note_ending(self, ending: Ending) -> None:
        """Show the runtime's report on the process, and keep it for the error of a waiting call."""
        for line in (*ending.refused, *((f"ended by the sandbox: {ending.limit}",) if ending.limit else ())):
            self._last_lines.append(line[:MAX_LINE_CHARS])
            self.show(line)

    @property
    def exit_summary(self) -> str:
        """The failure, the exit status and the end of stderr, as text."""
        status = self.process.returncode
        ended = "" if status is None else f"it ended with {_describe_status(status)}"
        lines = " | ".join(line for line in self._last_lines if line)
        return "; ".join(part for part in (self.failure, ended, lines and f"stderr: {lines}") if part)


@asynccontextmanager
async def run_server(launch: Launch, on_stderr: Callable[[str], None]) -> AsyncGenerator[Child]:
    """Run a server's process. On exit, nothing of its group is left."""
    with ExitStack() as ends:
        stdin, their_stdin = map(ends.enter_context, socket.socketpair())
        stdout, their_stdout = map(ends.enter_context, _open_pipe())
        stderr, their_stderr = map(ends.enter_context, _open_pipe())
        process = await _start_process(launch, their_stdin, their_stdout, their_stderr)
        for end in (their_stdin, their_stdout, their_stderr):
            end.close()
        child = Child(process, on_stderr, launch.secrets)
        async with end_with_block(process), _open_reader(stdout) as child.stdout, _open_reader(stderr) as errors:
            _, child.stdin = await asyncio.open_connection(sock=stdin)
            pump = asyncio.create_task(_read_stderr(errors, child))
            try:
                yield child
            finally:
                await _end_process(child, pump)
                child.note_ending(launch.runtime.ending(process))


def _open_pipe() -> tuple[BinaryIO, BinaryIO]:
    read, write = os.pipe()
    return os.fdopen(read, "rb", buffering=0), os.fdopen(write, "wb", buffering=0)


async def _start_process(launch: Launch, stdin: socket.socket, stdout: BinaryIO, stderr: BinaryIO) -> Process:
    """Start the process. Raises SkillError if the command cannot be executed."""
    command = launch.argv[0]
    starting = launch.runtime.start(
        Program(
            launch.argv,
            cwd=launch.cwd,
            env=launch.env,
            stdin=stdin.fileno(),
            stdout=stdout,
            stderr=stderr,
            records=launch.records,
            domains=launch.domains,
        )
    )
    try:
        return await processes.await_start(asyncio.create_task(starting))
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            raise SkillError(f"{command} was not found: install it, or correct `command`") from error
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise SkillError(f"{command} cannot be started ({reason}): correct `command`") from error


@asynccontextmanager
async def _open_reader(pipe: BinaryIO) -> AsyncGenerator[asyncio.StreamReader]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_BUFFER_BYTES)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        yield reader
    finally:
        transport.close()


async def _read_stderr(errors: asyncio.StreamReader, child: Child) -> None:
    rest = b""
    while piece := await errors.read(1 << 16):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            child.note_stderr(line.decode("utf-8", "replace"))
        rest = rest[-MAX_LINE_CHARS:]
    if rest:
        child.note_stderr(rest.decode("utf-8", "replace"))


async def _end_process(child: Child, pump: asyncio.Task[None]) -> None:
    """Close stdin, wait for the exit, and end what is left of the process group."""
    try:
        child.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(EXIT_TIMEOUT_S):
                await child.process.wait()
    finally:
        try:
            await end_group(child.process)
            await asyncio.wait({pump}, timeout=_DRAIN_TIMEOUT_S)
        finally:
            child.stdin.transport.abort()
            pump.cancel()


def _describe_status(status: int) -> str:
    if status >= 0:
        return f"exit code {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
