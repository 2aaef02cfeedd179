"""Messages as lines over a process's pipes.

Replaces the SDK's stdio client: its reader copies its whole buffer for every chunk (21 s for 20 MB), has no limits, and
passes invalid lines on; and it starts the process itself.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import (
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)

from perstack_mcp.message_repairs import received_messages
from perstack_mcp.server_interface import ShownOnce
from perstack_mcp.server_process import Child

if TYPE_CHECKING:
    from perstack_mcp.sdk import TransportStreams

MAX_MESSAGE_BYTES = 64 << 20
MAX_GARBAGE_BYTES = 16 << 20  # maximum bytes of invalid lines between two messages; more end the connection
MAX_GARBAGE_LINES = 100_000  # maximum number of such lines: parsing more would block the event loop

_END_BYTES = 300  # bytes at both ends of an unreadable line that are searched for its id
_ID = re.compile(rb'"id"\s*:\s*"?(\d{1,15})\b')
_MAX_GLUED_BYTES = 10_000  # maximum bytes of other output before a message on the same line
_MAX_SPREAD_LINES = 10_000

_PIECE_BYTES = 1 << 18
_MAX_QUEUED = 64  # maximum messages queued for a server that does not read


@asynccontextmanager
async def streams_of(child: Child) -> AsyncGenerator[TransportStreams]:
    """Yield the streams that the SDK uses for this process."""
    arrived, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sent, outgoing = anyio.create_memory_object_stream[SessionMessage](_MAX_QUEUED)
    pumps = (asyncio.create_task(_read_messages(child, arrived)), asyncio.create_task(_write_messages(child, outgoing)))
    try:
        yield received, sent
    finally:
        for pump in pumps:
            pump.cancel()
        for stream in (arrived, received, sent, outgoing):
            stream.close()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _read_messages(child: Child, arrived: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
    framing = _Framing(child)
    with arrived:
        async for line in _read_lines(child):
            for message in framing.messages(line):
                await arrived.send(message)
            if child.failure:
                return


class _Framing:
    """Reader of messages from lines. Gives up a server that writes too much other output."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._garbage_bytes = self._garbage_lines = 0
        self._has_begun = False  # True once a message was received
        self._open_lines: list[bytes] = []  # lines of a JSON value that may continue
        self._notes_output = ShownOnce(child.show)

    def messages(self, line: bytes) -> list[SessionMessage]:
        """Return the messages in a line. A damaged answer becomes an error, so that its caller does not wait for it."""
        line = line.rstrip()
        messages, notes = _parse_messages(line)
        if messages:
            self._garbage_bytes = self._garbage_lines = 0
            self._has_begun = True
            self._open_lines.clear()
            self._notes_output("an invalid message was repaired", notes)
            return [SessionMessage(message) for message in messages]
        self._count_garbage(line)
        if not line:
            return []
        self._child.show(f"(stdout, not a message) {line[:200].decode('utf-8', 'replace')}")
        damage = self._find_damaged_answer(line)
        if damage is None:
            return []
        identity, problem = damage
        if not self._has_begun:
            self._child.failure = problem
            return []
        error = ErrorData(code=PARSE_ERROR, message=problem)
        return [SessionMessage(JSONRPCError(jsonrpc="2.0", id=identity, error=error))]

    def _count_garbage(self, line: bytes) -> None:
        self._garbage_bytes += len(line) + 1
        self._garbage_lines += 1
        if self._garbage_bytes > MAX_GARBAGE_BYTES or self._garbage_lines > MAX_GARBAGE_LINES:
            self._child.failure = "it floods stdout with output that is not an MCP message"

    def _find_damaged_answer(self, line: bytes) -> tuple[int | str, str] | None:
        """Return the id of an answer that a line damages, and the reason; None for other output."""
        start = line.find(b'{"', 1, _MAX_GLUED_BYTES)
        if start > 0 and (answer_ids := _find_answer_ids(line[start:])):
            excerpt = line[: start + 20].decode("utf-8", "replace")
            return answer_ids[0], f"its message is not on a line of its own: {excerpt}"
        if line.startswith(b"{") and (identity := _id_of_unreadable(line)) is not None:
            return identity, "its message cannot be read: it is not JSON, or nested too deeply"
        if line == b"{" or self._open_lines:
            self._open_lines.append(line)
            if line == b"}" and (answer_ids := _find_answer_ids(b"\n".join(self._open_lines))):
                self._open_lines.clear()
                return answer_ids[0], "it writes a message over several lines instead of one"
            if line == b"}" or len(self._open_lines) > _MAX_SPREAD_LINES:
                self._open_lines.clear()
        return None


def _parse_messages(line: bytes) -> tuple[Sequence[JSONRPCMessage], Sequence[str]]:
    """Return the messages in a line, and notes on their repairs; none if a part of the line is not a message."""
    try:
        received_list = received_messages(line)
        messages = [
            jsonrpc_message_adapter.validate_python(received.message, by_name=False) for received in received_list
        ]
    except ValueError:
        return [], []
    return messages, [note for received in received_list for note in received.notes]


def _find_answer_ids(text: bytes) -> list[int | str]:
    """Return the request ids of the answers in a text; empty if it is not a message."""
    messages, _ = _parse_messages(text)
    return [
        message.id
        for message in messages
        if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None
    ]


def _id_of_unreadable(line: bytes) -> int | None:
    """Return the id at the beginning or end of an unreadable answer; None for other lines."""
    ends = line[:_END_BYTES] + b" " + line[-_END_BYTES:]
    is_answer = b'"jsonrpc"' in ends and (b'"result"' in ends or b'"error"' in ends) and b'"method"' not in ends
    match = _ID.search(ends) if is_answer else None
    return int(match[1]) if match is not None else None


async def _read_lines(child: Child) -> AsyncGenerator[bytes]:
    """Yield the lines of stdout. A line that is too long is a failure of the server, and ends the output."""
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


async def _write_messages(child: Child, outgoing: MemoryObjectReceiveStream[SessionMessage]) -> None:
    async for item in outgoing:
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        child.stdin.write(line.encode("utf-8", "replace") + b"\n")
        try:
            await child.stdin.drain()
        except ConnectionError:
            # the server no longer reads; the session notices the end of its stdout
            return
