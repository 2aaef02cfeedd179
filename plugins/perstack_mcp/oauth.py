"""OAuth authorization of HTTP requests, based on the SDK's client.

This package adds three things to the SDK: logins that outlive the process, renewed under a lock (`StoredLogin`); an
authorization server that cannot be changed while a client secret is configured, and errors without tokens
(`TokenFlow`); and no lock around a running request, since the SDK's own would let calls wait for one another.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Literal, TypeVar
from urllib.parse import parse_qsl

import httpx2
from mcp.client.auth import OAuthFlowError, OAuthRegistrationError, OAuthTokenError
from mcp.client.auth.utils import extract_field_from_www_auth, issuers_match, union_scopes
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from pydantic import BaseModel, PrivateAttr

from perstack.core.base.records import JsonObject
from perstack.core.definitions.skills import OAuth
from perstack.errors import SkillError
from perstack.next_steps import LogIn
from perstack_mcp.dpop import ProofKey, unbound, wants_nonce, wants_proofs
from perstack_mcp.login_store import Login, LoginFile
from perstack_mcp.sdk import Flow, OAuthFlow
from perstack_mcp.server_interface import Unauthorized


def _is_not_logged(record: logging.LogRecord) -> bool:
    return False


# The SDK logs what it also raises, and the text may contain a token.
logging.getLogger("mcp.client.auth.oauth2").addFilter(_is_not_logged)

AUTHORIZATION_TIMEOUT_S = 30.0  # seconds that an authorization server may take to answer


class NoTokenStorage:
    """Empty token storage for the SDK, which then keeps everything in memory. Calls `on_tokens` for new tokens."""

    def __init__(self, on_tokens: Callable[[], Awaitable[None]] | None = None) -> None:
        self._on_tokens = on_tokens

    async def get_tokens(self) -> OAuthToken | None:
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Report new tokens."""
        if self._on_tokens is not None:
            await self._on_tokens()

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Store nothing."""


class GivenHeaders(httpx2.Auth):
    """Authorization with the `Authorization` header of the definition only."""

    async def async_auth_flow(self, request: httpx2.Request) -> Flow:
        """Send the request. Raises Unauthorized if the server answers 401."""
        response = yield request
        if response.status_code == 401:
            raise Unauthorized("the server answers 401: it does not accept the `Authorization` in `headers`")


def with_timeout(request: httpx2.Request) -> httpx2.Request:
    """Return the request with a timeout; the SDK's token requests have none."""
    request.extensions.setdefault("timeout", httpx2.Timeout(AUTHORIZATION_TIMEOUT_S).as_dict())
    return request


def is_step_up(response: httpx2.Response) -> bool:
    """Return whether the server asks for more scopes (RFC 6750, section 3.1)."""
    return response.status_code == 403 and extract_field_from_www_auth(response, "error") == "insufficient_scope"


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


_REPEATED = "perstack_repeated"  # extension of a request that has a proof: True while it is sent once more


class BoundFlow(OAuthFlow):
    """SDK flow whose tokens are bound to a key where the server wants it."""

    proof_key: ProofKey | None = None  # None until the server wants one
    is_bound = False  # True if the current tokens are bound to it

    def prepare(self, request: httpx2.Request, *, is_own: bool) -> None:
        """Add a fresh proof to a request that presents a bound token, or asks for a token."""
        tokens, server = self.context.current_tokens, self.context.oauth_metadata
        resource = self.context.protected_resource_metadata
        if self.proof_key is None and resource is not None and resource.dpop_bound_access_tokens_required:
            self.proof_key = ProofKey()
        token = tokens.access_token if tokens is not None and is_own and self.is_bound else None
        is_for_token = server is not None and not is_own and str(request.url) == str(server.token_endpoint)
        if self.proof_key is None or (token is None and not is_for_token and "DPoP" not in request.headers):
            return
        if token is not None:
            request.headers["Authorization"] = f"DPoP {token}"
        request.headers["DPoP"] = self.proof_key.proof(request, token)
        request.extensions.setdefault(_REPEATED, False)

    async def take(self, response: httpx2.Response, *, is_own: bool) -> httpx2.Response | None:
        """Note what the server wants of proofs. Return None to send the request once more with the server's nonce."""
        if is_own and self.proof_key is None and wants_proofs(response):
            self.proof_key = ProofKey()
        marks = response.request.extensions
        if self.proof_key is None or _REPEATED not in marks:
            return response
        is_new = self.proof_key.take_nonce(response, is_own=is_own)
        marks[_REPEATED] = is_new and not marks[_REPEATED] and await wants_nonce(response)
        if marks[_REPEATED]:
            return None
        if is_own or not response.is_success:
            return response
        bearer = await unbound(response)
        self.is_bound = bearer is not None
        return bearer or response


