"""What the SDKs keep to themselves and cannot be done without: here it gets names of ours, and nowhere else.

`tests/plugins/mcp/test_sdk.py` says so when one of them has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpcore2
import httpx2
from mcp.client.auth import OAuthClientProvider

from perstack_mcp.oauth import Flow

if TYPE_CHECKING:
    from httpx2._client import UseClientDefault as UseClientDefault
    from httpx2._types import AuthTypes as AuthTypes
    from mcp.client._transport import ReadStream as ReadStream
    from mcp.client._transport import TransportStreams as TransportStreams


class TransportOn(httpx2.AsyncHTTPTransport):
    """Connects through a network of ours, and never through a proxy of the environment."""

    def __init__(self, network: httpcore2.AsyncNetworkBackend) -> None:
        context = httpx2.create_ssl_context(trust_env=False)  # once: it reads all authorities
        super().__init__(verify=context, trust_env=False)
        self._pool = httpcore2.AsyncConnectionPool(ssl_context=context, network_backend=network)


class OAuthFlow(OAuthClientProvider):
    """The SDK's flow, of which parts can be replaced."""

    def flow(self, request: httpx2.Request) -> Flow:
        """All that is sent for one request, the request among it."""
        return super()._auth_flow(request)

    async def load(self) -> None:
        """What is known of the client before the first request."""
        await super()._initialize()

    def sign(self, request: httpx2.Request) -> None:
        """Add the token, if there is one."""
        self._add_auth_header(request)

    def choose_server(self, advertised: list[str]) -> str:
        """Which of the authorization servers that a server names is used."""
        return super()._select_authorization_server(advertised)

    def issuer_to_expect(self) -> str:
        """What the authorization server has to call itself."""
        return super()._expected_issuer()

    async def take_token(self, response: httpx2.Response) -> None:
        """The answer to a request for a token."""
        await super()._handle_token_response(response)

    async def authorization(self) -> httpx2.Request:
        """The request for a token, after whatever the grant needs for it."""
        return await super()._perform_authorization()

    async def renewal(self) -> httpx2.Request:
        """The request for a new token in place of the last."""
        return await self._refresh_token()

    async def take_renewed(self, response: httpx2.Response) -> bool:
        """The answer to that; whether there is a new token."""
        return await self._handle_refresh_response(response)

    def _auth_flow(self, request: httpx2.Request) -> Flow:
        return self.flow(request)

    async def _initialize(self) -> None:
        await self.load()
        self._initialized = True

    def _select_authorization_server(self, advertised: list[str]) -> str:
        return self.choose_server(advertised)

    def _expected_issuer(self) -> str:
        return self.issuer_to_expect()

    async def _handle_token_response(self, response: httpx2.Response) -> None:
        await self.take_token(response)

    async def _perform_authorization(self) -> httpx2.Request:
        return await self.authorization()
