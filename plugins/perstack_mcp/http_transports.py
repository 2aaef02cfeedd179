"""HTTP transports of the SDK on connections to checked addresses.

A name is resolved once, every address is checked, and the connection goes to a checked address. So a second DNS answer
or a redirect is checked too. The certificate is still verified against the name. Proxies of the environment would
resolve names themselves, so none is used unless local addresses are allowed.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, cast

import httpcore2
import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import INVALID_REQUEST

from perstack.core.definitions.public_addresses import is_public
from perstack.dataclass import dataclass
from perstack.errors import SkillError
from perstack_mcp.http_bodies import SESSION_ID, read_refusal, refusal, repaired_answer, repaired_stream
from perstack_mcp.sdk import BackendTransport
from perstack_mcp.server_interface import BROKEN, LOST_SESSION, NOT_SENT, ShownOnce, Unauthorized, describe

if TYPE_CHECKING:
    from pydantic import JsonValue

    from perstack.core.base.records import JsonObject
    from perstack_mcp.sdk import AuthTypes, TransportStreams, UseClientDefault


# Rules for the addresses of remote servers.


def refuse_private(text: str, host: str) -> None:
    """Raise SkillError if an address to which a host name resolves is not public."""
    if not is_public(text):
        display_address = text if text == host else f"{host} ({text})"
        raise SkillError(
            f"{display_address} is a private or local address: set `allowLocalNetwork = true` to connect to it"
        )


async def public_addresses(host: str, port: int) -> list[str]:
    """Return the addresses of a host. Raises SkillError if any is not public, since any of them may be used."""
    loop = asyncio.get_running_loop()
    try:
        all_addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise SkillError(f"{host} cannot be resolved ({error}): correct `endpoint`, or check the network") from error
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in all_addresses))
    for address in addresses:
        refuse_private(address, host)
    return addresses


_CONNECT_TIMEOUT_S = 30.0
_MAX_EVENT_BYTES = 64 << 20

_READ_TIMEOUT_S = 24 * 3600.0  # seconds; how long a call may be silent is limited by the session


@asynccontextmanager
async def connect_streamable(
    endpoint: str, headers: Mapping[str, str], may_be_local: bool, auth: httpx2.Auth, show: Callable[[str], None]
) -> AsyncGenerator[TransportStreams]:
    """Connect by streamable HTTP.

    A later request that is refused or cannot be sent fails without ending the connection.
    """
    timeout = httpx2.Timeout(_CONNECT_TIMEOUT_S, read=None)
    client = _HttpClient(transport(may_be_local), dict(headers), timeout, auth, ShownOnce(show))
    async with (
        client,
        streamable_http_client(endpoint, http_client=client, max_sse_event_size=_MAX_EVENT_BYTES) as streams,
    ):
        yield streams


@asynccontextmanager
async def sse(
    endpoint: str, headers: Mapping[str, str], may_be_local: bool, auth: httpx2.Auth, show: Callable[[str], None]
) -> AsyncGenerator[TransportStreams]:
    """Connect by HTTP with server-sent events (revision 2024-11-05)."""

    def client(
        headers: dict[str, str] | None = None, timeout: httpx2.Timeout | None = None, auth: httpx2.Auth | None = None
    ) -> httpx2.AsyncClient:
        events_client = _EventsClient(headers=headers, timeout=timeout, auth=auth, transport=transport(may_be_local))
        events_client.notes_output = ShownOnce(show)
        return events_client

    async with sse_client(
        endpoint,
        dict(headers),
        timeout=_CONNECT_TIMEOUT_S,
        sse_read_timeout=_READ_TIMEOUT_S,
        httpx_client_factory=client,
        auth=auth,
    ) as streams:
        yield streams


def transport(may_be_local: bool) -> httpx2.AsyncBaseTransport | None:
    """Return the transport that checks addresses; None for the library's own, if local addresses are allowed."""
    return None if may_be_local else _CheckedTransport()


class _EventsClient(httpx2.AsyncClient):
    """HTTP client whose streams of events are repaired."""

    notes_output: ShownOnce

    async def send(
        self,
        request: httpx2.Request,
        *,
        stream: bool = False,
        auth: AuthTypes | UseClientDefault | None = httpx2.USE_CLIENT_DEFAULT,
        follow_redirects: bool | UseClientDefault = httpx2.USE_CLIENT_DEFAULT,
    ) -> httpx2.Response:
        response = await super().send(request, stream=stream, auth=auth, follow_redirects=follow_redirects)
        return (
            repaired_stream(response, self.notes_output)
            if request.method == "GET" and response.is_success
            else response
        )


