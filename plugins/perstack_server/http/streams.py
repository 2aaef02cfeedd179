"""Recorded streams of MCP sessions.

What the SDK's application streams to a client with a session is recorded, so that a client reads on after its
connection was cut: the application never learns of the cut, and its call continues. The record is in memory, and
bounded; a Job outlives it in its log. So the ids of a call's events also name the Run that the call drives. When no
memory has the stream any more, as after a restart of the server, the call is answered with how its Job stands. What was
told of its progress meanwhile is not repeated: it says what happens now.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import deque
from typing import TypeAlias, cast

from mcp.server.streamable_http import GET_STREAM_KEY, check_accept_headers
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perstack.core.base.ids import job_of_run
from perstack.doors.shared.next_steps import mcp_phrase
from perstack.errors import PerstackError
from perstack_server.http.access import PATH
from perstack_server.mcp.driving import result_from_log
from perstack_server.mcp.greeting import HANDSHAKE_VERSIONS
from perstack_server.mcp.workspaces import Workspaces

RequestId: TypeAlias = int | str

# Streams of the sessions (revisions up to 2025-11-25). Source: MCP 2025-11-25, transports, «resumability».

_PRIMED_SINCE = "2025-11-25"  # earlier clients cannot read an event without data
_BATCHES_IN = "2025-03-26"  # the revision with batches, whose clients do not send it in a header
_MAX_BATCH = 100
_RETRY_MS = 1000  # milliseconds that a client waits before it reconnects
_PING_S = 15.0
_PING = b": ping\r\n\r\n"
_NAMING_S = 1.0  # seconds between two checks whether a call drives a Run
_MAX_NAME_BYTES = 1000
_NAMED_ID = re.compile(rf"[0-9]{{1,20}}-[0-9]{{1,20}}\.([\w=-]{{1,{_MAX_NAME_BYTES}}})\.([0-9a-f]{{64}})", re.ASCII)
_MAX_KEPT_EVENTS = 10_000  # limits of all recorded events together; the oldest are dropped
_MAX_KEPT_BYTES = 64 << 20


class CallsInLogs:
    """Calls that can be answered from the log of their Job, named by the last part of their events' ids.

    A client receives that part with an id and sends it back, so it is signed, with a key derived from the access token,
    which outlives the server: a client cannot name another Run. It is valid in one session, whose id only its client
    knows.
    """

    def __init__(self, workspaces: Workspaces, token: str | None) -> None:
        """Answer calls of these workspaces. Without a token, as at a Unix socket, names are of this process alone."""
        self._workspaces = workspaces
        secret = secrets.token_bytes() if token is None else token.encode()
        self._key = hmac.digest(secret, b"perstack event ids", "sha256")

    def name_of_call(self, session: str, request_id: RequestId) -> bytes:
        """Return the last part of a call's event ids; empty while it drives no Run."""
        run_id = self._workspaces.run_of_call((session, str(request_id)))
        if run_id is None:
            return b""
        name = urlsafe_b64encode(json.dumps([run_id, request_id]).encode())
        return b".%b.%b" % (name, self._signature(session, name)) if len(name) <= _MAX_NAME_BYTES else b""

    def read(self, session: str, event_id: str) -> tuple[str, RequestId] | None:
        """Return the Run and the request that an event's id names; None if it names none, or is of another session."""
        found = _NAMED_ID.fullmatch(event_id)
        if found is None:
            return None
        name, signature = (one.encode() for one in found.groups())
        if not hmac.compare_digest(signature, self._signature(session, name)):
            return None
        run_id, request_id = cast("tuple[str, RequestId]", json.loads(urlsafe_b64decode(name)))
        return run_id, request_id

    async def response(self, run_id: str, request_id: RequestId) -> bytes:
        """Return the response to a call as an event, once nobody drives its Job. Raises PerstackError."""
        project = await self._workspaces.with_job(job_of_run(run_id))
        result = await result_from_log(project, run_id)
        told = result.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"result_type"})
        message = {"jsonrpc": "2.0", "id": request_id, "result": told}
        return b"event: message\r\ndata: %b\r\n\r\n" % json.dumps(message).encode()

    def _signature(self, session: str, name: bytes) -> bytes:
        return hmac.digest(self._key, session.encode() + b"\0" + name, "sha256").hex().encode()


