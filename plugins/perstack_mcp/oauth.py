"""OAuth authorization of HTTP requests, with tokens from the SDK's providers.

A provider of the SDK holds its lock while the request itself runs, so calls would wait for one another, and it treats
any stored token as valid. So the two kinds of authorization here send requests themselves and use a provider only to
get a token: `TokenFlow` runs its flow until it would send the request with a new token.

- `ProviderLogin` has a provider for the whole connection, and keeps its tokens in memory.
- `stored_login.StoredLogin` has the tokens of a person's login, which outlive the process. It renews them under a lock
  of all processes, and never asks for a login.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Literal, cast
from urllib.parse import parse_qsl

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthRegistrationError, OAuthTokenError
from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider
from mcp.client.auth.oauth2 import OAuthContext
from mcp.client.auth.utils import (
    extract_field_from_www_auth,
    handle_auth_metadata_response,
    handle_protected_resource_response,
    issuers_match,
    union_scopes,
)
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
)
from mcp.shared.auth_utils import calculate_token_expiry
from pydantic import BaseModel, PrivateAttr

from perstack.core.definitions.skills import OAuth
from perstack.errors import SkillError
from perstack_mcp.server_interface import Unauthorized


def _is_not_logged(record: logging.LogRecord) -> bool:
    return False


# The SDK logs the errors that it raises, and their text may contain a token.
logging.getLogger("mcp.client.auth.oauth2").addFilter(_is_not_logged)

AUTHORIZATION_TIMEOUT_S = 30.0  # maximum seconds for an answer of an authorization server

Flow = AsyncGenerator[httpx2.Request, httpx2.Response]
Provider = OAuthClientProvider | IdentityAssertionOAuthProvider


class FixedAuthorization(httpx2.Auth):
    """Authorization by only the `Authorization` header of the definition."""

    async def async_auth_flow(self, request: httpx2.Request) -> Flow:
        """Send the request. Raises Unauthorized if the server answers 401."""
        response = yield request
        if response.status_code == 401:
            raise Unauthorized("the server answers 401: it does not accept the `Authorization` in `headers`")


# Answers that are read here, not by the session, are limited in size.

_MAX_ANSWER_BYTES = 1 << 20  # maximum bytes of an authorization server's answer, or of a refusal


class _BoundedBody(httpx2.AsyncByteStream):
    def __init__(self, response: httpx2.Response) -> None:
        self._inner = cast("httpx2.AsyncByteStream", response.stream)
        self._host = response.request.url.host

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._inner:
            size += len(part)
            if size > _MAX_ANSWER_BYTES:
                raise Unauthorized(f"the answer of {self._host} to a login is larger than {_MAX_ANSWER_BYTES} bytes")
            yield part

    async def aclose(self) -> None:
        await self._inner.aclose()


def limit_body(response: httpx2.Response) -> httpx2.Response:
    """Limit the body of a response, whose reader then raises Unauthorized.

    The body is read as sent: a compressed body would grow while it is read.
    """
    response.headers.pop("content-encoding", None)
    response.stream = _BoundedBody(response)
    return response


def without_compression(request: httpx2.Request) -> httpx2.Request:
    """Set a timeout and refuse compressed answers, which the SDK's token requests do not."""
    request.headers["Accept-Encoding"] = "identity"
    request.extensions.setdefault("timeout", httpx2.Timeout(AUTHORIZATION_TIMEOUT_S).as_dict())
    return request


def bounded_refusal(response: httpx2.Response) -> httpx2.Response:
    """Limit the body of a response that the session does not read."""
    is_read_here = response.status_code in (401, 403) or response.is_redirect
    return limit_body(response) if is_read_here else response


def is_step_up(response: httpx2.Response) -> bool:
    """Return whether the server asks for more scopes (RFC 6750, section 3.1)."""
    return response.status_code == 403 and extract_field_from_www_auth(response, "error") == "insufficient_scope"


# Input of the SDK: tokens, the client, and the scopes to request.


