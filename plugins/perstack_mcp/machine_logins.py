"""Logins without a person: with the client's secret or private key, or by an identity provider.

An identity provider exchanges the token that it gave a person for an identity assertion (RFC 8693), which says that the
client may act for that person at one authorization server; this one gives the token for it (RFC 7523, SEP-990).
"""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import parse_qsl, quote

import httpx2
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.shared.exceptions import MCPDeprecationWarning
from pydantic import BaseModel, StringConstraints

from perstack.core.definitions.skills import OAuth
from perstack.errors import SkillError
from perstack.system.files import read_regular
from perstack_mcp.oauth import ClientMetadata, NoTokenStorage, TokenFlow, refusal, with_timeout
from perstack_mcp.sdk import Flow


class _SecretClient(TokenFlow, ClientCredentialsOAuthProvider):
    pass


class _KeyClient(TokenFlow, PrivateKeyJWTOAuthProvider):
    pass


_JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
_ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
_ID_JWT = "urn:ietf:params:oauth:token-type:id_token"
_MAX_IDENTITY_BYTES = 64 << 10


class _AssertionClient(TokenFlow, ClientCredentialsOAuthProvider):
    """Client whose grant is an assertion (RFC 7523, section 2.1)."""

    async def grant(self, request: httpx2.Request, assertion: str) -> httpx2.Request:
        """Return the token request with the assertion as the grant."""
        fields = dict(parse_qsl((await request.aread()).decode()))
        fields |= {"grant_type": _JWT_BEARER, "assertion": assertion, "client_id": self.settings.client_id or ""}
        login = {name: request.headers[name] for name in ("Authorization",) if self.settings.client_secret}
        return httpx2.Request(request.method, request.url, data=fields, headers=login)


class _IdentityAssertionClient(_AssertionClient):
    _is_granting = False

    async def flow(self, request: httpx2.Request) -> Flow:
        """Authorize and send a request; before a token request, an identity assertion is requested."""
        flow = super().flow(request)
        try:
            outgoing = await anext(flow)
            while True:
                if self._is_granting:
                    self._is_granting = False
                    answer = yield with_timeout(await self._exchange())
                    outgoing = with_timeout(await self.grant(outgoing, await _assertion_in(answer)))
                outgoing = await flow.asend((yield outgoing))
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()

    async def authorization(self) -> httpx2.Request:
        """Return the token request, whose grant `flow` adds."""
        self._is_granting = True
        return await super().authorization()

    async def _exchange(self) -> httpx2.Request:
        """Return the request for an assertion. Raises SkillError if the person's token cannot be read."""
        settings = self.settings
        fields = {
            "grant_type": _EXCHANGE,
            "requested_token_type": _ID_JAG,
            "audience": settings.issuer or "",
            "resource": self.context.get_resource_url(),
            "subject_token": await _identity(settings),
            "subject_token_type": _ID_JWT,
            "client_id": settings.identity_client_id or "",
        }
        if settings.scopes:
            fields["scope"] = " ".join(settings.scopes)
        if settings.identity_client_secret is None:
            return httpx2.Request("POST", settings.identity_endpoint or "", data=fields)
        login = httpx2.BasicAuth(
            *(quote(one, safe="") for one in (fields["client_id"], settings.identity_client_secret))
        )
        return next(login.sync_auth_flow(httpx2.Request("POST", settings.identity_endpoint or "", data=fields)))


class _IdentityAssertion(BaseModel):
    """Answer of an identity provider to a token exchange (RFC 8693, section 2.2.1)."""

    access_token: Annotated[str, StringConstraints(min_length=1, max_length=_MAX_IDENTITY_BYTES)]
    issued_token_type: Literal["urn:ietf:params:oauth:token-type:id-jag"]


async def _assertion_in(response: httpx2.Response) -> str:
    if response.status_code != 200:
        raise SkillError(f"the identity provider gave no assertion: {await refusal(response)}")
    try:
        return _IdentityAssertion.model_validate_json(await response.aread()).access_token
    except ValueError:
        raise SkillError("the identity provider's answer has no identity assertion") from None


async def _identity(settings: OAuth) -> str:
    return await asyncio.to_thread(_read_identity, Path(settings.identity_file or ""))


def _read_identity(path: Path) -> str:
    try:
        if not path.is_absolute():
            raise ValueError("it must be an absolute path")
        return read_regular(path, _MAX_IDENTITY_BYTES).decode("ascii").strip()
    except (OSError, ValueError) as error:
        why = "it is no token" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", None) or error
        raise SkillError(f"`identityFile` {path} cannot be read: {why}") from None


def client_credentials(endpoint: str, settings: OAuth) -> httpx2.Auth:
    """Return the flow of a client that logs in without a person. Raises SkillError for an invalid key."""
    client_id, secret = settings.client_id or "", settings.client_secret or ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MCPDeprecationWarning)  # without an issuer the server's is used
        provider: _SecretClient | _KeyClient | _AssertionClient
        if settings.identity_file is not None:
            provider = _IdentityAssertionClient(endpoint, NoTokenStorage(), client_id, secret, issuer=settings.issuer)
        elif settings.private_key is not None:
            signing = SignedJWTParameters(
                issuer=client_id,
                subject=client_id,
                signing_key=settings.private_key,
                signing_algorithm=_algorithm(settings.private_key),
            )
            assertion = signing.create_assertion_provider()
            provider = _KeyClient(endpoint, NoTokenStorage(), client_id, assertion, issuer=settings.issuer)
        else:
            provider = _SecretClient(endpoint, NoTokenStorage(), client_id, secret, issuer=settings.issuer)
    provider.settings = settings
    given = provider.context.client_metadata
    provider.context.client_metadata = ClientMetadata.of(settings, **given.model_dump())
    return provider


def _algorithm(pem: str) -> str:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(pem.encode(), None)
    except (ValueError, TypeError):
        raise SkillError("`privateKey` is not an unencrypted private key in PEM") from None
    if isinstance(key, EllipticCurvePrivateKey):
        return {256: "ES256", 384: "ES384", 521: "ES512"}.get(key.curve.key_size, "ES256")
    return "EdDSA" if isinstance(key, Ed25519PrivateKey) else "RS256"
