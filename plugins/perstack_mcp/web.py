"""The two HTTP transports of the SDK, on connections to addresses that have been checked.

A name is resolved once, each of its addresses is checked, and a checked address is what is connected to: a second
answer of the DNS, or a redirect, finds the same check before it. The certificate is still checked against the name. A
proxy of the environment would resolve names itself, so none is used, unless local addresses are allowed anyway.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, cast

import httpcore2
import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from perstack.errors import SkillError
from perstack_mcp.addresses import public_addresses

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

_CONNECT = 30.0
_LARGEST_EVENT = 64 << 20

_NO_READ_LIMIT = 24 * 3600.0
"""Seconds: how long a call may be silent is the session's business."""


@asynccontextmanager
async def streamable(endpoint: str, headers: Mapping[str, str], may_be_local: bool) -> AsyncGenerator[TransportStreams]:
    """Streamable HTTP."""
    client = _client(may_be_local, dict(headers), httpx2.Timeout(_CONNECT, read=None))
    async with (
        client,
        streamable_http_client(endpoint, http_client=client, max_sse_event_size=_LARGEST_EVENT) as streams,
    ):
        yield streams


@asynccontextmanager
async def sse(endpoint: str, headers: Mapping[str, str], may_be_local: bool) -> AsyncGenerator[TransportStreams]:
    """HTTP with server-sent events, of the revision 2024-11-05."""
    factory = partial(_client, may_be_local)
    async with sse_client(
        endpoint, dict(headers), timeout=_CONNECT, sse_read_timeout=_NO_READ_LIMIT, httpx_client_factory=factory
    ) as streams:
        yield streams


def _client(
    may_be_local: bool,
    headers: dict[str, str] | None = None,
    timeout: httpx2.Timeout | None = None,
    auth: httpx2.Auth | None = None,
) -> httpx2.AsyncClient:
    transport = None if may_be_local else _CheckedTransport()
    return httpx2.AsyncClient(headers=headers, timeout=timeout, auth=auth, transport=transport)


class _CheckedTransport(httpx2.AsyncHTTPTransport):
    def __init__(self) -> None:
        super().__init__(trust_env=False)
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=httpx2.create_ssl_context(trust_env=False), network_backend=_CheckedNetwork()
        )


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
