"""Bodies of a server's HTTP responses, repaired before the SDK parses them: JSON, events, and refusals.

The SDK trusts a body's declared type, ends a call at the first event that is not a message, and loses the text of a
refusal. Here the first bytes determine the type, events that are not messages are skipped, and each refusal becomes an
error with the server's words.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import TYPE_CHECKING

import httpx2
from mcp_types import INTERNAL_ERROR, METHOD_NOT_FOUND, PARSE_ERROR

from perstack_mcp.message_repairs import received_messages
from perstack_mcp.server_interface import ShownOnce

if TYPE_CHECKING:
    from perstack.core.base.records import JsonObject

    RequestId = int | str | None

_NOT_FOUND = 404

_JSON, _EVENTS = "application/json", "text/event-stream"
_MAX_BODY_BYTES = 64 << 20  # maximum bytes of a JSON body, or of one event
_MAX_REFUSAL_BYTES = 64 << 10
_MAX_EXCERPT_BYTES = 8 << 10  # bytes of an HTML page that are searched for text
_MAX_REFUSAL_CHARS = 300

_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r|\n\r\n")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_TAGS = re.compile(r"<(style|script)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)


class _Body(httpx2.AsyncByteStream):
    """The repaired body of a response. Closing it closes the response."""

    def __init__(self, response: httpx2.Response, pieces: AsyncIterator[bytes]) -> None:
        self._response = response
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._pieces:
            yield piece

    async def aclose(self) -> None:
        await self._response.aclose()


def _with_body(response: httpx2.Response, kind: str, pieces: AsyncIterator[bytes]) -> httpx2.Response:
    headers = response.headers.copy()
    for name in ("content-encoding", "content-length", "transfer-encoding"):
        headers.pop(name, None)
    headers["content-type"] = kind
    made = httpx2.Response(
        response.status_code,
        headers=headers,
        stream=_Body(response, pieces),
        request=response.request,
        extensions=response.extensions,
    )
    made.history = response.history
    return made


async def repaired_answer(response: httpx2.Response, request_id: int | str, shown: ShownOnce) -> httpx2.Response:
    """Return a successful response with a body that the SDK accepts."""
    declared = _media_type(response)
    pieces = response.aiter_bytes()
    first = await _first_bytes(pieces)
    kind = _kind_of(first) or declared
    if declared and kind != declared:
        shown("an invalid response was repaired", [f"its type is {declared[:60]}"])
    body = _chained(first, pieces)
    if kind == _EVENTS:
        return _with_body(response, _EVENTS, _repaired_events(body, request_id, shown))
    text = await _read(body, _MAX_BODY_BYTES)
    if text is None:
        problem = f"its answer is larger than {_MAX_BODY_BYTES >> 20} MB"
    elif not text.strip():
        problem = f"its answer is empty (HTTP {response.status_code})"
    else:
        messages = _messages_of(text, request_id, shown)
        if messages:
            return _with_messages(response, messages)
        problem = f"its answer is not an MCP message: {_excerpt(text)}"
    return _with_messages(response, [_error(request_id, PARSE_ERROR, problem)])


def repaired_stream(response: httpx2.Response, shown: ShownOnce) -> httpx2.Response:
    """Return a stream of server-sent events with only the events that the SDK accepts."""
    if _media_type(response) != _EVENTS:
        return response
    return _with_body(response, _EVENTS, _repaired_events(response.aiter_bytes(), None, shown))


async def read_refusal(response: httpx2.Response) -> bytes:
    """Return the beginning of a refusal's body."""
    pieces = response.aiter_bytes()
    text = bytearray()
    async for piece in pieces:
        text += piece
        if len(text) > _MAX_REFUSAL_BYTES:
            break
    return bytes(text[:_MAX_REFUSAL_BYTES])


def refusal(response: httpx2.Response, text: bytes, request_id: int | str, shown: ShownOnce) -> httpx2.Response:
    """Return an MCP error for a refused request, with the server's words."""
    messages = [message for message in _messages_of(text, request_id, shown) if "error" in message]
    if not messages:
        # without a session, 404 means that the server does not know the method
        is_unknown = response.status_code == _NOT_FOUND and SESSION_ID not in response.request.headers
        answer = " ".join(part for part in (f"HTTP {response.status_code}", response.reason_phrase) if part)
        words = _excerpt(text)
        code = METHOD_NOT_FOUND if is_unknown else INTERNAL_ERROR
        messages = [_error(request_id, code, f"the server answers {answer}{f': {words}' if words else ''}")]
    return _with_messages(response, messages[:1])


SESSION_ID = "mcp-session-id"


def _error(request_id: RequestId, code: int, message: str) -> JsonObject:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}


def _with_messages(response: httpx2.Response, messages: Sequence[JsonObject]) -> httpx2.Response:
    if len(messages) == 1:
        return _with_body(response, _JSON, _once(json.dumps(messages[0]).encode()))
    return _with_body(response, _EVENTS, _once(b"".join(map(_event, messages))))