class _HttpClient(httpx2.AsyncClient):
    """HTTP client of one connection. It keeps the session's id, and turns failed requests into error responses.

    An exception would end the connection with all its calls, so after connecting each failure becomes the error
    response of its own request.
    """

    def __init__(
        self,
        transport: httpx2.AsyncBaseTransport | None,
        headers: dict[str, str],
        timeout: httpx2.Timeout,
        auth: httpx2.Auth,
        notes_output: ShownOnce,
    ) -> None:
        super().__init__(headers=headers, timeout=timeout, auth=auth, transport=transport)
        self._notes_output = notes_output
        self._session: str | None = None  # id of the current session, if the server gives one
        self._is_connected = False  # True once a greeting was answered
        self._has_had_stream = False  # True once a stream of the server's own messages has been open

    async def send(
        self,
        request: httpx2.Request,
        *,
        stream: bool = False,
        auth: AuthTypes | UseClientDefault | None = httpx2.USE_CLIENT_DEFAULT,
        follow_redirects: bool | UseClientDefault = httpx2.USE_CLIENT_DEFAULT,
    ) -> httpx2.Response:
        """Send a request, and replace a failure or a body that the SDK would not accept."""
        message = _SentMessage.of(request)
        self._set_session_header(request, message)
        try:
            response = await self._deliver(
                request, message, partial(super().send, stream=stream, auth=auth, follow_redirects=follow_redirects)
            )
        except (Unauthorized, httpx2.TransportError) as error:
            return self._failure_response(request, message, error)
        if request.method == "GET":
            return self._repair_stream(response)
        if request.method != "POST":
            return response
        if response.is_success:
            return await self._repair_answer(response, message)
        return await self._refusal_response(response, message) if response.is_error else response

    def _set_session_header(self, request: httpx2.Request, message: _SentMessage) -> None:
        """Set the current session's id, even in a request made before the session began; a greeting gets none."""
        self._is_connected = self._is_connected or (message.is_message and not message.is_greeting)
        if message.is_greeting:
            request.headers.pop(SESSION_ID, None)
            if message.method == "initialize":
                request.headers.pop(_REVISION, None)
        elif SESSION_ID in request.headers and self._session is not None:
            request.headers[SESSION_ID] = self._session
        elif self._session is None:
            request.headers.pop(SESSION_ID, None)

    async def _deliver(
        self,
        request: httpx2.Request,
        message: _SentMessage,
        send: Callable[[httpx2.Request], Awaitable[httpx2.Response]],
    ) -> httpx2.Response:
        """Send a request. After connecting, wait for a server that is restarting: it has not received the request."""
        for wait in _CONNECT_WAITS_S if self._is_connected and message.is_message else ():
            try:
                return await send(request)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                if error.request is not request:
                    raise
                await asyncio.sleep(wait)
        return await send(request)

    def _failure_response(
        self, request: httpx2.Request, message: _SentMessage, error: Unauthorized | httpx2.TransportError
    ) -> httpx2.Response:
        """Return the error response for a request that could not be sent. Raises `error` before connecting."""
        refusal = error if isinstance(error, Unauthorized) else _unreachable_server(error, request)
        if refusal is not None:
            if message.is_greeting and not self._is_connected:
                raise refusal from error
            return _error_response(request, 401, message, str(refusal))
        if not self._is_connected or not message.is_message:
            raise error
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            host = request.url.netloc.decode()
            return _error_response(
                request, 503, message, f"there is no answer from {host} ({describe(error)})", NOT_SENT
            )
        return _error_response(request, 502, message, f"the connection broke ({describe(error)})", BROKEN)

    def _repair_stream(self, response: httpx2.Response) -> httpx2.Response:
        """Return the repaired stream of the server's own messages, or a response in its place."""
        if response.is_success:
            self._has_had_stream = True
            return repaired_stream(response, self._notes_output)
        if response.status_code == _NOT_FOUND and self._has_had_stream:
            # The session may be lost, which a request for the list of tools would show: pretend that the list changed.
            # Only once, since servers without such a stream also reply 404.
            self._has_had_stream = False
            notification: JsonObject = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
            return httpx2.Response(
                200,
                headers=_EVENT_HEADERS,
                content=b"data: " + json.dumps(notification).encode() + b"\n\n",
                request=response.request,
            )
        return response

    async def _repair_answer(self, response: httpx2.Response, message: _SentMessage) -> httpx2.Response:
        if message.method == "initialize":
            self._session = response.headers.get(SESSION_ID)
        if message.request_id is None or response.status_code == _ACCEPTED:
            return response
        return await repaired_answer(response, message.request_id, self._notes_output)

    async def _refusal_response(self, response: httpx2.Response, message: _SentMessage) -> httpx2.Response:
        if message.request_id is None:
            return response
        text = await read_refusal(response)
        await response.aclose()
        if (
            SESSION_ID in response.request.headers
            and not message.is_greeting
            and _is_lost_session(response.status_code, text)
        ):
            return _error_response(
                response.request, 404, message, "the server no longer knows the session", LOST_SESSION
            )
        return refusal(response, text, message.request_id, self._notes_output)


