"""The server on the process's own stdin and stdout, until the client closes them or a signal comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TypeAlias

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCResponse, jsonrpc_message_adapter

from perstack.engine.notices import notice
from perstack.frontends.mcp_server.greeting import Reply
from perstack.frontends.mcp_server.server import build_server, options_of
from perstack.frontends.mcp_server.workspaces import Offer, serving_all
from perstack.frontends.shared.stopping import stopped_by_signals
from perstack.frontends.shared.wire import Wire

_Streams: TypeAlias = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]
]

_AHEAD = 16
"""Messages that a client may be ahead of the server."""

_LAST_WORDS = 1.0
"""Seconds that a client is given to read what was still to be said."""


async def serve_stdio(offer: Offer, wire: Wire, opening: bytes | None, greeted: Reply | None) -> None:
    """Serve one client. `opening` is its first message; if that has been answered already, `greeted` is the answer."""
    with stopped_by_signals():
        async with (
            serving_all(offer) as workspaces,
            _streams(wire, opening, greeted) as (incoming, outgoing),
        ):
            server = build_server(workspaces)
            await server.run(incoming, outgoing, options_of(server))


@asynccontextmanager
async def _streams(wire: Wire, opening: bytes | None, greeted: Reply | None) -> AsyncGenerator[_Streams]:
    """What the SDK's server reads and writes."""
    lines: asyncio.Queue[bytes | None] = asyncio.Queue(_AHEAD)
    wire.start(asyncio.get_running_loop(), lines)
    arrived, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, leaving = anyio.create_memory_object_stream[SessionMessage](0)
    reading = asyncio.create_task(_read(lines, opening, arrived))
    writing = asyncio.create_task(_write(wire, greeted, leaving))
    try:
        yield incoming, outgoing
        outgoing.close()
        await asyncio.wait({writing}, timeout=_LAST_WORDS)
    finally:
        for task in (reading, writing):
            task.cancel()
        for stream in (arrived, incoming, outgoing, leaving):
            stream.close()
        await asyncio.wait({reading, writing})


async def _read(
    lines: asyncio.Queue[bytes | None],
    opening: bytes | None,
    arrived: MemoryObjectSendStream[SessionMessage | Exception],
) -> None:
    async with arrived:
        line = opening
        while line is not None:
            message = _parsed(line)
            if message is not None:
                await arrived.send(message)
            elif line.strip():
                shown = line[:200].decode("utf-8", "replace")
                notice(f"stdin had what is no MCP message, and is passed over: {shown}")
            line = await lines.get()


def _parsed(line: bytes) -> SessionMessage | None:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        return None


async def _write(wire: Wire, greeted: Reply | None, leaving: MemoryObjectReceiveStream[SessionMessage]) -> None:
    async for item in leaving:
        if greeted is not None and _answers(item, greeted):
            greeted = None
            continue
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        await wire.send(line.encode("utf-8", "replace") + b"\n")


def _answers(item: SessionMessage, greeted: Reply) -> bool:
    return isinstance(item.message, JSONRPCResponse | JSONRPCError) and item.message.id == greeted.request_id
