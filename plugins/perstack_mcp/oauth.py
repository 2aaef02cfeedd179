"""Authorization of HTTP requests by OAuth, on the SDK's client, which speaks the protocol.

What this adds: logins that outlive the process, renewed under a lock; an authorization server that cannot be changed
under a client's secret; errors that hold no token; and no lock around a request that is under way, for the SDK's own
would let calls wait for one another.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Literal, TypeVar

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthTokenError
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.utils import extract_field_from_www_auth, issuers_match, union_scopes
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from pydantic import AnyUrl, BaseModel, PrivateAttr, ValidationError

from perstack.core.base import JsonObject
from perstack.core.definitions import OAuth
from perstack.errors import SkillError
from perstack_mcp.failures import Unauthorized
from perstack_mcp.logins import Login, Place

_EARLY = 30.0
"""Seconds before its end that a token is no longer used, at most."""


def _is_not_logged(record: logging.LogRecord) -> bool:
    return False


# it logs what it also raises, with words that may hold a token
logging.getLogger("mcp.client.auth.oauth2").addFilter(_is_not_logged)

_M = TypeVar("_M", bound=BaseModel)

Flow = AsyncGenerator[httpx2.Request, httpx2.Response]


class _Metadata(OAuthClientMetadata):
    """What the client says of itself; the scopes of its definition go before those that a server suggests."""

    _scopes: Sequence[str] = PrivateAttr(())
    _besides: str | None = PrivateAttr(None)

    @classmethod
    def of(cls, settings: OAuth, besides: str | None = None, **fields: object) -> _Metadata:
        metadata = cls.model_validate(fields)
        metadata._scopes, metadata._besides = settings.scopes, besides
        return metadata

    def __setattr__(self, name: str, value: object) -> None:
        if name == "scope":
            suggested = value if isinstance(value, str) else None
            value = union_scopes(" ".join(self._scopes) or suggested, self._besides)
        super().__setattr__(name, value)


class _NothingKept:
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


class StoredLogin(OAuthClientProvider):
    """Uses and renews the login that a person has made; asks for one if there is none. Never asks a person."""

    def __init__(self, endpoint: str, settings: OAuth, skill: str, place: Place) -> None:
        super().__init__(endpoint, OAuthClientMetadata(redirect_uris=None), _NothingKept(self._keep))
        self._settings = settings
        self._skill = skill
        self._place = place
        self._login = Login(endpoint=endpoint)

    async def _auth_flow(self, request: httpx2.Request) -> Flow:
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
        self._add_auth_header(request)
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
        return await self._refresh_token()

    async def _renewed(self, response: httpx2.Response) -> bool:
        if response.status_code == 429 or response.status_code >= 500:
            raise Unauthorized(
                f"the login of skill {self._skill!r} could not be renewed: the authorization server answered"
                f" {response.status_code}; try again later"
            )
        return await self._handle_refresh_response(response)

    def _check(self, is_renewed: bool) -> None:
        if not is_renewed:
            self._place.remove()
            raise self._login_needed("its login has expired")

    async def _check_scope(self, response: httpx2.Response) -> None:
        if not _is_step_up(response):
            return
        scope = extract_field_from_www_auth(response, "scope")
        async with self._place.locked():
            login = self._place.read()
            if login is not None:
                self._place.write(login.model_copy(update={"wanted": union_scopes(login.wanted, scope)}))
        raise self._login_needed(f"the server asks for more rights ({scope or 'unnamed'})")

    def _login_needed(self, why: str) -> Unauthorized:
        return Unauthorized(f"{why}: perstack login {self._skill}")

    async def _keep(self) -> None:
        self._place.write(_login_of(self, self._login, self._settings))


class _Guarded(OAuthClientProvider):
    """A flow that gets tokens: the authorization server is the one configured, and errors hold nothing secret."""

    settings: OAuth

    async def _auth_flow(self, request: httpx2.Request) -> Flow:
        # the SDK holds its lock while a request is under way: that is for getting tokens only
        if self.context.is_token_valid():
            self._add_auth_header(request)
            response = yield request
            if response.status_code != 401 and not _is_step_up(response):
                return
        flow = super()._auth_flow(request)
        try:
            outgoing = await anext(flow)
            while True:
                outgoing = await flow.asend((yield outgoing))
        except StopAsyncIteration:
            return
        except OAuthFlowError as error:
            raise SkillError(_words(error)) from None
        except ValueError:
            raise SkillError(_MALFORMED) from None
        finally:
            await flow.aclose()

    def _select_authorization_server(self, advertised: list[str]) -> str:
        issuer = self.settings.issuer
        return next((one for one in advertised if issuer and issuers_match(one, issuer)), advertised[0])

    def _expected_issuer(self) -> str:
        found, issuer = super()._expected_issuer(), self.settings.issuer
        if issuer is not None and not issuers_match(found, issuer):
            raise OAuthFlowError(
                f"the server leads to {found} and not to the `issuer` {issuer}: nothing was sent there"
            )
        return found

    async def _handle_token_response(self, response: httpx2.Response) -> None:
        if response.status_code not in (200, 201):
            raise OAuthFlowError(f"the authorization server gave no token: {await _refusal(response)}")
        await super()._handle_token_response(response)

    async def _perform_authorization(self) -> httpx2.Request:
        client = self.context.client_info
        if client is not None and client.client_secret and client.client_id == self.settings.client_id:
            client.token_endpoint_auth_method = _secret_method(self.context.oauth_metadata)
        return await super()._perform_authorization()


class PersonalLogin(_Guarded):
    """The authorization code flow with PKCE: `ask` shows a person an address, and returns what came back."""

    def __init__(
        self,
        endpoint: str,
        settings: OAuth,
        redirect_uri: str,
        ask: Callable[[str, str], Awaitable[AuthorizationCodeResult]],
        place: Place,
    ) -> None:
        self.settings = settings
        before = place.read()
        self._wanted = None if before is None else before.wanted
        metadata = _Metadata.of(settings, self._wanted, redirect_uris=[redirect_uri], client_name="Perstack")
        is_document = (settings.client_id or "").startswith("https://")
        super().__init__(
            endpoint,
            metadata,
            _NothingKept(self._keep),
            self._note,
            self._answer,
            client_metadata_url=settings.client_id if is_document else None,
        )
        self._ask = ask
        self._place = place
        self._url = ""
        self._asked: set[tuple[str, str | None]] = set()
        self.is_done = False
        if settings.client_id is not None and not is_document:
            self._known: OAuthClientInformationFull | None = OAuthClientInformationFull(
                client_id=settings.client_id,
                client_secret=settings.client_secret,
                redirect_uris=[AnyUrl(redirect_uri)],
            )
        else:
            self._known = None

    async def _initialize(self) -> None:
        self.context.client_info = self._known
        self._initialized = True

    async def _note(self, url: str) -> None:
        asked = url.partition("?")[0], self.context.client_metadata.scope
        if asked in self._asked:
            raise OAuthFlowError("the server does not accept the login that it asked for")
        self._asked.add(asked)
        self._url = url

    async def _answer(self) -> AuthorizationCodeResult:
        return await self._ask(self._url, str(httpx2.URL(self._url).params["state"]))

    async def _keep(self) -> None:
        async with self._place.locked():
            login = Login(endpoint=self.context.server_url, wanted=self._wanted)
            self._place.write(_login_of(self, login, self.settings))
        self.is_done = True


class _SecretClient(_Guarded, ClientCredentialsOAuthProvider):
    pass


class _KeyClient(_Guarded, PrivateKeyJWTOAuthProvider):
    pass


class GivenHeaders(httpx2.Auth):
    """The definition's own `Authorization` and nothing else."""

    async def async_auth_flow(self, request: httpx2.Request) -> Flow:
        """Raises Unauthorized for a server that does not accept it."""
        response = yield request
        if response.status_code == 401:
            raise Unauthorized("the server answers 401: it does not accept the `Authorization` in `headers`")


