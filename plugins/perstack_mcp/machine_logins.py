"""Logins without a person: with the client's secret or private key, or through an identity provider.

An identity provider exchanges a person's token for an identity assertion (RFC 8693), which says that the client may act
for that person at one authorization server. The authorization server exchanges the assertion for an access token (RFC
7523, SEP-990).
"""

from __future__ import annotations

import asyncio
import warnings
from functools import partial
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote

import httpx2
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider
from mcp.shared.exceptions import MCPDeprecationWarning
from pydantic import BaseModel, StringConstraints

from perstack.core.definitions.skills import OAuth
from perstack.errors import SkillError
from perstack.system.files import read_regular
from perstack_mcp.http_transports import transport
from perstack_mcp.oauth import ClientMetadata, ProviderLogin, Tokens, limit_body, refusal, without_compression


def machine_login(endpoint: str, settings: OAuth, may_be_local: bool) -> ProviderLogin:
    """Return the authorization of a client that logs in without a person. Raises SkillError for an invalid key."""
    tokens = Tokens()
    if settings.flow == "identityAssertion":
        return ProviderLogin(settings, _identity_assertion(endpoint, settings, may_be_local, tokens), tokens)
    with warnings.catch_warnings():
        # without an issuer, the server's authorization server is used
        warnings.simplefilter("ignore", MCPDeprecationWarning)
        provider = _client_credentials(endpoint, settings, tokens)
    metadata = provider.context.client_metadata
    provider.context.client_metadata = ClientMetadata.of(settings, **metadata.model_dump())
    return ProviderLogin(settings, provider, tokens)


def _client_credentials(
    endpoint: str, settings: OAuth, tokens: Tokens
) -> ClientCredentialsOAuthProvider | PrivateKeyJWTOAuthProvider:
    client_id, key = settings.client_id or "", settings.private_key
    if key is None:
        secret = settings.client_secret or ""
        return ClientCredentialsOAuthProvider(endpoint, tokens, client_id, secret, issuer=settings.issuer)
    signing = SignedJWTParameters(
        issuer=client_id, subject=client_id, signing_key=key, signing_algorithm=_signing_algorithm(key)
    )
    assertion = signing.create_assertion_provider()
    return PrivateKeyJWTOAuthProvider(endpoint, tokens, client_id, assertion, issuer=settings.issuer)


def _signing_algorithm(pem: str) -> str:
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


# Identity assertions.

_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
_ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
_ID_JWT = "urn:ietf:params:oauth:token-type:id_token"
_MAX_IDENTITY_BYTES = 64 << 10


def _identity_assertion(
    endpoint: str, settings: OAuth, may_be_local: bool, tokens: Tokens
) -> IdentityAssertionOAuthProvider:
    return IdentityAssertionOAuthProvider(
        endpoint,
        tokens,
        settings.client_id or "",
        settings.client_secret or "",
        settings.issuer or "",
        partial(_request_assertion, settings, may_be_local),
        " ".join(settings.scopes) or None,
        "client_secret_basic",
    )


async def _request_assertion(settings: OAuth, may_be_local: bool, audience: str, resource: str) -> str:
    """Return an assertion of the identity provider. Raises SkillError if there is none."""
    client_id, secret = settings.identity_client_id or "", settings.identity_client_secret
    fields = {
        "grant_type": _EXCHANGE,
        "requested_token_type": _ID_JAG,
        "audience": audience,
        "resource": resource,
        "subject_token": await asyncio.to_thread(_read_identity, Path(settings.identity_file or "")),
        "subject_token_type": _ID_JWT,
        "client_id": client_id,
    }
    if settings.scopes:
        fields["scope"] = " ".join(settings.scopes)
    login = None if secret is None else httpx2.BasicAuth(quote(client_id, safe=""), quote(secret, safe=""))
    request = without_compression(httpx2.Request("POST", settings.identity_endpoint or "", data=fields))
    async with httpx2.AsyncClient(transport=transport(may_be_local)) as client:
        response = limit_body(await client.send(request, stream=True, auth=login))
        try:
            return await _parse_assertion(response)
        finally:
            await response.aclose()


class _IdentityAssertion(BaseModel):
    """The answer of an identity provider to a token exchange (RFC 8693, section 2.2.1)."""

    access_token: Annotated[str, StringConstraints(min_length=1, max_length=_MAX_IDENTITY_BYTES)]
    issued_token_type: Literal["urn:ietf:params:oauth:token-type:id-jag"]


async def _parse_assertion(response: httpx2.Response) -> str:
    if response.status_code != 200:
        raise SkillError(f"the identity provider gave no assertion: {await refusal(response)}")
    try:
        return _IdentityAssertion.model_validate_json(await response.aread()).access_token
    except ValueError:
        raise SkillError("the identity provider's answer has no identity assertion") from None


def _read_identity(path: Path) -> str:
    """Return the identity token in a file. Raises SkillError."""
    try:
        if not path.is_absolute():
            raise ValueError("it must be an absolute path")
        return read_regular(path, _MAX_IDENTITY_BYTES).decode("ascii").strip()
    except (OSError, ValueError) as error:
        problem = (
            "it is not a token" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", None) or error
        )
        raise SkillError(f"`identityFile` {path} cannot be read: {problem}") from None