class TokenFlow(BoundFlow):
    """SDK flow for any grant. Raises SkillError."""

    settings: OAuth

    async def flow(self, request: httpx2.Request) -> Flow:
        """Authorize and send a request. A valid token avoids the SDK's lock, held while a request runs."""
        if self.context.is_token_valid():
            self.sign(request)
            response = yield request
            if response.status_code != 401 and not is_step_up(response):
                return
        flow = super().flow(request)
        try:
            outgoing = await anext(flow)
            while True:
                outgoing = await flow.asend((yield with_timeout(outgoing)))
        except StopAsyncIteration:
            return
        except OAuthFlowError as error:
            raise SkillError(_describe(error)) from None
        except ValueError:
            raise SkillError(_MALFORMED) from None
        finally:
            await flow.aclose()

    def choose_server(self, advertised: list[str]) -> str:
        """Return the advertised authorization server that the definition names, else the first."""
        issuer = self.settings.issuer
        return next((one for one in advertised if issuer and issuers_match(one, issuer)), advertised[0])

    def issuer_to_expect(self) -> str:
        """Return the expected issuer: the definition's, if set. Raises OAuthFlowError if the server names another."""
        found, issuer = super().issuer_to_expect(), self.settings.issuer
        if issuer is not None and not issuers_match(found, issuer):
            raise OAuthFlowError(
                f"the server leads to {found} and not to the `issuer` {issuer}: nothing was sent there"
            )
        return found

    async def take_token(self, response: httpx2.Response) -> None:
        """Read a token response. Raises OAuthFlowError with the server's reason if it refused."""
        if response.status_code not in (200, 201):
            raise OAuthFlowError(f"the authorization server gave no token: {await refusal(response)}")
        await super().take_token(response)

    async def authorization(self) -> httpx2.Request:
        """Return the token request, with the client secret by the method that the server supports."""
        client = self.context.client_info
        if client is not None and client.client_secret and client.client_id == self.settings.client_id:
            client.token_endpoint_auth_method = _secret_method(self.context.oauth_metadata)
        return await super().authorization()


def _secret_method(server: OAuthMetadata | None) -> Literal["client_secret_basic", "client_secret_post"]:
    """Return the authentication method (RFC 8414, section 2): basic, unless the server only supports the other."""
    known = None if server is None else server.token_endpoint_auth_methods_supported
    return "client_secret_basic" if not known or "client_secret_basic" in known else "client_secret_post"


_MALFORMED = "the authorization server's answer is not as it should be"


def _describe(error: OAuthFlowError) -> str:
    """Describe an error. Errors about malformed answers quote them, tokens included, so these get a fixed text."""
    if isinstance(error, OAuthTokenError) or error.__cause__ is not None:
        return _MALFORMED
    words = " ".join(str(error).split())[:500]
    if isinstance(error, OAuthRegistrationError):
        return f"the server did not register perstack as a client ({words}): it may want `clientId` in `oauth`"
    return words


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


_EXPIRY_MARGIN_S = 30.0  # maximum seconds before its expiry from which a token is no longer used

_M = TypeVar("_M", bound=BaseModel)


