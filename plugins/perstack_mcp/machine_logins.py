"""Logins of a client by itself: with its secret, its private key, or a token of its machine."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path
from urllib.parse import parse_qsl

import httpx2
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.shared.exceptions import MCPDeprecationWarning

from perstack.core.definitions.skills import OAuth
from perstack.errors import SkillError
from perstack.system.files import read_regular
from perstack_mcp.oauth import ClientMetadata, NoTokenStorage, TokenFlow


class _SecretClient(TokenFlow, ClientCredentialsOAuthProvider):
    pass


class _KeyClient(TokenFlow, PrivateKeyJWTOAuthProvider):
    pass


_JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_MAX_IDENTITY_BYTES = 64 << 10


class _WorkloadClient(TokenFlow, ClientCredentialsOAuthProvider):
    async def authorization(self) -> httpx2.Request:
        """Return the token request, with the workload's token as the grant. Raises SkillError if it cannot be read."""
        request, settings = await super().authorization(), self.settings
        fields = dict(parse_qsl((await request.aread()).decode()))
        token = await asyncio.to_thread(_identity, Path(settings.identity_file or ""))
        fields |= {"grant_type": _JWT_BEARER, "assertion": token, "client_id": settings.client_id or ""}
        return httpx2.Request(request.method, request.url, data=fields)


def _identity(path: Path) -> str:
    try:
        if not path.is_absolute():
            raise ValueError("it must be an absolute path")
        return read_regular(path, _MAX_IDENTITY_BYTES).decode("ascii").strip()
    except (OSError, ValueError) as error:
        why = "it is no token" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", None) or error
        raise SkillError(f"`identityFile` {path} cannot be read: {why}") from None


def client_credentials(endpoint: str, settings: OAuth) -> httpx2.Auth:
    """Return the flow of a client that logs in by itself: with a secret, a private key or the token of its machine.

    Raises SkillError for an invalid key.
    """
    client_id = settings.client_id or ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MCPDeprecationWarning)  # without an issuer the server's is used
        provider: _SecretClient | _KeyClient | _WorkloadClient
        if settings.identity_file is not None:
            provider = _WorkloadClient(endpoint, NoTokenStorage(), client_id, "", issuer=settings.issuer)
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
            secret = settings.client_secret or ""
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
