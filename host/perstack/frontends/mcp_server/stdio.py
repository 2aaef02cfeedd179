"""The server on the process's own stdin and stdout, until the client closes them or a signal comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import TypeAlias

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCResponse, jsonrpc_message_adapter

from perstack.frontends.mcp_server.greeting import Reply
from perstack.frontends.mcp_server.server import build_server, options_of
from perstack.frontends.mcp_server.workspaces import Offer, serving_all
from perstack.frontends.shared.stopping import stopped_by_signals
from perstack.frontends.shared.wire import Wire

_Streams: TypeAlias = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]
]

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
    messages = wire.start(_parsed, "MCP", opening)
    arrived, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, leaving = anyio.create_memory_object_stream[SessionMessage](0)
    reading = asyncio.create_task(_read(messages, arrived))
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
    messages: AsyncGenerator[SessionMessage], arrived: MemoryObjectSendStream[SessionMessage | Exception]
) -> None:
    async with arrived, aclosing(messages):
        async for message in messages:
            await arrived.send(message)


def _parsed(line: bytes) -> SessionMessage:
    return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))


async def _write(wire: Wire, greeted: Reply | None, leaving: MemoryObjectReceiveStream[SessionMessage]) -> None:
    async for item in leaving:
        if greeted is not None and _answers(item, greeted):
            greeted = None
            continue
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        await wire.send(line.encode("utf-8", "replace") + b"\n")


def _answers(item: SessionMessage, greeted: Reply) -> bool:
    return isinstance(item.message, JSONRPCResponse | JSONRPCError) and item.message.id == greeted.request_id