class StoredLogin(BoundFlow):
    """Authorization with the stored login of a person, renewed when needed; never interactive."""

    def __init__(self, endpoint: str, settings: OAuth, skill: str, file: LoginFile) -> None:
        """Use the login at `file`, which is read on the first request."""
        super().__init__(endpoint, OAuthClientMetadata(redirect_uris=None), NoTokenStorage(self._store))
        self._settings = settings
        self._skill = skill
        self._place = file
        self._login = Login(endpoint=endpoint)

    async def flow(self, request: httpx2.Request) -> Flow:
        """Send a request with the login's token, renewing it if needed. Raises Unauthorized if a login is needed."""
        self.context.protocol_version = request.headers.get(MCP_PROTOCOL_VERSION_HEADER)
        if self.context.current_tokens is None:
            self._load()
        used = self._token()
        if used is None or self.context.is_token_valid():
            response = yield self._sign(request)
            if response.status_code != 401:
                await self._check_scope(response)
                return
            if used is None and self._place.read() is None:
                had_one = bool(self._login.tokens)
                raise self._login_error("its login has expired" if had_one else "the server asks for a login")
        async with self._place.locked():
            self._load()
            if self._token() == used or not self.context.is_token_valid():
                # no other process has renewed it meanwhile
                self._check_renewal(await self._read_renewal((yield await self._renewal_request())))
        response = yield self._sign(request)
        if response.status_code == 401:
            raise self._login_error("the server no longer accepts the login")
        await self._check_scope(response)

    def _token(self) -> str | None:
        tokens = self.context.current_tokens
        return None if tokens is None else tokens.access_token

    def _sign(self, request: httpx2.Request) -> httpx2.Request:
        self.sign(request)
        return request

    def _load(self) -> None:
        login = self._place.read()
        self.context.clear_tokens()
        if login is not None:
            with suppress(ValueError):  # an edited file with invalid content counts as no login
                self._use(login)

    def _use(self, login: Login) -> None:
        self._login = login
        tokens = OAuthToken.model_validate(login.tokens)
        self.is_bound = login.key is not None
        if login.key is not None and (self.proof_key is None or self.proof_key.pem != login.key):
            self.proof_key = ProofKey(login.key)
        client = self.context.client_info = OAuthClientInformationFull.model_validate(login.client)
        client.client_secret = client.client_secret or self._settings.client_secret
        self.context.oauth_metadata = _or_none(OAuthMetadata, login.server)
        self.context.protected_resource_metadata = _or_none(ProtectedResourceMetadata, login.resource)
        early = min(_EXPIRY_MARGIN_S, (tokens.expires_in or 0) / 10)
        self.context.token_expiry_time = None if login.expires_at is None else login.expires_at - early
        self.context.current_tokens = tokens

    async def _renewal_request(self) -> httpx2.Request:
        if not self.context.can_refresh_token():
            raise self._login_error("its login has expired")
        return with_timeout(await self.renewal())

    async def _read_renewal(self, response: httpx2.Response) -> bool:
        if response.status_code == 429 or response.status_code >= 500:
            raise Unauthorized(
                f"the login of skill {self._skill!r} could not be renewed: the authorization server answered"
                f" {response.status_code}; try again later"
            )
        return await self.take_renewed(response)

    def _check_renewal(self, is_renewed: bool) -> None:
        if not is_renewed:
            self._place.remove()
            raise self._login_error("its login has expired")

    async def _check_scope(self, response: httpx2.Response) -> None:
        if not is_step_up(response):
            return
        scope = extract_field_from_www_auth(response, "scope")
        async with self._place.locked():
            login = self._place.read()
            if login is not None:
                self._place.write(login.model_copy(update={"wanted": union_scopes(login.wanted, scope)}))
        raise self._login_error(f"the server asks for more rights ({scope or 'unnamed'})")

    def _login_error(self, why: str) -> Unauthorized:
        return Unauthorized(why, next_steps=(LogIn(self._skill),))

    async def _store(self) -> None:
        self._place.write(login_of(self, self._login, self._settings))


def login_of(flow: BoundFlow, before: Login, settings: OAuth) -> Login:
    """Return the login to store after a flow has received tokens."""
    context = flow.context
    tokens = context.current_tokens
    client = _json(context.client_info)
    if settings.client_secret is not None:
        client.pop("client_secret", None)  # the definition contains it
    lifetime = None if tokens is None else tokens.expires_in
    return before.model_copy(
        update={
            "tokens": _json(tokens),
            "expires_at": None if lifetime is None else time.time() + lifetime,
            "client": client,
            "server": _json(context.oauth_metadata) or None,
            "resource": _json(context.protected_resource_metadata) or None,
            "key": flow.proof_key.pem if flow.proof_key is not None and flow.is_bound else None,
        }
    )


def _json(model: BaseModel | None) -> JsonObject:
    return {} if model is None else model.model_dump(mode="json", exclude_none=True)


def _or_none(model: type[_M], value: JsonObject | None) -> _M | None:
    return None if value is None else model.model_validate(value)
