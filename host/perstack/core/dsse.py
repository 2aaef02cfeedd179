"""DSSE, the envelope that signatures are put in: what is signed, and the envelope's JSON.

Source: https://github.com/secure-systems-lab/dsse, protocol and envelope of version 1.0.2. Keys are not known here.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode

from pydantic import Field

from perstack.core.base import Fact


class Signature(Fact):
    """One signature over `pae` of an envelope's payload."""

    keyid: str = ""
    """Which key made it: a hint, which is not signed."""
    sig: str
    """Base64."""

    def value(self) -> bytes:
        """The signature itself. Raises ValueError."""
        return _decoded(self.sig)


class Envelope(Fact):
    """Bytes, what they are, and signatures over both."""

    payload: str
    """Base64."""
    payload_type: str
    signatures: tuple[Signature, ...] = Field(min_length=1)

    def body(self) -> bytes:
        """The payload itself. Raises ValueError."""
        return _decoded(self.payload)

    def signed(self) -> bytes:
        """What the signatures are over. Raises ValueError."""
        return pae(self.payload_type, self.body())


def pae(payload_type: str, body: bytes) -> bytes:
    """The pre-authentication encoding: what is signed, in which neither part can pass for the other."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(body), body)


def envelope_of(payload_type: str, body: bytes, keyid: str, signature: bytes) -> Envelope:
    """The envelope with one signature, which is over `pae(payload_type, body)`."""
    signed = Signature(keyid=keyid, sig=b64encode(signature).decode())
    return Envelope(payload=b64encode(body).decode(), payload_type=payload_type, signatures=(signed,))


def _decoded(text: str) -> bytes:
    """Base64 in either alphabet, as the standard wants readers to take it."""
    try:
        return b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ValueError("it is not base64") from error
