"""MCP over the stdin and stdout of a command, for the SDK's client."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import IO

import anyio
import warm
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from terminal import SECONDS, Terminal

_LONGEST = 1 << 26
"""Maximum bytes of a message."""

Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


@asynccontextmanager
async def spoken_to(terminal: Terminal, *args: str) -> AsyncIterator[Streams]:
    """Start a command and yield MCP streams over its stdin and stdout. It ends when they are closed."""
    process = warm.perstack(
        *args,
        cwd=terminal.workspace,
        env=terminal.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        async with _streams(process.stdout, process.stdin) as streams:
            yield streams
        status = await asyncio.to_thread(process.wait, SECONDS)
        assert status == 0, f"perstack {' '.join(args)} ended with {status}"
    finally:
        process.kill()
        process.wait(SECONDS)


@asynccontextmanager
async def _streams(stdout: IO[bytes], stdin: IO[bytes]) -> AsyncIterator[Streams]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(_LONGEST)
    # the event loop closes the pipes
    heard, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stdout)
    spoken, _ = await loop.connect_write_pipe(asyncio.Protocol, stdin)
    arrived, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, leaving = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        async with arrived:
            async for line in reader:
                await arrived.send(_parse_line(line))

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
        # read the remaining output, as a client does that waits for the end
        async with asyncio.timeout(SECONDS):
            await reader.read()
        heard.close()


def _parse_line(line: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error