class Tokens:
    """Token storage in memory (`mcp.client.auth.TokenStorage`)."""

    def __init__(self, client: OAuthClientInformationFull | None = None) -> None:
        """Begin without tokens. `client`: the registered client, or None before a registration."""
        self._client = client
        self.current: OAuthToken | None = None
        self.expires_at: float | None = None  # seconds since 1970; None without an expiry

    @property
    def valid_token(self) -> str | None:
        """The access token; None without one, or if it has expired."""
        is_expired = self.expires_at is not None and time.time() > self.expires_at
        return None if self.current is None or is_expired else self.current.access_token

    async def get_tokens(self) -> OAuthToken | None:
        return self.current

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.current, self.expires_at = tokens, calculate_token_expiry(tokens.expires_in)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the client that the definition names."""
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Store nothing: the SDK keeps the registered client as long as the login runs."""


class ClientMetadata(OAuthClientMetadata):
    """Client metadata with fixed scopes: the definition's scopes replace what a server suggests."""

    _scopes: Sequence[str] = PrivateAttr(())
    _extra: str | None = PrivateAttr(None)

    @classmethod
    def of(cls, settings: OAuth, extra: str | None = None, **fields: object) -> ClientMetadata:
        """Create the metadata; `extra` are scopes to request in addition."""
        metadata = cls.model_validate(fields)
        metadata._scopes, metadata._extra = settings.scopes, extra
        return metadata

    def __setattr__(self, name: str, value: object) -> None:
        """Replace a suggested scope by the definition's scopes."""
        if name == "scope":
            suggested = value if isinstance(value, str) else None
            value = union_scopes(" ".join(self._scopes) or suggested, self._extra)
        super().__setattr__(name, value)


class TokenFlow:
    """Flow of a provider that gets a token for one request, without that request."""

    def __init__(
        self, provider: Provider, tokens: Tokens, request: httpx2.Request, refusal: httpx2.Response | None = None
    ) -> None:
        """Prepare the flow; `refusal` is the answer to the request for which a login begins, None only to renew."""
        self._flow = provider.async_auth_flow(request)
        self._tokens = tokens
        self._tokens_before = tokens.current
        self._request = request
        self._refusal = refusal

    async def next_request(self, response: httpx2.Response | None) -> httpx2.Request | None:
        """Return the request that follows a response; None at the end. Raises SkillError."""
        try:
            outgoing = await (anext(self._flow) if response is None else self._flow.asend(response))
            while (
                outgoing is self._request and self._refusal is not None and self._tokens.current is self._tokens_before
            ):
                response, self._refusal = self._refusal, None
                outgoing = await self._flow.asend(response)
        except StopAsyncIteration:
            return None
        except (OAuthFlowError, ValueError) as error:
            raise SkillError(await _describe_error(error, response)) from None
        return None if outgoing is self._request else without_compression(outgoing)

    async def aclose(self) -> None:
        await self._flow.aclose()


