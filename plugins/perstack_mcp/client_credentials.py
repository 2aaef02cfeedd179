"""The client credentials flow: the client logs in as itself."""

from __future__ import annotations

import warnings

import httpx2
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.shared.exceptions import MCPDeprecationWarning

from perstack.core.definitions import OAuth
from perstack.errors import SkillError
from perstack_mcp.oauth import NothingKept
from perstack_mcp.token_flow import ClientMetadata, TokenFlow


class _SecretClient(TokenFlow, ClientCredentialsOAuthProvider):
    pass


class _KeyClient(TokenFlow, PrivateKeyJWTOAuthProvider):
    pass


def client_credentials(endpoint: str, settings: OAuth) -> httpx2.Auth:
    """With the client's secret, or its key. Raises SkillError for a key that is none."""
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
            provider = _KeyClient(endpoint, NothingKept(), client_id, assertion, issuer=settings.issuer)
        else:
            secret = settings.client_secret or ""
            provider = _SecretClient(endpoint, NothingKept(), client_id, secret, issuer=settings.issuer)
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
