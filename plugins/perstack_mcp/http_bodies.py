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


def _replace_body(response: httpx2.Response, kind: str, pieces: AsyncIterator[bytes]) -> httpx2.Response:
    """Return the response with another body of this media type, whose end closes the original one."""
    headers = response.headers.copy()
    for name in ("content-encoding", "content-length", "transfer-encoding"):
        headers.pop(name, None)
    headers["content-type"] = kind
    replaced = httpx2.Response(
        response.status_code,
        headers=headers,
        stream=_Body(response, pieces),
        request=response.request,
        extensions=response.extensions,
    )
    replaced.history = response.history
    return replaced


async def repaired_answer(response: httpx2.Response, request_id: int | str, notes_output: ShownOnce) -> httpx2.Response:
    """Return a successful response with a body that the SDK accepts."""
    declared = _media_type(response)
    pieces = response.aiter_bytes()
    first = await _first_bytes(pieces)
    kind = _detect_type(first) or declared
    if declared and kind != declared:
        notes_output("an invalid response was repaired", [f"its type is {declared[:60]}"])
    body = _prepend(first, pieces)
    if kind == _EVENTS:
        return _replace_body(response, _EVENTS, _repair_events(body, request_id, notes_output))
    text = await _read_up_to(body, _MAX_BODY_BYTES)
    if text is None:
        problem = f"its answer is larger than {_MAX_BODY_BYTES >> 20} MB"
    elif not text.strip():
        problem = f"its answer is empty (HTTP {response.status_code})"
    else:
        messages = _parse_messages(text, request_id, notes_output)
        if messages:
            return _replace_with_messages(response, messages)
        problem = f"its answer is not an MCP message: {_excerpt(text)}"
    return _replace_with_messages(response, [_error_message(request_id, PARSE_ERROR, problem)])


def repaired_stream(response: httpx2.Response, notes_output: ShownOnce) -> httpx2.Response:
    """Return a stream of server-sent events with only the events that the SDK accepts."""
    if _media_type(response) != _EVENTS:
        return response
    return _replace_body(response, _EVENTS, _repair_events(response.aiter_bytes(), None, notes_output))


async def read_refusal(response: httpx2.Response) -> bytes:
    """Return the beginning of a refusal's body."""
    pieces = response.aiter_bytes()
    text = bytearray()
    async for piece in pieces:
        text += piece
        if len(text) > _MAX_REFUSAL_BYTES:
            break
    return bytes(text[:_MAX_REFUSAL_BYTES])


def refusal(response: httpx2.Response, text: bytes, request_id: int | str, notes_output: ShownOnce) -> httpx2.Response:
    """Return an MCP error for a refused request, with the server's words."""
    messages = [message for message in _parse_messages(text, request_id, notes_output) if "error" in message]
    if not messages:
        # without a session, 404 means that the server does not know the method
        is_unknown = response.status_code == _NOT_FOUND and SESSION_ID not in response.request.headers
        answer = " ".join(part for part in (f"HTTP {response.status_code}", response.reason_phrase) if part)
        excerpt = _excerpt(text)
        code = METHOD_NOT_FOUND if is_unknown else INTERNAL_ERROR
        messages = [_error_message(request_id, code, f"the server answers {answer}{f': {excerpt}' if excerpt else ''}")]
    return _replace_with_messages(response, messages[:1])


SESSION_ID = "mcp-session-id"


def _error_message(request_id: RequestId, code: int, message: str) -> JsonObject:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}


def _replace_with_messages(response: httpx2.Response, messages: Sequence[JsonObject]) -> httpx2.Response:
    if len(messages) == 1:
        return _replace_body(response, _JSON, _yield_once(json.dumps(messages[0]).encode()))
    return _replace_body(response, _EVENTS, _yield_once(b"".join(map(_encode_event, messages))))


def _encode_event(message: JsonObject) -> bytes:
    return b"data: " + json.dumps(message).encode() + b"\n\n"