class ProviderLogin(httpx2.Auth):
    """Authorization by a provider, whose tokens are kept in memory."""

    def __init__(self, settings: OAuth, provider: Provider, tokens: Tokens) -> None:
        """Authorize with the provider, which stores its tokens in `tokens`."""
        self._settings = settings
        self._provider = provider
        self._tokens = tokens
        self._lock = asyncio.Lock()

    async def async_auth_flow(self, request: httpx2.Request) -> Flow:
        """Send a request; if it is refused, log in and send it again. Raises SkillError."""
        used_token = self._tokens.valid_token
        response = bounded_refusal((yield with_token(request, used_token)))
        if response.status_code != 401 and not is_step_up(response):
            return
        async with self._lock:
            if self._tokens.valid_token == used_token:  # no other request has received a new token since
                async with aclosing(TokenFlow(self._provider, self._tokens, request, response)) as flow:
                    answer: httpx2.Response | None = None
                    while (outgoing := await flow.next_request(answer)) is not None:
                        if outgoing.method == "POST":
                            self.check_issuer()
                        answer = await self._adapt_metadata(limit_body((yield outgoing)))
                    await self.keep()
        bounded_refusal((yield with_token(request, self._tokens.valid_token)))

    async def keep(self) -> None:
        """Store new tokens. Here nothing is stored: they end with the connection."""

    def check_issuer(self) -> None:
        """Raise SkillError if the definition names an authorization server and the flow has found another one."""
        context, issuer = self._context, self._settings.issuer
        if context is None or issuer is None:
            return
        metadata = context.oauth_metadata
        if metadata is None or not issuers_match(str(metadata.issuer), issuer):
            raise SkillError(_wrong_issuer_text(str(metadata.issuer) if metadata else context.server_url, issuer))

    @property
    def _context(self) -> OAuthContext | None:
        """The state of the flow; None for a provider that is given its server and need not find it."""
        return self._provider.context if isinstance(self._provider, OAuthClientProvider) else None

    async def _adapt_metadata(self, response: httpx2.Response) -> httpx2.Response:
        """Adapt a response for the provider, which takes the first listed server and one method to send a secret."""
        context, settings = self._context, self._settings
        if context is None or response.request.method != "GET":
            return response
        client = context.client_info
        if client is not None and client.client_secret and client.client_id == settings.client_id:
            _, server = await handle_auth_metadata_response(response)
            if server is not None:
                client.token_endpoint_auth_method = _client_authentication(server)
        if settings.issuer is not None:
            return await _restrict_to_issuer(response, settings.issuer)
        return response


def with_token(request: httpx2.Request, token: str | None) -> httpx2.Request:
    """Add a token to a request, if there is one."""
    if token is not None:
        request.headers["Authorization"] = f"Bearer {token}"
    return request


async def _restrict_to_issuer(response: httpx2.Response, issuer: str) -> httpx2.Response:
    """Return a server's metadata with one authorization server, and any other response unchanged.

    Raises SkillError if the metadata does not have that server.
    """
    metadata = await handle_protected_resource_response(response)
    if metadata is None:
        return response
    servers = [server for server in metadata.authorization_servers if issuers_match(str(server), issuer)]
    if not servers:
        raise SkillError(_wrong_issuer_text(str(metadata.authorization_servers[0]), issuer))
    fields = metadata.model_copy(update={"authorization_servers": servers}).model_dump(mode="json", exclude_none=True)
    return httpx2.Response(200, json=fields, request=response.request)


def _wrong_issuer_text(named_server: str, issuer: str) -> str:
    return f"the server names {named_server} instead of the `issuer` {issuer}: nothing was sent there"


def _client_authentication(server: OAuthMetadata) -> Literal["client_secret_basic", "client_secret_post"]:
    """Return the authentication method (RFC 8414, section 2): basic, unless the server only supports the other."""
    supported = server.token_endpoint_auth_methods_supported
    return "client_secret_basic" if not supported or "client_secret_basic" in supported else "client_secret_post"


_MALFORMED = "the authorization server's answer is invalid"


async def _describe_error(error: OAuthFlowError | ValueError, response: httpx2.Response | None) -> str:
    """Describe an error that follows a response. Errors about answers quote them, tokens included."""
    if isinstance(error, OAuthTokenError) and response is not None and not response.is_success:
        return f"the authorization server gave no token: {await refusal(response)}"
    if isinstance(error, OAuthTokenError | ValueError) or error.__cause__ is not None:
        return _MALFORMED
    message = " ".join(str(error).split())[:500]
    if isinstance(error, OAuthRegistrationError):
        return f"the server did not register perstack as a client ({message}): it may require `clientId` in `oauth`"
    return message


_SENT = ("assertion", "client_assertion", "client_secret", "code", "refresh_token", "subject_token")


async def refusal(response: httpx2.Response) -> str:
    """Return why a server refused a token, on one line without the secrets that it was sent."""
    try:
        answer = _Refusal.model_validate_json(await response.aread())
    except ValueError:
        return f"it answered {response.status_code}"
    text = " ".join(": ".join(part for part in (answer.error, answer.error_description) if part).split())
    for name, value in parse_qsl((await response.request.aread()).decode()):
        text = text.replace(value, "…") if name in _SENT else text
    return text[:500]


class _Refusal(BaseModel):
    error: str
    error_description: str = ""
