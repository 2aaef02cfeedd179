"""A server's process: started as the leader of its own group, and ended together with the whole group.

Four ways out, each of them to the end:
- closed: its stdin ends, which a well-behaved server takes for the end; then SIGTERM and SIGKILL to the group.
- cancelled, or failed to connect: the same, at once.
- the host is killed by SIGKILL: the server's guard ends the group (`perstack.ports.processes.owned`).
- what left the group on purpose (`setsid`) gets only the end of its stdin.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from asyncio.subprocess import Process
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import BinaryIO

from perstack.errors import SkillError
from perstack.ports.processes import start
from perstack.ports.processes.group import end_group
from perstack.ports.processes.owned import owned
from perstack.ports.runtime import Ending, Program
from perstack_mcp.launch import Launch
from perstack_mcp.shown import LONGEST_LINE

GRACE = 1.0
"""Seconds for a server to end by itself when its stdin has ended."""

_DRAIN = 0.2
"""Seconds to wait for the last lines of stderr: a process that left the group may hold it open for ever."""

_KEPT_LINES = 10
_BUFFER = 1 << 20


class Child:
    """A running server."""

    def __init__(self, process: Process, on_stderr: Callable[[str], None], secrets: Sequence[str] = ()) -> None:
        self.process = process
        self._secrets = secrets
        self.failure = ""
        """Why it was given up, if it was."""
        self.show = on_stderr
        """Takes a line for a person."""
        self._last: deque[str] = deque(maxlen=_KEPT_LINES)

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader

    def note_stderr(self, line: str) -> None:
        """What the server wrote, but for its secrets; the end is kept for an error."""
        for secret in self._secrets:
            line = line.replace(secret, "…")
        self._last.append(line[:LONGEST_LINE].rstrip())
        self.show(line)

    def note_ending(self, ending: Ending) -> None:
        """What the runtime says of it: for a person, and for the error of whoever waits for it."""
        for line in (*ending.refused, *((f"ended by the sandbox: {ending.limit}",) if ending.limit else ())):
            self._last.append(line[:LONGEST_LINE])
            self.show(line)

    @property
    def last_words(self) -> str:
        """How it ended, and the end of stderr."""
        status = self.process.returncode
        ended = "" if status is None else f"it ended with {_status(status)}"
        lines = " | ".join(line for line in self._last if line)
        return "; ".join(part for part in (self.failure, ended, lines and f"stderr: {lines}") if part)


@asynccontextmanager
async def running(launch: Launch, on_stderr: Callable[[str], None]) -> AsyncGenerator[Child]:
    """A server's process while the block runs; after it, nothing of its group is left."""
    with ExitStack() as ends:
        stdin, their_stdin = map(ends.enter_context, socket.socketpair())
        stdout, their_stdout = map(ends.enter_context, _pipe())
        stderr, their_stderr = map(ends.enter_context, _pipe())
        process = await _started(launch, their_stdin, their_stdout, their_stderr)
        for end in (their_stdin, their_stdout, their_stderr):
            end.close()
        child = Child(process, on_stderr, launch.secrets)
        async with owned(process), _reading(stdout) as child.stdout, _reading(stderr) as errors:
            _, child.stdin = await asyncio.open_connection(sock=stdin)
            pump = asyncio.create_task(_pump(errors, child))
            try:
                yield child
            finally:
                await _end(child, pump)
                child.note_ending(launch.runtime.ending(process))


def _pipe() -> tuple[BinaryIO, BinaryIO]:
    read, write = os.pipe()
    return os.fdopen(read, "rb", buffering=0), os.fdopen(write, "wb", buffering=0)


async def _started(launch: Launch, stdin: socket.socket, stdout: BinaryIO, stderr: BinaryIO) -> Process:
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
        return await start.started(asyncio.create_task(starting))
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            raise SkillError(f"{command} was not found: install it, or correct `command`") from error
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise SkillError(f"{command} cannot be started ({reason}): correct `command`") from error


@asynccontextmanager
async def _reading(pipe: BinaryIO) -> AsyncGenerator[asyncio.StreamReader]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_BUFFER)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        yield reader
    finally:
        transport.close()


async def _pump(errors: asyncio.StreamReader, child: Child) -> None:
    rest = b""
    while piece := await errors.read(1 << 16):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            child.note_stderr(line.decode("utf-8", "replace"))
        rest = rest[-LONGEST_LINE:]
    if rest:
        child.note_stderr(rest.decode("utf-8", "replace"))


async def _end(child: Child, pump: asyncio.Task[None]) -> None:
    try:
        child.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE):
                await child.process.wait()
    finally:
        try:
            await end_group(child.process)
            await asyncio.wait({pump}, timeout=_DRAIN)
        finally:
            child.stdin.transport.abort()
            pump.cancel()


def _status(status: int) -> str:
    if status >= 0:
        return f"exit code {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
