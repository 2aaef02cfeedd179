"""Streams of MCP sessions that clients can resume after a lost connection, through the SDK's `EventStore`.

The SDK stores each message to a client with a session, even if no connection is open, so a call survives its
connection. Two things are added here:

- The SDK has one store for all sessions and names a stream by the id of its request, which another session may use too.
So `ResumableStreams` tells the store in a context variable which session a request belongs to. The SDK's task that
stores a session's messages is begun by the request that opens the session and inherits its context; the events are kept
as long as that task. - The SDK would lose a message that is stored between the end of a replay and its next send, and
would not end a stream after its response. So the store follows the stream itself, up to its response.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from contextvars import ContextVar
from typing import cast
from weakref import WeakValueDictionary

from mcp.server.streamable_http import GET_STREAM_KEY, EventCallback, EventMessage, EventStore
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCResponse
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override

from perstack_server.http.access import PATH

RETRY_MS = 1000  # milliseconds that a client should wait before it reconnects
_PRIMED_SINCE = "2025-11-25"  # first revision whose clients can read an event without data

_MAX_KEPT_EVENTS = 10_000  # maximum stored events of all sessions together; the oldest are dropped
_MAX_KEPT_BYTES = 64 << 20


_LISTENER = 1  # number of the stream for messages that belong to no request, in each session


class _Stream:
    """The stored messages of one stream, numbered from 1, and its current reader."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.messages: deque[JSONRPCMessage | None] = deque()
        self.dropped_count = 0  # number of oldest messages that are no longer kept
        self.is_over = False  # True once the response to the request is stored
        self.reader: object = None  # current reader; a newer one replaces it, as the older's connection may be lost
        self.changed = asyncio.Event()

    @property
    def is_droppable(self) -> bool:
        """True if the stream has ended and none of its messages is kept."""
        return self.is_over and not self.messages

    @property
    def last_number(self) -> int:
        """The number of the newest message."""
        return self.dropped_count + len(self.messages)

    def add(self, message: JSONRPCMessage | None) -> None:
        """Add a message, or None for an event that only marks the beginning and is never sent again."""
        self.messages.append(message)
        self.is_over = self.number != _LISTENER and isinstance(message, JSONRPCResponse | JSONRPCError)
        self.notify()

    def messages_after(self, number: int) -> Sequence[tuple[int, JSONRPCMessage]]:
        """Return the kept messages that follow message `number`."""
        numbered = enumerate(self.messages, self.dropped_count + 1)
        return [(position, message) for position, message in numbered if position > number and message is not None]

    def notify(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class _Session:
    """The streams of one session, by the SDK's names: the id of the request, or of the listener."""

    def __init__(self) -> None:
        self.listener = _Stream(_LISTENER)
        self.pending_ids: set[str] = set()  # ids of requests that the SDK is processing
        self._last_number = _LISTENER  # number of the newest stream
        self._by_name = {GET_STREAM_KEY: self.listener}
        self._by_number = {_LISTENER: self.listener}

    def stream(self, name: str) -> _Stream:
        """Return the stream with this name; a new one if the last one with the name has its response."""
        stream = self._by_name.get(name)
        if stream is None or stream.is_over:
            self._last_number += 1
            stream = self._by_name[name] = self._by_number[self._last_number] = _Stream(self._last_number)
            self._drop_ended_streams()
        return stream

    def has_open(self, name: str) -> bool:
        """Return whether a request with this id has no response yet."""
        stream = self._by_name.get(name)
        return name in self.pending_ids or (stream is not None and not stream.is_over)

    def find(self, event_id: str) -> tuple[_Stream, int] | None:
        """Return the stream and the number of an event; None if it is unknown or its stream was dropped.

        Messages after it may have been dropped, but not the last one, which is the response to a request.
        """
        name, _, text = event_id.partition("-")
        if not (event_id.isascii() and name.isdigit() and text.isdigit() and len(event_id) < 40):
            return None
        stream, number = self._by_number.get(int(name)), int(text)
        if stream is None or stream.is_droppable or number > stream.last_number:
            return None
        return stream, number

    def _drop_ended_streams(self) -> None:
        """Drop the ended streams without stored messages."""
        self._by_number = {number: stream for number, stream in self._by_number.items() if not stream.is_droppable}
        self._by_name = {name: stream for name, stream in self._by_name.items() if not stream.is_droppable}


_SESSION: ContextVar[_Session] = ContextVar("session of an MCP client")


class MemoryEventStore(EventStore):
    """Events in memory, with one limit for all sessions."""

    def __init__(self) -> None:
        self._stored: deque[tuple[_Stream, int]] = deque()  # stream and size of each kept event, the oldest first
        self._stored_bytes = 0

    @override
    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        stream = _SESSION.get().stream(stream_id)
        size = 0 if message is None else len(message.model_dump_json())
        stream.add(message)
        self._stored.append((stream, size))
        self._stored_bytes += size
        while len(self._stored) > 1 and (len(self._stored) > _MAX_KEPT_EVENTS or self._stored_bytes > _MAX_KEPT_BYTES):
            oldest, oldest_size = self._stored.popleft()
            self._stored_bytes -= oldest_size
            oldest.messages.popleft()
            oldest.dropped_count += 1
        return _event_id(stream, stream.last_number)

    @override
    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> None:
        """Send the events after `last_event_id`, and new ones, until the stream ends or gets another reader."""
        position = _SESSION.get().find(last_event_id)
        if position is None:
            return
        stream, number = position
        stream.reader = reader = object()
        stream.notify()
        while True:
            changed, is_over = stream.changed, stream.is_over
            for message_number, message in stream.messages_after(number):
                await send_callback(EventMessage(message, _event_id(stream, message_number)))
                number = message_number
            if is_over:
                return
            await changed.wait()
            if stream.reader is not reader:
                return


def _event_id(stream: _Stream, number: int) -> str:
    return f"{stream.number}-{number}"


class ResumableStreams:
    """ASGI middleware that tells the store which session a request belongs to."""

    def __init__(self, app: ASGIApp) -> None:
        """Pass requests on to `app`, which stores events in a `MemoryEventStore`."""
        self._app = app
        self._by_id: WeakValueDictionary[str, _Session] = WeakValueDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on in its session. Refuse an unknown event, and the id of another open request."""
        headers = Headers(scope=scope) if scope["type"] == "http" and scope["path"] == PATH else Headers()
        session = self._by_id.get(headers.get("mcp-session-id", ""))
        if session is None:
            session = _Session()
            _SESSION.set(session)
            await self._app(scope, receive, self._register_session(send, session))
            return
        _SESSION.set(session)
        if scope["method"] == "GET":
            await self._resume_reading(session, scope, receive, send)
        elif scope["method"] == "POST":
            await self._post(session, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def end_listening(self) -> None:
        """End the streams of listeners, which would not end by themselves when the server stops."""
        for session in self._by_id.values():
            session.listener.reader = None
            session.listener.notify()

    async def _resume_reading(self, client_session: _Session, scope: Scope, receive: Receive, send: Send) -> None:
        last_event_id = Headers(scope=scope).get("last-event-id")
        if last_event_id is None:
            # Resume at the end: the SDK refuses a second listener until it notices that the first has disconnected.
            last_event_id = _event_id(client_session.listener, client_session.listener.last_number)
            scope = {**scope, "headers": [*scope["headers"], (b"last-event-id", last_event_id.encode())]}
        elif client_session.find(last_event_id) is None:
            problem = f"Last-Event-ID {last_event_id[:40]!r} is not an event of this session, or no longer kept"
            await _refuse(problem)(scope, receive, send)
            return
        is_primed = Headers(scope=scope).get("mcp-protocol-version", "") >= _PRIMED_SINCE
        await self._app(scope, receive, _prime(send, last_event_id) if is_primed else send)

    async def _post(self, client_session: _Session, scope: Scope, receive: Receive, send: Send) -> None:
        first_message = await receive()  # the access check has read the whole body
        body = first_message.get("body", b"")
        request_id = _request_id(body)
        if body.lstrip().startswith(b"["):
            await _refuse("batches are not supported: send each message in its own request")(scope, receive, send)
        elif request_id is None:
            await self._app(scope, _replay_message(first_message, receive), send)
        elif client_session.has_open(request_id):
            # The SDK keeps one response per id, so one of the two requests would wait forever.
            await _refuse(f"the id {request_id[:40]!r} belongs to another request that has no answer yet")(
                scope, receive, send
            )
        else:
            client_session.pending_ids.add(request_id)
            try:
                await self._app(scope, _replay_message(first_message, receive), send)
            finally:
                client_session.pending_ids.discard(request_id)

    def _register_session(self, send: Send, client_session: _Session) -> Send:
        """Return a send function that registers the session that the application opens."""

        async def register(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                name = Headers(raw=message["headers"]).get("mcp-session-id")
                if name is not None:
                    self._by_id[name] = client_session
            await send(message)

        return register


def _prime(send: Send, event_id: str) -> Send:
    """Return a send function that begins the stream with an event from which a client can resume."""

    async def prime(message: Message) -> None:
        await send(message)
        if message["type"] == "http.response.start" and message["status"] == 200:
            event = f"id: {event_id}\r\nretry: {RETRY_MS}\r\ndata: \r\n\r\n"
            await send({"type": "http.response.body", "body": event.encode(), "more_body": True})

    return prime


def _replay_message(first_message: Message, receive: Receive) -> Receive:
    messages = [first_message]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again


def _request_id(body: bytes) -> str | None:
    """Return the id of a request as the SDK compares it; None for other messages."""
    message: object = json.loads(body) if body.strip() else None
    fields = cast("dict[str, object]", message) if isinstance(message, dict) else {}
    request_id = fields.get("id")
    return str(request_id) if "method" in fields and isinstance(request_id, int | str | float) else None


def _refuse(message: str) -> Response:
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": message}}, 400)
