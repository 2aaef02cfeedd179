"""Messages as lines over a process's pipes.

Replaces the SDK's stdio client, whose reader copies its whole buffer for every chunk (21 s for 20 MB), has no limits,
passes every line of garbage on, and starts the process itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from perstack_mcp.server_process import Child

if TYPE_CHECKING:
    from perstack_mcp.sdk import TransportStreams

MAX_MESSAGE_BYTES = 64 << 20
MAX_GARBAGE_BYTES = 16 << 20  # bytes of invalid lines between two messages after which the server is given up
MAX_GARBAGE_LINES = 100_000  # number of such lines: parsing endless ones would block the event loop

_PIECE_BYTES = 1 << 18
_MAX_QUEUED = 64  # queued messages for a server that does not read


@asynccontextmanager
async def streams_of(child: Child) -> AsyncGenerator[TransportStreams]:
    """Yield the streams that the SDK uses for this process."""
    arrived, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sent, outgoing = anyio.create_memory_object_stream[SessionMessage](_MAX_QUEUED)
    pumps = (asyncio.create_task(_read(child, arrived)), asyncio.create_task(_write(child, outgoing)))
    try:
        yield received, sent
    finally:
        for pump in pumps:
            pump.cancel()
        for stream in (arrived, received, sent, outgoing):
            stream.close()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _read(child: Child, arrived: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
    garbage = lines = 0
    with arrived:
        async for line in _lines(child):
            message = _parse(line)
            if message is not None:
                garbage = lines = 0
                await arrived.send(message)
                continue
            if line.strip():
                child.show(f"(stdout, not a message) {line[:200].decode('utf-8', 'replace')}")
            garbage += len(line) + 1
            lines += 1
            if garbage > MAX_GARBAGE_BYTES or lines > MAX_GARBAGE_LINES:
                child.failure = "it floods stdout with what is not an MCP message"
                return


def _parse(line: bytes) -> SessionMessage | None:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        return None


async def _lines(child: Child) -> AsyncGenerator[bytes]:
    parts: list[bytes] = []
    size = 0
    while piece := await child.stdout.read(_PIECE_BYTES):
        *whole, rest = piece.split(b"\n")
        for line in whole:
            yield b"".join((*parts, line))
            parts.clear()
            size = 0
        parts.append(rest)
        size += len(rest)
        if size > MAX_MESSAGE_BYTES:
            child.failure = f"it sent a message of more than {MAX_MESSAGE_BYTES >> 20} MB"
            return


async def _write(child: Child, outgoing: MemoryObjectReceiveStream[SessionMessage]) -> None:
    async for item in outgoing:
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        child.stdin.write(line.encode("utf-8", "replace") + b"\n")
        try:
            await child.stdin.drain()
        except ConnectionError:
            # the server no longer reads; the end of its stdout tells the session
            return