class _Stream:
    """The recorded events of one stream, numbered from one on, and its current reader."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.call: RequestId | None = None  # the request of a tool's call that the stream answers
        self.call_name = b""  # its name in the ids of events, once it drives a Run
        self.events: deque[bytes] = deque()
        self.dropped = 0  # number of oldest events that are no longer kept
        self.writers: set[_Exchange] = set()
        self.reader: object = None  # replaced by a newer reader, since the connection of the older may be cut
        self.news = asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def last(self) -> int:
        """The number of the newest event."""
        return self.dropped + len(self.events)

    def events_after(self, number: int) -> list[tuple[int, bytes]]:
        """Return the kept events after the one with this number."""
        return [one for one in enumerate(self.events, self.dropped + 1) if one[0] > number]

    def notify(self) -> None:
        """Wake the reader."""
        self.news.set()
        self.news = asyncio.Event()

    def attach(self) -> object:
        """Return a new reader, which replaces the one before."""
        if self._expiry is not None:
            self._expiry.cancel()
        self.reader = reader = object()
        self.notify()
        return reader

    def detach(self, reader: object, idle: float) -> None:
        """Remove a reader. Without another one for `idle` seconds, the application learns that its client is gone."""
        if self.reader is reader:
            self.reader = None
            self._expiry = asyncio.get_running_loop().call_later(idle, self.abandon)

    def abandon(self) -> None:
        """Tell the application that the client is gone."""
        for exchange in self.writers:
            exchange.is_gone.set()


class _Exchange:
    """A request to the application, which continues when its client is gone."""

    def __init__(self, body: bytes, stream: _Stream | None = None) -> None:
        """Send `body`. A response that is a stream is recorded in `stream`, or in a new one."""
        self.stream = stream
        self.is_gone = asyncio.Event()
        self.started = asyncio.Event()
        self.status = 500
        self.headers: list[tuple[bytes, bytes]] = []
        self.content = bytearray()  # of a response that is not a stream
        self.request_ids = _request_ids(body)
        self._body: bytes | None = body

    @property
    def is_stream(self) -> bool:
        """True if the application answers with a stream of events."""
        return dict(self.headers).get(b"content-type", b"").startswith(b"text/event-stream")

    async def receive(self) -> Message:
        """Return the request, then that the client is gone once that is certain."""
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await self.is_gone.wait()
        return {"type": "http.disconnect"}

    def response(self) -> Response:
        """Return the application's response that is not a stream."""
        response = Response(bytes(self.content), self.status)
        response.raw_headers = self.headers
        return response


_STANDING = 1  # number of a session's stream for messages that belong to no request


class _Session:
    def __init__(self, name: str, now: float) -> None:
        self.name = name
        self.used_at = now
        self.streams = {_STANDING: _Stream(_STANDING)}
        self.opened = _STANDING  # number of the newest stream
        self.starting = asyncio.Lock()
        # ids of requests that the application has not answered yet, and the one it keeps the standing stream under
        self.active_ids: set[str] = {GET_STREAM_KEY}

    def open(self) -> _Stream:
        self.opened += 1
        stream = self.streams[self.opened] = _Stream(self.opened)
        return stream

    def find(self, event_id: str) -> tuple[_Stream, int] | None:
        """Return the stream and the number of an event; None if it is unknown, or the stream is no longer kept.

        Events that followed may have been dropped; the last one, which is the response to a request, was not.
        """
        place = event_id.partition(".")[0]
        name, _, text = place.partition("-")
        if not (place.isascii() and name.isdigit() and text.isdigit() and len(place) < 40):
            return None
        stream, number = self.streams.get(int(name)), int(text)
        return (stream, number) if stream is not None and number <= stream.last else None


