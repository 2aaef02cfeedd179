"""Authorization of HTTP requests by OAuth, on the SDK's client, which speaks the protocol.

What the modules of this package add: logins that outlive the process, renewed under a lock (`stored_login`); an
authorization server that cannot be changed under a client's secret, and errors that hold no token (`token_flow`); and
no lock around a request that is under way, for the SDK's own would let calls wait for one another.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable

import httpx2
from mcp.client.auth.utils import extract_field_from_www_auth
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

from perstack_mcp.failures import Unauthorized


def _is_not_logged(record: logging.LogRecord) -> bool:
    return False


# it logs what it also raises, with words that may hold a token
logging.getLogger("mcp.client.auth.oauth2").addFilter(_is_not_logged)

PATIENCE = 30.0
"""Seconds that an authorization server may be silent."""

Flow = AsyncGenerator[httpx2.Request, httpx2.Response]


class NothingKept:
    """The SDK's storage, where a flow keeps what it has itself."""

    def __init__(self, on_tokens: Callable[[], Awaitable[None]] | None = None) -> None:
        self._on_tokens = on_tokens

    async def get_tokens(self) -> OAuthToken | None:
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        if self._on_tokens is not None:
            await self._on_tokens()

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        pass


class GivenHeaders(httpx2.Auth):
    """The definition's own `Authorization` and nothing else."""

    async def async_auth_flow(self, request: httpx2.Request) -> Flow:
        """Raises Unauthorized for a server that does not accept it."""
        response = yield request
        if response.status_code == 401:
            raise Unauthorized("the server answers 401: it does not accept the `Authorization` in `headers`")


def bounded(request: httpx2.Request) -> httpx2.Request:
    """The same request, with a limit: those that the SDK makes on the way to a token have none."""
    request.extensions.setdefault("timeout", httpx2.Timeout(PATIENCE).as_dict())
    return request


def is_step_up(response: httpx2.Response) -> bool:
    """RFC 6750, section 3.1."""
    return response.status_code == 403 and extract_field_from_www_auth(response, "error") == "insufficient_scope"