_ACCEPTED, _BAD_REQUEST, _NOT_FOUND = 202, 400, 404

_REVISION = "mcp-protocol-version"
_EVENT_HEADERS = {"content-type": "text/event-stream"}

_CONNECT_WAITS_S = (0.2, 0.5, 1.0, 2.0)  # waits for a restarting server

_LOST_SESSION_TEXT = re.compile(
    rb"(no valid|invalid|missing|unknown|expired|unrecognized)\s+(mcp[- ])?session([- ]?id)?\b"
    rb"|\bsession([- ]?id)?\s+(was\s+|is\s+|has\s+)?(not found|not valid|expired|terminated|invalid|unknown|closed)"
    rb"|mcp-session-id header is required|server not initialized",
    re.IGNORECASE,
)


def _is_lost_session(status: int, text: bytes) -> bool:
    """Return whether a server refused a request because its session is lost, so that nothing was executed.

    In the protocol status 404 says so, with any text; status 400 says so with the words of known servers.
    """
    if status == _NOT_FOUND:
        return True
    return status == _BAD_REQUEST and _LOST_SESSION_TEXT.search(text) is not None


@dataclass(frozen=True, slots=True)
class _SentMessage:
    """Message in a request to the server's address."""

    is_message: bool = False
    method: str = ""
    request_id: int | str | None = None

    @classmethod
    def of(cls, request: httpx2.Request) -> _SentMessage:
        """Read the message of a POST."""
        message = cast("JsonValue", json.loads(request.content or b"null")) if request.method == "POST" else None
        if not isinstance(message, dict):
            return cls()
        method, identity = message.get("method"), message.get("id")
        if not isinstance(method, str):
            return cls(is_message=True)
        return cls(True, method, identity if isinstance(identity, int | str) else None)

    @property
    def is_greeting(self) -> bool:
        """True for a message that begins a connection or a session."""
        return self.method in ("server/discover", "initialize")


def _error_response(
    request: httpx2.Request, status: int, sent: _SentMessage, message: str, data: str = ""
) -> httpx2.Response:
    """Return an error response of our own instead of the server's answer."""
    error: JsonObject = {"code": INVALID_REQUEST, "message": message, **({"data": data} if data else {})}
    return httpx2.Response(status, json={"jsonrpc": "2.0", "id": sent.request_id, "error": error}, request=request)


def _unreachable_server(error: httpx2.TransportError, request: httpx2.Request) -> Unauthorized | None:
    if error.request is request:
        return None
    return Unauthorized(f"the authorization server at {error.request.url.host} does not answer: {describe(error)}")


class _CheckedTransport(BackendTransport):
    def __init__(self) -> None:
        super().__init__(_CheckedNetwork())

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.scheme != "https":
            place = f"{request.url.scheme}://{request.url.host}"
            raise SkillError(f"{place} is not an https:// address: `allowLocalNetwork = true` allows others")
        return await super().handle_async_request(request)


class _CheckedNetwork(httpcore2.AsyncNetworkBackend):
    def __init__(self) -> None:
        self._inner = cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        error: Exception = SkillError(f"{host} has no address: correct `endpoint`, or check the network")
        for address in await public_addresses(host, port):
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as failure:
                error = failure
        raise error
