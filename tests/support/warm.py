"""Commands in processes that are forked from one which has imported what they need: 0.4 s each in place of 2.

They are processes of their own in all else, and run the whole command. What is about its start needs `python -m`.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection

import anyio
import pytest
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from terminal import SECONDS, Terminal

_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(
    [
        "perstack.frontends.cli.mcp",
        "perstack.frontends.mcp_server.stdio",
        "perstack.engine.driver",
        "perstack.testing.plugin",
        "perstack_base.skill",
        "perstack_filesystem.storage",
        "jsonschema",
    ]
)
_LONGEST = 1 << 26
"""Bytes of a message."""

Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


@pytest.fixture(scope="session", autouse=True)
def forking() -> None:
    """The process that others are forked from is there before the first test, and ends with this one."""
    first = _FORKING.Process(target=_nothing)
    first.start()
    first.join()  # the timeout of the first test bounds it: on a busy machine the imports take their time
    assert first.exitcode == 0


@asynccontextmanager
async def spoken_to(terminal: Terminal, *args: str) -> AsyncIterator[Streams]:
    """A command as `Terminal.run` gives it, and MCP over its stdin and stdout; it ends when they are closed."""
    its_stdin, stdin = _FORKING.Pipe(duplex=False)
    stdout, its_stdout = _FORKING.Pipe(duplex=False)
    process = _FORKING.Process(
        target=_command, args=(its_stdin, its_stdout, str(terminal.workspace), dict(terminal.env), args)
    )
    process.start()
    its_stdin.close()
    its_stdout.close()
    try:
        async with _streams(stdout, stdin) as streams:
            yield streams
        await asyncio.to_thread(process.join, SECONDS)
        assert process.exitcode == 0, f"perstack {' '.join(args)} ended with {process.exitcode}"
    finally:
        process.kill()
        process.join(SECONDS)
        process.close()


def _nothing() -> None:
    """What the first process does."""


def _command(stdin: Connection, stdout: Connection, folder: str, env: dict[str, str], args: tuple[str, ...]) -> None:
    """In the new process: all that a command finds when it is started."""
    os.setsid()
    for connection, number in ((stdin, 0), (stdout, 1)):
        os.dup2(connection.fileno(), number)
        connection.close()
    sys.stdin, sys.stdout = open(0, encoding="utf-8"), open(1, "w", encoding="utf-8")  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["perstack", *args]
    from perstack.frontends.cli.start import entry

    entry()


@asynccontextmanager
async def _streams(stdout: Connection, stdin: Connection) -> AsyncIterator[Streams]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(_LONGEST)
    # the loop closes what it is given
    out, into = os.fdopen(os.dup(stdout.fileno()), "rb", 0), os.fdopen(os.dup(stdin.fileno()), "wb", 0)
    stdin.close()
    stdout.close()
    heard, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), out)
    spoken, _ = await loop.connect_write_pipe(asyncio.Protocol, into)
    arrived, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, leaving = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        async with arrived:
            async for line in reader:
                await arrived.send(_parsed(line))

    async def write() -> None:
        async for item in leaving:
            spoken.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")

    tasks = (asyncio.create_task(read()), asyncio.create_task(write()))
    try:
        yield incoming, outgoing
    finally:
        spoken.close()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for stream in (arrived, incoming, outgoing, leaving):
            stream.close()
        # what it still says is taken, as a client does that waits for its end
        async with asyncio.timeout(SECONDS):
            await reader.read()
        heard.close()


def _parsed(line: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error
