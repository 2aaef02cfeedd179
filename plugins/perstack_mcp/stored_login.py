"""A login that a person has made: used, and renewed under its lock."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TypeVar

import httpx2
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.utils import extract_field_from_www_auth, union_scopes
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from pydantic import BaseModel, ValidationError

from perstack.core.base import JsonObject
from perstack.core.definitions import OAuth
from perstack.next_steps import LogIn
from perstack_mcp.failures import Unauthorized
from perstack_mcp.logins import Login, LoginFile
from perstack_mcp.oauth import Flow, NothingKept, bounded, is_step_up
from perstack_mcp.sdk import OAuthFlow

_EARLY = 30.0
"""Seconds before its end that a token is no longer used, at most."""

_M = TypeVar("_M", bound=BaseModel)


class StoredLogin(OAuthFlow):
    """Uses and renews the login that a person has made; asks for one if there is none. Never asks a person."""

    def __init__(self, endpoint: str, settings: OAuth, skill: str, place: LoginFile) -> None:
        super().__init__(endpoint, OAuthClientMetadata(redirect_uris=None), NothingKept(self._keep))
        self._settings = settings
        self._skill = skill
        self._place = place
        self._login = Login(endpoint=endpoint)

    async def flow(self, request: httpx2.Request) -> Flow:
        """The request with the token of the login, which is renewed if need be. Raises Unauthorized."""
        self.context.protocol_version = request.headers.get(MCP_PROTOCOL_VERSION_HEADER)
        if self.context.current_tokens is None:
            self._take()
        used = self._token()
        if used is None or self.context.is_token_valid():
            response = yield self._signed(request)
            if response.status_code != 401:
                await self._check_scope(response)
                return
            if used is None and self._place.read() is None:
                had_one = bool(self._login.tokens)
                raise self._login_needed("its login has expired" if had_one else "the server asks for a login")
        async with self._place.locked():
            self._take()
            if self._token() == used or not self.context.is_token_valid():
                # nobody has renewed it meanwhile
                self._check(await self._renewed((yield await self._renewal())))
        response = yield self._signed(request)
        if response.status_code == 401:
            raise self._login_needed("the server no longer accepts the login")
        await self._check_scope(response)

    def _token(self) -> str | None:
        tokens = self.context.current_tokens
        return None if tokens is None else tokens.access_token

    def _signed(self, request: httpx2.Request) -> httpx2.Request:
        self.sign(request)
        return request

    def _take(self) -> None:
        login = self._place.read()
        self.context.clear_tokens()
        if login is not None:
            with suppress(ValidationError):  # by hand, the file can be made anything: then there is no login
                self._hold(login)

    def _hold(self, login: Login) -> None:
        self._login = login
        tokens = OAuthToken.model_validate(login.tokens)
        client = self.context.client_info = OAuthClientInformationFull.model_validate(login.client)
        client.client_secret = client.client_secret or self._settings.client_secret
        self.context.oauth_metadata = _or_none(OAuthMetadata, login.server)
        self.context.protected_resource_metadata = _or_none(ProtectedResourceMetadata, login.resource)
        early = min(_EARLY, (tokens.expires_in or 0) / 10)
        self.context.token_expiry_time = None if login.expires_at is None else login.expires_at - early
        self.context.current_tokens = tokens

    async def _renewal(self) -> httpx2.Request:
        if not self.context.can_refresh_token():
            raise self._login_needed("its login has expired")
        return bounded(await self.renewal())

    async def _renewed(self, response: httpx2.Response) -> bool:
        if response.status_code == 429 or response.status_code >= 500:
            raise Unauthorized(
                f"the login of skill {self._skill!r} could not be renewed: the authorization server answered"
                f" {response.status_code}; try again later"
            )
        return await self.take_renewed(response)

    def _check(self, is_renewed: bool) -> None:
        if not is_renewed:
            self._place.remove()
            raise self._login_needed("its login has expired")

    async def _check_scope(self, response: httpx2.Response) -> None:
        if not is_step_up(response):
            return
        scope = extract_field_from_www_auth(response, "scope")
        async with self._place.locked():
            login = self._place.read()
            if login is not None:
                self._place.write(login.model_copy(update={"wanted": union_scopes(login.wanted, scope)}))
        raise self._login_needed(f"the server asks for more rights ({scope or 'unnamed'})")

    def _login_needed(self, why: str) -> Unauthorized:
        return Unauthorized(why, next_steps=(LogIn(self._skill),))

    async def _keep(self) -> None:
        self._place.write(login_of(self, self._login, self._settings))


def login_of(flow: OAuthClientProvider, before: Login, settings: OAuth) -> Login:
    """What is to be kept of a flow that was given tokens."""
    context = flow.context
    tokens = context.current_tokens
    client = _json(context.client_info)
    if settings.client_secret is not None:
        client.pop("client_secret", None)  # the definition has it
    lifetime = None if tokens is None else tokens.expires_in
    return before.model_copy(
        update={
            "tokens": _json(tokens),
            "expires_at": None if lifetime is None else time.time() + lifetime,
            "client": client,
            "server": _json(context.oauth_metadata) or None,
            "resource": _json(context.protected_resource_metadata) or None,
        }
    )


def _json(model: BaseModel | None) -> JsonObject:
    return {} if model is None else model.model_dump(mode="json", exclude_none=True)


def _or_none(model: type[_M], value: JsonObject | None) -> _M | None:
    return None if value is None else model.model_validate(value)
