"""HTTP transports of the SDK on connections to checked addresses.

A name is resolved once, every address is checked, and a checked address is connected to, so a second DNS answer or a
redirect is checked too. The certificate is still verified against the name. Proxies of the environment would resolve
names themselves, so none is used unless local addresses are allowed.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import httpcore2
import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import INVALID_REQUEST

from perstack.core.base.public_addresses import is_public
from perstack.errors import SkillError
from perstack_mcp.sdk import BackendTransport
from perstack_mcp.server_interface import Unauthorized, describe

if TYPE_CHECKING:
    from pydantic import JsonValue

    from perstack_mcp.sdk import AuthTypes, TransportStreams, UseClientDefault


# Rules for the addresses of remote servers.


def refuse_private(text: str, host: str) -> None:
    """Raise SkillError if an address to which a host name resolves is not public."""
    if not is_public(text):
        shown = text if text == host else f"{host} ({text})"
        raise SkillError(f"{shown} is a private or local address: set `allowLocalNetwork = true` to connect to it")


async def public_addresses(host: str, port: int) -> list[str]:
    """Return the addresses of a host. Raises SkillError if any is not public, since any of them may be used."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise SkillError(f"{host} has no address ({error}): correct `endpoint`, or see to the network") from error
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    for address in addresses:
        refuse_private(address, host)
    return addresses


_CONNECT_TIMEOUT_S = 30.0
_MAX_EVENT_BYTES = 64 << 20

_READ_TIMEOUT_S = 24 * 3600.0  # seconds; the session limits how long a call may be silent


@asynccontextmanager
async def connect_streamable(
    endpoint: str, headers: Mapping[str, str], may_be_local: bool, auth: httpx2.Auth
) -> AsyncGenerator[TransportStreams]:
    """Connect by streamable HTTP. Later an unauthorized request fails alone, without ending the connection."""
    client = _HttpClient(_transport(may_be_local), dict(headers), httpx2.Timeout(_CONNECT_TIMEOUT_S, read=None), auth)
    async with (
        client,
        streamable_http_client(endpoint, http_client=client, max_sse_event_size=_MAX_EVENT_BYTES) as streams,
    ):
        yield streams


@asynccontextmanager
async def sse(
    endpoint: str, headers: Mapping[str, str], may_be_local: bool, auth: httpx2.Auth
) -> AsyncGenerator[TransportStreams]:
    """Connect by HTTP with server-sent events (revision 2024-11-05)."""

    def client(
        headers: dict[str, str] | None = None, timeout: httpx2.Timeout | None = None, auth: httpx2.Auth | None = None
    ) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(headers=headers, timeout=timeout, auth=auth, transport=_transport(may_be_local))

    async with sse_client(
        endpoint,
        dict(headers),
        timeout=_CONNECT_TIMEOUT_S,
        sse_read_timeout=_READ_TIMEOUT_S,
        httpx_client_factory=client,
        auth=auth,
    ) as streams:
        yield streams


def _transport(may_be_local: bool) -> httpx2.AsyncBaseTransport | None:
    return None if may_be_local else _CheckedTransport()


class _HttpClient(httpx2.AsyncClient):
    def __init__(
        self,
        transport: httpx2.AsyncBaseTransport | None,
        headers: dict[str, str],
        timeout: httpx2.Timeout,
        auth: httpx2.Auth,
    ) -> None:
        super().__init__(headers=headers, timeout=timeout, auth=auth, transport=transport)

    async def send(
        self,
        request: httpx2.Request,
        *,
        stream: bool = False,
        auth: AuthTypes | UseClientDefault | None = httpx2.USE_CLIENT_DEFAULT,
        follow_redirects: bool | UseClientDefault = httpx2.USE_CLIENT_DEFAULT,
    ) -> httpx2.Response:
        try:
            return await super().send(request, stream=stream, auth=auth, follow_redirects=follow_redirects)
        except (Unauthorized, httpx2.TransportError) as error:
            refusal = error if isinstance(error, Unauthorized) else _unreachable_server(error, request)
            if refusal is None:
                raise
            if _connects(request):
                raise refusal from error
            # an exception would end the connection with all its calls
            body = {"jsonrpc": "2.0", "id": None, "error": {"code": INVALID_REQUEST, "message": str(refusal)}}
            return httpx2.Response(401, json=body, request=request)


def _unreachable_server(error: httpx2.TransportError, request: httpx2.Request) -> Unauthorized | None:
    if error.request is request:
        return None
    return Unauthorized(f"the authorization server at {error.request.url.host} does not answer: {describe(error)}")


def _connects(request: httpx2.Request) -> bool:
    message = cast("JsonValue", json.loads(request.content or b"null"))
    return isinstance(message, dict) and message.get("method") in ("server/discover", "initialize")


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
        error: Exception = SkillError(f"{host} has no address")
        for address in await public_addresses(host, port):
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as failure:
                error = failure
        raise error
