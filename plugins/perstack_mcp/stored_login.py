"""Authorization of HTTP requests with a person's stored login."""

from __future__ import annotations

import time
from contextlib import aclosing, suppress
from typing import TypeVar

import httpx2
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.oauth2 import OAuthContext
from mcp.client.auth.utils import extract_field_from_www_auth, union_scopes
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import BaseModel

from perstack.core.base.records import JsonObject
from perstack.core.definitions.skills import OAuth
from perstack.next_steps import LogIn
from perstack_mcp.login_store import Login, LoginFile
from perstack_mcp.oauth import Flow, TokenFlow, Tokens, bounded_refusal, is_step_up, limit_body, with_token
from perstack_mcp.server_interface import Unauthorized

_EXPIRY_MARGIN_S = 30.0  # seconds before its expiry at which a token is no longer used

_M = TypeVar("_M", bound=BaseModel)


class StoredLogin(httpx2.Auth):
    """Authorization with the stored login of a person, renewed when needed; never interactive."""

    def __init__(self, endpoint: str, settings: OAuth, skill: str, file: LoginFile) -> None:
        """Use the login at `file`, which is read on the first request."""
        self._settings = settings
        self._skill = skill
        self._file = file
        self._login = Login(endpoint=endpoint)
        self._tokens = Tokens()

    async def async_auth_flow(self, request: httpx2.Request) -> Flow:
        """Send a request with the login's token, renewing it if needed. Raises Unauthorized if a login is needed."""
        if self._tokens.current is None:
            self._load_login()
        token_before = self._access_token
        if token_before is None or self._tokens.valid_token is not None:
            response = bounded_refusal((yield with_token(request, token_before)))
            if response.status_code != 401:
                await self._check_scope(response)
                return
            if token_before is None and self._file.read() is None:
                had_one = bool(self._login.tokens)
                raise self._login_error("its login has expired" if had_one else "the server asks for a login")
        async with self._file.locked():
            self._load_login()
            if self._access_token == token_before or self._tokens.valid_token is None:
                # no other process has renewed it since
                provider = self._renewing_provider()
                async with aclosing(TokenFlow(provider, self._tokens, request)) as flow:
                    answer: httpx2.Response | None = None
                    while (outgoing := await flow.next_request(answer)) is not None:
                        answer = self._check_renewal(limit_body((yield outgoing)))
                self._store_renewed(provider.context)
        response = bounded_refusal((yield with_token(request, self._access_token)))
        if response.status_code == 401:
            raise self._login_error("the server no longer accepts the login")
        await self._check_scope(response)

    @property
    def _access_token(self) -> str | None:
        tokens = self._tokens.current
        return None if tokens is None else tokens.access_token

    def _load_login(self) -> None:
        """Read the stored login and its tokens; none if the file has no valid login."""
        login = self._file.read()
        self._tokens = Tokens()
        if login is not None:
            with suppress(ValueError):  # an edited file with invalid content counts as no login
                self._tokens = self._create_tokens(login)
                self._login = login

    def _create_tokens(self, login: Login) -> Tokens:
        client = OAuthClientInformationFull.model_validate(login.client)
        client.client_secret = client.client_secret or self._settings.client_secret
        tokens = Tokens(client)
        tokens.current = OAuthToken.model_validate(login.tokens)
        margin_s = min(_EXPIRY_MARGIN_S, (tokens.current.expires_in or 0) / 10)
        tokens.expires_at = None if login.expires_at is None else login.expires_at - margin_s
        return tokens

    def _renewing_provider(self) -> OAuthClientProvider:
        """Return a provider that renews the login. Raises Unauthorized if the login cannot be renewed."""
        if self._tokens.current is None or self._tokens.current.refresh_token is None:
            raise self._login_error("its login has expired")
        provider = OAuthClientProvider(self._login.endpoint, OAuthClientMetadata(redirect_uris=None), self._tokens)
        provider.context.oauth_metadata = _parse_optional(OAuthMetadata, self._login.server)
        provider.context.protected_resource_metadata = _parse_optional(ProtectedResourceMetadata, self._login.resource)
        # in the past: the SDK would treat the stored token as valid and not renew it
        provider.context.token_expiry_time = 1.0
        return provider

    def _check_renewal(self, response: httpx2.Response) -> httpx2.Response:
        if response.status_code == 429 or response.status_code >= 500:
            raise Unauthorized(
                f"the login of skill {self._skill!r} could not be renewed: the authorization server answered"
                f" {response.status_code}; try again later"
            )
        return response

    def _store_renewed(self, context: OAuthContext) -> None:
        """Store the renewed login, or remove a refused one and raise Unauthorized."""
        if context.current_tokens is None:  # refused
            self._file.remove()
            raise self._login_error("its login has expired")
        self._file.write(login_of(context, self._login, self._settings))

    async def _check_scope(self, response: httpx2.Response) -> None:
        """If the server requires more scopes, store them for the next login and raise Unauthorized."""
        if not is_step_up(response):
            return
        scope = extract_field_from_www_auth(response, "scope")
        async with self._file.locked():
            login = self._file.read()
            if login is not None:
                self._file.write(login.model_copy(update={"wanted": union_scopes(login.wanted, scope)}))
        raise self._login_error(f"the server requires more rights ({scope or 'unnamed'})")

    def _login_error(self, reason: str) -> Unauthorized:
        return Unauthorized(reason, next_steps=(LogIn(self._skill),))


def login_of(context: OAuthContext, stored_login: Login, settings: OAuth) -> Login:
    """Return the login to store after a flow has received tokens."""
    tokens = context.current_tokens
    client = _to_json(context.client_info)
    if settings.client_secret is not None:
        client.pop("client_secret", None)  # the definition contains it
    lifetime = None if tokens is None else tokens.expires_in
    return stored_login.model_copy(
        update={
            "tokens": _to_json(tokens),
            "expires_at": None if lifetime is None else time.time() + lifetime,
            "client": client,
            "server": _to_json(context.oauth_metadata) or None,
            "resource": _to_json(context.protected_resource_metadata) or None,
        }
    )


def _to_json(model: BaseModel | None) -> JsonObject:
    return {} if model is None else model.model_dump(mode="json", exclude_none=True)


def _parse_optional(model: type[_M], value: JsonObject | None) -> _M | None:
    return None if value is None else model.model_validate(value)
