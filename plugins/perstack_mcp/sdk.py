"""Private names of the SDKs that we cannot do without. All uses are in this module, under names of our own.

`tests/plugins/mcp/test_sdk.py` fails when one of them has changed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, cast

import httpcore2
import httpx2
from mcp.client.auth import OAuthClientProvider

from perstack_mcp.server_interface import Unauthorized

if TYPE_CHECKING:
    from httpx2._client import UseClientDefault as UseClientDefault
    from httpx2._types import AuthTypes as AuthTypes
    from mcp.client._transport import ReadStream as ReadStream
    from mcp.client._transport import TransportStreams as TransportStreams
    from mcp.client._transport import WriteStream as WriteStream


Flow = AsyncGenerator[httpx2.Request, httpx2.Response]


class BackendTransport(httpx2.AsyncHTTPTransport):
    """HTTP transport that connects through a network backend of ours and ignores proxies of the environment."""

    def __init__(self, network: httpcore2.AsyncNetworkBackend) -> None:
        context = httpx2.create_ssl_context(trust_env=False)  # once: it loads all certificate authorities
        super().__init__(verify=context, trust_env=False)
        self._pool = httpcore2.AsyncConnectionPool(ssl_context=context, network_backend=network)


_MAX_ANSWER_BYTES = 1 << 20  # bytes of one answer of an authorization server, or of a refusal


class BoundedBody(httpx2.AsyncByteStream):
    """Body of a response, with a limit."""

    def __init__(self, response: httpx2.Response) -> None:
        """Take over the body of a response, which must not be compressed: it would grow while it is read."""
        response.headers.pop("content-encoding", None)
        self._inner = cast("httpx2.AsyncByteStream", response.stream)
        self._host = response.request.url.host

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the body. Raises Unauthorized when it is too large."""
        size = 0
        async for part in self._inner:
            size += len(part)
            if size > _MAX_ANSWER_BYTES:
                raise Unauthorized(f"the answer of {self._host} to a login is larger than {_MAX_ANSWER_BYTES} bytes")
            yield part

    async def aclose(self) -> None:
        await self._inner.aclose()


class OAuthFlow(OAuthClientProvider):
    """OAuth flow of the SDK whose steps can be overridden."""

    def flow(self, request: httpx2.Request) -> Flow:
        """Yield all requests needed for one request, including that one."""
        return super()._auth_flow(request)

    def prepare(self, request: httpx2.Request, *, is_own: bool) -> None:
        """Complete a request before it is sent: with `is_own` the authorized one, else one of the flow."""

    async def take(self, response: httpx2.Response, *, is_own: bool) -> httpx2.Response | None:
        """Return the response for the flow; None to send the request once more."""
        return response

    async def load(self) -> None:
        """Load the known client before the first request."""
        await super()._initialize()

    def sign(self, request: httpx2.Request) -> None:
        """Add the token, if there is one."""
        self._add_auth_header(request)

    def choose_server(self, advertised: list[str]) -> str:
        """Choose one of the authorization servers that a server advertises."""
        return super()._select_authorization_server(advertised)

    def issuer_to_expect(self) -> str:
        """Return the issuer that the authorization server must have."""
        return super()._expected_issuer()

    async def take_token(self, response: httpx2.Response) -> None:
        """Read the response to a token request."""
        await super()._handle_token_response(response)

    async def authorization(self) -> httpx2.Request:
        """Return the token request, after the steps that the grant needs before it."""
        return await super()._perform_authorization()

    async def renewal(self) -> httpx2.Request:
        """Return the request that refreshes the token."""
        return await self._refresh_token()

    async def take_renewed(self, response: httpx2.Response) -> bool:
        """Read the response to a refresh. Return False if there is no new token."""
        return await self._handle_refresh_response(response)

    async def async_auth_flow(self, request: httpx2.Request) -> Flow:
        """Yield all requests, redirected ones too. What is read here, and not by the session, is bounded."""
        flow = super().async_auth_flow(request)
        try:
            outgoing = await anext(flow)
            while True:
                is_own, taken = outgoing is request, None
                while taken is None:
                    if not is_own:
                        outgoing.headers["Accept-Encoding"] = "identity"
                    self.prepare(outgoing, is_own=is_own)
                    response = yield outgoing
                    if not is_own or response.status_code in (401, 403) or response.is_redirect:
                        response.stream = BoundedBody(response)
                    taken = await self.take(response, is_own=is_own)
                outgoing = await flow.asend(taken)
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()

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