def _event(message: JsonObject) -> bytes:
    return b"data: " + json.dumps(message).encode() + b"\n\n"


async def _once(body: bytes) -> AsyncGenerator[bytes]:
    yield body


# The type of a body.


def _media_type(response: httpx2.Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def _kind_of(first: bytes) -> str:
    start = first.removeprefix(BOM_UTF8).lstrip()
    if start.startswith((b"{", b"[")):
        return _JSON
    return _EVENTS if start.startswith((b"data:", b"event:", b"id:", b"retry:", b":")) else ""


async def _first_bytes(pieces: AsyncIterator[bytes]) -> bytes:
    """Return the beginning of a body, up to its first word; empty if it has none."""
    first = b""
    async for piece in pieces:
        first += piece
        if first.removeprefix(BOM_UTF8).strip() or len(first) > _MAX_REFUSAL_BYTES:
            break
    return first


async def _chained(first: bytes, pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    yield first
    async for piece in pieces:
        yield piece


async def _read(pieces: AsyncIterator[bytes], max_bytes: int) -> bytes | None:
    parts: list[bytes] = []
    size = 0
    async for piece in pieces:
        size += len(piece)
        if size > max_bytes:
            return None
        parts.append(piece)
    return b"".join(parts)


def _messages_of(text: bytes, request_id: RequestId, shown: ShownOnce) -> list[JsonObject]:
    """Return the messages of a text. Every answer gets the id of the request."""
    found = received_messages(text, request_id)
    for received in found:
        if "method" not in received.message and request_id is not None:
            received.message["id"] = request_id
        shown("an invalid message was repaired", received.notes)
    return [received.message for received in found]


def _excerpt(text: bytes) -> str:
    words = _TAGS.sub(" ", text[:_MAX_EXCERPT_BYTES].decode("utf-8", "replace"))
    return " ".join(words.split())[:_MAX_REFUSAL_CHARS]


# Events.


async def _repaired_events(
    pieces: AsyncIterator[bytes], request_id: RequestId, shown: ShownOnce
) -> AsyncIterator[bytes]:
    async for block in _blocks(pieces):
        repaired = _repaired_event(block, request_id, shown)
        if repaired:
            yield repaired


async def _blocks(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """Yield events, each with its end; the last may have none. An event that is too large is left to the SDK."""
    buffer = bytearray()
    searched = 0  # bytes of the buffer that have been searched for an end
    is_first = True
    async for piece in pieces:
        buffer += piece
        if is_first and len(buffer) >= len(BOM_UTF8):
            is_first = False
            if buffer.startswith(BOM_UTF8):
                del buffer[: len(BOM_UTF8)]
        while found := _EVENT_END.search(buffer, max(searched - 3, 0)):
            yield bytes(buffer[: found.end()])
            del buffer[: found.end()]
            searched = 0
        searched = len(buffer)
        if len(buffer) > _MAX_BODY_BYTES:
            yield bytes(buffer)
            buffer.clear()
            searched = 0
    if buffer.strip():
        yield bytes(buffer)


def _repaired_event(block: bytes, request_id: RequestId, shown: ShownOnce) -> bytes:
    """Return an event in the form that the SDK accepts; empty if it is not a message."""
    lines = [line for line in _LINE_END.split(block) if line]
    data = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
    name = next((line[6:].strip() for line in lines if line.startswith(b"event:")), b"message")
    is_cut = _EVENT_END.search(block) is None
    if name == b"endpoint" or len(block) > _MAX_BODY_BYTES:
        return block
    if not any(data):
        return block if any(line.startswith((b"id:", b"retry:")) for line in lines) else b""
    text = b"\n".join(data)
    messages = _messages_of(text, request_id, shown)
    if not messages:
        return _unreadable(text, request_id, shown, is_cut=is_cut)
    if is_cut:
        shown("an invalid message was repaired", ["its last event is cut"])
    if name != b"message":
        shown("an invalid message was repaired", [f"its event is {name[:60].decode('utf-8', 'replace')!r}"])
    kept = [line for line in lines if line.startswith((b"id:", b"retry:"))]
    return b"".join(line + b"\n" for line in kept) + b"".join(map(_event, messages))


def _unreadable(text: bytes, request_id: RequestId, shown: ShownOnce, *, is_cut: bool) -> bytes:
    if is_cut:
        return b""  # the stream ended within the event
    if text.startswith(b"{") and b'"jsonrpc"' in text and request_id is not None:
        return _event(
            _error(request_id, PARSE_ERROR, "its message cannot be read: it is not JSON, or nested too deeply")
        )
    shown("an event is not a message and was skipped", [f"{text[:60].decode('utf-8', 'replace')!r}"])
    return b""
