"""Tokens that are bound to a key (DPoP, RFC 9449): a copy of the token alone is of no use.

A flow requests such a token if the MCP server wants one, by its challenge or its metadata. Each request that presents
the token, or asks for one, then has a fresh proof. A server may want its latest nonce in the proof; it refuses the
first request with that nonce, and the request is sent once more.
"""

from __future__ import annotations

import json
import re
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from secrets import token_urlsafe

import httpx2
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from pydantic import JsonValue, TypeAdapter

_COORDINATE_BYTES = 32  # of P-256
_MAX_NONCE_CHARS = 1000
_CHALLENGE = re.compile(r"(?:^|,)\s*DPoP(?:\s|,|$)", re.IGNORECASE)
_OBJECT: TypeAdapter[dict[str, JsonValue]] = TypeAdapter(dict[str, JsonValue])


class ProofKey:
    """Key that tokens are bound to, and the latest nonce of each server."""

    def __init__(self, pem: str | None = None) -> None:
        """Load a key in PEM, or generate one. Raises ValueError for a key of another kind."""
        key = ec.generate_private_key(ec.SECP256R1()) if pem is None else load_pem_private_key(pem.encode(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
            raise ValueError("not a key on P-256")
        self._key = key
        numbers = key.public_key().public_numbers()
        public: dict[str, JsonValue] = {
            "crv": "P-256",
            "kty": "EC",
            "x": _encoded_number(numbers.x),
            "y": _encoded_number(numbers.y),
        }
        self._header = _encoded({"typ": "dpop+jwt", "alg": "ES256", "jwk": public})
        self._nonces: dict[tuple[str, bool], str] = {}  # by origin, and whether tokens are presented there

    @property
    def pem(self) -> str:
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()

    def proof(self, request: httpx2.Request, token: str | None = None) -> str:
        """Return a fresh proof for one request, and for the token that it presents."""
        claims: dict[str, JsonValue] = {
            "jti": token_urlsafe(16),
            "htm": request.method,
            "htu": str(request.url.copy_with(query=None, fragment=None)),
            "iat": int(time.time()),
        }
        if token is not None:
            claims["ath"] = _base64(sha256(token.encode()).digest())
        if (nonce := self._nonces.get((_origin(request), token is not None))) is not None:
            claims["nonce"] = nonce
        signed = f"{self._header}.{_encoded(claims)}"
        numbers = decode_dss_signature(self._key.sign(signed.encode(), ec.ECDSA(SHA256())))
        return f"{signed}.{_base64(b''.join(one.to_bytes(_COORDINATE_BYTES) for one in numbers))}"

    def take_nonce(self, response: httpx2.Response, *, is_own: bool) -> bool:
        """Use the nonce of a response from now on. Return False if it has none, or the one in use."""
        nonce, place = response.headers.get("DPoP-Nonce", ""), (_origin(response.request), is_own)
        if not 0 < len(nonce) <= _MAX_NONCE_CHARS or self._nonces.get(place) == nonce:
            return False
        self._nonces[place] = nonce
        return True


def wants_proofs(response: httpx2.Response) -> bool:
    """Return whether a server refuses a request because it wants a token that is bound to a key."""
    challenges = response.headers.get_list("WWW-Authenticate")
    return response.status_code == 401 and any(map(_CHALLENGE.search, challenges))


async def wants_nonce(response: httpx2.Response) -> bool:
    """Return whether a server refuses a proof because it has no nonce of the server, or an old one."""
    if response.status_code == 401:
        return 'error="use_dpop_nonce"' in response.headers.get("WWW-Authenticate", "")
    return response.status_code == 400 and (await _fields(response)).get("error") == "use_dpop_nonce"


async def unbound(response: httpx2.Response) -> httpx2.Response | None:
    """Return a response with a bound token as one with a bearer token, which the SDK reads; None for any other."""
    fields = await _fields(response)
    if str(fields.get("token_type")).lower() != "dpop":
        return None
    return httpx2.Response(response.status_code, json={**fields, "token_type": "Bearer"}, request=response.request)


async def _fields(response: httpx2.Response) -> Mapping[str, JsonValue]:
    try:
        return _OBJECT.validate_json(await response.aread())
    except ValueError:
        return {}


def _origin(request: httpx2.Request) -> str:
    return f"{request.url.scheme}://{request.url.netloc.decode()}"


def _encoded(value: Mapping[str, JsonValue]) -> str:
    return _base64(json.dumps(value, separators=(",", ":")).encode())


def _encoded_number(number: int) -> str:
    return _base64(number.to_bytes(_COORDINATE_BYTES))


def _base64(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")