def client_credentials(endpoint: str, settings: OAuth) -> httpx2.Auth:
    """The client logs in as itself, with its secret or a key. Raises SkillError for a key that is none."""
    client_id = settings.client_id or ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MCPDeprecationWarning)  # no issuer: the server's is taken
        provider: _SecretClient | _KeyClient
        if settings.private_key is not None:
            signing = SignedJWTParameters(
                issuer=client_id,
                subject=client_id,
                signing_key=settings.private_key,
                signing_algorithm=_algorithm(settings.private_key),
            )
            assertion = signing.create_assertion_provider()
            provider = _KeyClient(endpoint, _NothingKept(), client_id, assertion, issuer=settings.issuer)
        else:
            secret = settings.client_secret or ""
            provider = _SecretClient(endpoint, _NothingKept(), client_id, secret, issuer=settings.issuer)
    provider.settings = settings
    given = provider.context.client_metadata
    provider.context.client_metadata = _Metadata.of(settings, **given.model_dump())
    return provider


def _login_of(flow: OAuthClientProvider, before: Login, settings: OAuth) -> Login:
    context = flow.context
    tokens = context.current_tokens
    client = _json(context.client_info)
    if settings.client_secret is not None:
        del client["client_secret"]  # the definition has it
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


def _is_step_up(response: httpx2.Response) -> bool:
    """RFC 6750, section 3.1."""
    return response.status_code == 403 and extract_field_from_www_auth(response, "error") == "insufficient_scope"


def _secret_method(server: OAuthMetadata | None) -> Literal["client_secret_basic", "client_secret_post"]:
    """RFC 8414, section 2: basic, unless the server takes only the other."""
    known = None if server is None else server.token_endpoint_auth_methods_supported
    return "client_secret_basic" if not known or "client_secret_basic" in known else "client_secret_post"


def _algorithm(pem: str) -> str:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(pem.encode(), None)
    except (ValueError, TypeError):
        raise SkillError("`privateKey` is no unencrypted private key in PEM") from None
    if isinstance(key, EllipticCurvePrivateKey):
        return {256: "ES256", 384: "ES384", 521: "ES512"}.get(key.curve.key_size, "ES256")
    return "EdDSA" if isinstance(key, Ed25519PrivateKey) else "RS256"


_MALFORMED = "the authorization server's answer is not as it should be"


def _words(error: OAuthFlowError) -> str:
    """Not those of a malformed answer, which show it: it may hold a token, or a secret."""
    is_malformed = isinstance(error, OAuthTokenError) or error.__cause__ is not None
    return _MALFORMED if is_malformed else " ".join(str(error).split())[:500]


async def _refusal(response: httpx2.Response) -> str:
    """RFC 6749, section 5.2."""
    try:
        answer = _Refusal.model_validate_json(await response.aread())
    except ValueError:
        return f"it answered {response.status_code}"
    return ": ".join(part for part in (answer.error, answer.error_description) if part)


class _Refusal(BaseModel):
    error: str
    error_description: str = ""