async def _yield_once(body: bytes) -> AsyncGenerator[bytes]:
    yield body


# Detection of a body's media type.


def _media_type(response: httpx2.Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def _detect_type(first: bytes) -> str:
    """Return the media type that the first bytes of a body suggest; empty if they suggest none."""
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


async def _prepend(first: bytes, pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    yield first
    async for piece in pieces:
        yield piece


async def _read_up_to(pieces: AsyncIterator[bytes], max_bytes: int) -> bytes | None:
    """Return a whole body; None if it has more than `max_bytes`."""
    parts: list[bytes] = []
    size = 0
    async for piece in pieces:
        size += len(piece)
        if size > max_bytes:
            return None
        parts.append(piece)
    return b"".join(parts)


def _parse_messages(text: bytes, request_id: RequestId, notes_output: ShownOnce) -> list[JsonObject]:
    """Return the messages of a text. Every answer gets the id of the request."""
    received_list = received_messages(text, request_id)
    for received in received_list:
        if "method" not in received.message and request_id is not None:
            received.message["id"] = request_id
        notes_output("an invalid message was repaired", received.notes)
    return [received.message for received in received_list]


def _excerpt(text: bytes) -> str:
    text_without_tags = _TAGS.sub(" ", text[:_MAX_EXCERPT_BYTES].decode("utf-8", "replace"))
    return " ".join(text_without_tags.split())[:_MAX_REFUSAL_CHARS]


# Repair of server-sent events.


async def _repair_events(
    pieces: AsyncIterator[bytes], request_id: RequestId, notes_output: ShownOnce
) -> AsyncIterator[bytes]:
    async for block in _split_events(pieces):
        repaired = _repair_event(block, request_id, notes_output)
        if repaired:
            yield repaired


async def _split_events(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """Yield events, each with its end; the last may have none. An event that is too large is left to the SDK."""
    buffer = bytearray()
    searched_bytes = 0  # bytes of the buffer that have been searched for an end
    is_first = True
    async for piece in pieces:
        buffer += piece
        if is_first and len(buffer) >= len(BOM_UTF8):
            is_first = False
            if buffer.startswith(BOM_UTF8):
                del buffer[: len(BOM_UTF8)]
        while match := _EVENT_END.search(buffer, max(searched_bytes - 3, 0)):
            yield bytes(buffer[: match.end()])
            del buffer[: match.end()]
            searched_bytes = 0
        searched_bytes = len(buffer)
        if len(buffer) > _MAX_BODY_BYTES:
            yield bytes(buffer)
            buffer.clear()
            searched_bytes = 0
    if buffer.strip():
        yield bytes(buffer)


def _repair_event(block: bytes, request_id: RequestId, notes_output: ShownOnce) -> bytes:
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
    messages = _parse_messages(text, request_id, notes_output)
    if not messages:
        return _replace_unreadable_event(text, request_id, notes_output, is_cut=is_cut)
    if is_cut:
        notes_output("an invalid message was repaired", ["its last event is cut"])
    if name != b"message":
        notes_output("an invalid message was repaired", [f"its event is {name[:60].decode('utf-8', 'replace')!r}"])
    kept_lines = [line for line in lines if line.startswith((b"id:", b"retry:"))]
    return b"".join(line + b"\n" for line in kept_lines) + b"".join(map(_encode_event, messages))


def _replace_unreadable_event(text: bytes, request_id: RequestId, notes_output: ShownOnce, *, is_cut: bool) -> bytes:
    """Return an error for the request if the event was meant as its answer; otherwise nothing."""
    if is_cut:
        return b""  # the stream ended within the event
    if text.startswith(b"{") and b'"jsonrpc"' in text and request_id is not None:
        return _encode_event(
            _error_message(request_id, PARSE_ERROR, "its message cannot be read: it is not JSON, or nested too deeply")
        )
    notes_output("an event is not a message and was skipped", [f"{text[:60].decode('utf-8', 'replace')!r}"])
    return b""