class RecordedStreams:
    """ASGI middleware that records the streams of sessions, and lets clients resume them by `Last-Event-ID`."""

    def __init__(self, app: ASGIApp, idle: float, calls: CallsInLogs) -> None:
        """Record streams of `app`. A stream without a reader for `idle` seconds counts as left by its client."""
        self._app = app
        self._idle = idle
        self._calls = calls
        self._answering: set[asyncio.Task[bytes]] = set()
        self._sessions: dict[str, _Session] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._kept: deque[tuple[_Session, _Stream]] = deque()  # one entry for each kept event, the oldest first
        self._kept_bytes = 0
        self._is_ending = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer requests of sessions; pass all others on."""
        headers = Headers(scope=scope) if scope["type"] == "http" and scope["path"] == PATH else Headers()
        version = headers.get("mcp-protocol-version")
        session = self._sessions.get(headers.get("mcp-session-id", ""))
        if session is None or not (version is None or version in HANDSHAKE_VERSIONS):
            if session is not None or not await self._answer_from_log(scope, receive, send):
                await self._app(_unresumed(scope), receive, self._registering(send))
            return
        session.used_at = asyncio.get_running_loop().time()
        if scope["method"] == "POST":
            await self._post(session, scope, receive, send)
        elif scope["method"] == "GET" and check_accept_headers(Request(scope))[1]:
            await self._get(session, scope, receive, send)
        else:
            await self._app(_unresumed(scope), receive, send)
            if scope["method"] == "DELETE":
                self._forget(session)

    def end_listening(self) -> None:
        """End the streams that would not end by themselves: the server is stopping."""
        self._is_ending = True
        for answering in self._answering:
            answering.cancel()
        for session in self._sessions.values():
            session.streams[_STANDING].notify()

    async def close(self) -> None:
        """End what is still in progress."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _registering(self, send: Send) -> Send:
        """Return a function that sends, and registers the session that the application has created."""

        async def register(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                name = Headers(raw=message["headers"]).get("mcp-session-id")
                if name is not None and name not in self._sessions:
                    now = asyncio.get_running_loop().time()
                    self._forget_unused(now)
                    self._sessions[name] = _Session(name, now)
            await send(message)

        return register

    def _forget_unused(self, now: float) -> None:
        """Forget the sessions that the application has ended for want of requests."""
        for session in list(self._sessions.values()):
            is_read = any(one.reader is not None or one.writers for one in session.streams.values())
            if not is_read and session.used_at + 2 * self._idle < now:
                self._forget(session)

    def _forget(self, session: _Session) -> None:
        self._sessions.pop(session.name, None)
        for stream in session.streams.values():
            stream.abandon()

    async def _post(self, session: _Session, scope: Scope, receive: Receive, send: Send) -> None:
        body = cast("bytes", (await receive()).get("body", b""))  # the access check has read it whole
        batch = _batch_of(body, Headers(scope=scope))
        if isinstance(batch, str):
            await _refusal(batch)(scope, receive, send)
            return
        ids = [one for message in batch or [body] for one in _request_ids(message)]
        repeated = next((one for one in ids if one in session.active_ids or ids.count(one) > 1), None)
        if repeated is not None:
            # the application has one answer for each id, so one of the two requests would wait for ever
            await _refusal(f"the id {repeated[:40]!r} is that of another request that has no answer yet")(
                scope, receive, send
            )
            return
        stream = None if batch is None else session.open()
        exchanges = [self._begin(session, scope, _Exchange(one, stream)) for one in batch or [body]]
        for exchange in exchanges:
            await exchange.started.wait()
        if stream is None:
            stream = exchanges[0].stream
            if stream is not None:
                stream.call = _call_in(body)
        elif not any(exchange.is_stream for exchange in exchanges):
            del session.streams[stream.number]
            stream = None
        if stream is not None:
            await self._follow(session, stream, 0, scope, receive, send)
            return
        refused = [exchange for exchange in exchanges if exchange.status >= 400]
        await self._reply(session, (refused or exchanges)[0], scope, receive, send)

    async def _get(self, session: _Session, scope: Scope, receive: Receive, send: Send) -> None:
        asked = Headers(scope=scope).get("last-event-id")
        standing = session.streams[_STANDING]
        found = (standing, standing.last) if asked is None else session.find(asked)
        if found is None:
            if await self._answer_from_log(scope, receive, send):
                return
            await _refusal(f"Last-Event-ID {(asked or '')[:40]!r} is not one of this session, or no longer kept")(
                scope, receive, send
            )
            return
        if found[0] is standing:
            async with session.starting:
                exchange = next(iter(standing.writers), None) or self._begin(session, scope, _Exchange(b"", standing))
                await exchange.started.wait()
            if not exchange.is_stream:
                await self._reply(session, exchange, scope, receive, send)
                return
        await self._follow(session, *found, scope, receive, send)

    async def _answer_from_log(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Answer a call of which no stream is kept, from the log of its Job. Return False if the request names none."""
        if scope["type"] != "http" or (scope["method"], scope["path"]) != ("GET", PATH):
            return False
        headers = Headers(scope=scope)
        name, asked = headers.get("mcp-session-id", ""), headers.get("last-event-id", "")
        named = self._calls.read(name, asked)
        if named is None:
            return False
        answering = asyncio.create_task(self._calls.response(*named))
        self._answering.add(answering)
        answering.add_done_callback(self._answering.discard)
        leaving = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            await _begin_stream(send, name)
            both: set[asyncio.Task[bytes] | asyncio.Task[None]] = {answering, leaving}
            while not (await asyncio.wait(both, timeout=_PING_S, return_when=asyncio.FIRST_COMPLETED))[0]:
                await _send_part(send, _PING)
            if answering.done() and not answering.cancelled():
                await _send_part(send, b"id: %b\r\n%b" % (asked.encode(), _outcome(answering, named[1])))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            answering.cancel()
            leaving.cancel()
        return True

    async def _reply(self, session: _Session, exchange: _Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        if exchange.status == 404:
            self._forget(session)
        await exchange.response()(scope, receive, send)

    def _begin(self, session: _Session, scope: Scope, exchange: _Exchange) -> _Exchange:
        if exchange.stream is not None:
            exchange.stream.writers.add(exchange)
        session.active_ids.update(exchange.request_ids)
        task = asyncio.create_task(self._perform(session, scope, exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return exchange

    async def _perform(self, session: _Session, scope: Scope, exchange: _Exchange) -> None:
        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status, exchange.headers = message["status"], list(message["headers"])
                if exchange.is_stream:
                    stream = exchange.stream = exchange.stream or session.open()
                    stream.writers.add(exchange)
                    exchange.started.set()
                return
            content = cast("bytes", message.get("body", b""))
            if not exchange.is_stream:
                exchange.content += content
            elif content and not content.startswith(b":") and exchange.stream is not None:
                self._record(session, exchange.stream, content)

        try:
            await self._app(_unresumed(scope), exchange.receive, send)
        finally:
            session.active_ids.difference_update(exchange.request_ids)
            if exchange.stream is not None:
                if not exchange.is_stream and exchange.content:
                    # the error that answers one message of a batch
                    self._record(
                        session, exchange.stream, b"event: message\r\ndata: %b\r\n\r\n" % bytes(exchange.content)
                    )
                exchange.stream.writers.discard(exchange)
                exchange.stream.notify()
            exchange.started.set()

    def _record(self, session: _Session, stream: _Stream, event: bytes) -> None:
        stream.events.append(event)
        stream.notify()
        self._kept.append((session, stream))
        self._kept_bytes += len(event)
        while len(self._kept) > 1 and (len(self._kept) > _MAX_KEPT_EVENTS or self._kept_bytes > _MAX_KEPT_BYTES):
            whose, oldest = self._kept.popleft()
            self._kept_bytes -= len(oldest.events.popleft())
            oldest.dropped += 1
            if not oldest.events and not oldest.writers and oldest.number != _STANDING:
                whose.streams.pop(oldest.number, None)

    async def _follow(
        self, session: _Session, stream: _Stream, number: int, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Send the events after `number`, and those to come, until the stream ends or its client leaves."""
        reader = stream.attach()
        leaving = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            await _begin_stream(send, session.name)
            is_primed = (Headers(scope=scope).get("mcp-protocol-version") or "") >= _PRIMED_SINCE
            if is_primed:
                await _send_part(
                    send, b"id: %b\r\nretry: %d\r\ndata: \r\n\r\n" % (self._id(session, stream, number), _RETRY_MS)
                )
            while stream.reader is reader and not leaving.done():
                news = asyncio.create_task(stream.news.wait())
                is_over = not stream.writers or (self._is_ending and stream.number == _STANDING)
                for at, event in stream.events_after(number):
                    await _send_part(send, b"id: %b\r\n%b" % (self._id(session, stream, at), event))
                    number = at
                if is_over:
                    news.cancel()
                    break
                is_unnamed = is_primed and stream.call is not None and not stream.call_name
                patience = _NAMING_S if is_unnamed else _PING_S
                done, _ = await asyncio.wait({news, leaving}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                if not done:
                    named = self._id(session, stream, number)
                    is_named_now = is_unnamed and stream.call_name
                    await _send_part(send, b"id: %b\r\ndata: \r\n\r\n" % named if is_named_now else _PING)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            leaving.cancel()
            stream.detach(reader, self._idle)
            session.used_at = asyncio.get_running_loop().time()

    def _id(self, session: _Session, stream: _Stream, number: int) -> bytes:
        """Return the id of an event, which names the call that the stream answers once it drives a Run."""
        if stream.call is not None and not stream.call_name:
            stream.call_name = self._calls.name_of_call(session.name, stream.call)
        return b"%d-%d%b" % (stream.number, number, stream.call_name)


_STREAM_HEADERS = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache, no-transform",
    "connection": "keep-alive",
    "x-accel-buffering": "no",
}


async def _begin_stream(send: Send, session: str) -> None:
    headers = {**_STREAM_HEADERS, "mcp-session-id": session}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": 200, "headers": raw})


async def _send_part(send: Send, content: bytes) -> None:
    await send({"type": "http.response.body", "body": content, "more_body": True})


async def _wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _outcome(answering: asyncio.Task[bytes], request_id: RequestId) -> bytes:
    """Return the event of a response, or of the error that prevented it."""
    error = answering.exception()
    if error is None:
        return answering.result()
    if not isinstance(error, PerstackError):
        raise error
    told = {"jsonrpc": "2.0", "id": request_id, "error": {"code": -32603, "message": error.text_for(mcp_phrase)}}
    return b"event: message\r\ndata: %b\r\n\r\n" % json.dumps(told).encode()


def _unresumed(scope: Scope) -> Scope:
    """Return a request without `Last-Event-ID`: what the application streamed is recorded here alone."""
    headers = [(name, value) for name, value in scope.get("headers", ()) if name != b"last-event-id"]
    return {**scope, "headers": headers}


def _request_ids(body: bytes) -> tuple[str, ...]:
    """Return the id of a request as the application compares it; none for other messages."""
    message: object = json.loads(body) if body.strip() else None
    fields = cast("dict[str, object]", message) if isinstance(message, dict) else {}
    request_id = fields.get("id")
    return (str(request_id),) if "method" in fields and isinstance(request_id, int | str | float) else ()


def _call_in(body: bytes) -> RequestId | None:
    """Return the id of a request that calls a tool; None for other messages."""
    message: object = json.loads(body)
    if not isinstance(message, dict):
        return None
    fields = cast("dict[str, object]", message)
    request_id = fields.get("id")
    return request_id if fields.get("method") == "tools/call" and isinstance(request_id, int | str) else None


def _batch_of(body: bytes, headers: Headers) -> list[bytes] | str | None:
    """Return the messages of a batch; None for other bodies and in revisions without batches, or why it is refused."""
    if not body.lstrip().startswith(b"[") or headers.get("mcp-protocol-version", _BATCHES_IN) != _BATCHES_IN:
        return None
    messages = cast("list[object]", json.loads(body))
    if not 0 < len(messages) <= _MAX_BATCH:
        return f"a batch has between 1 and {_MAX_BATCH} messages, not {len(messages)}"
    if any(isinstance(one, dict) and cast("dict[str, object]", one).get("method") == "initialize" for one in messages):
        return "initialize is not part of a batch"
    return [json.dumps(one).encode() for one in messages]


def _refusal(message: str) -> Response:
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": message}}, 400)
