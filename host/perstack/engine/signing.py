"""Ed25519 keys: signing with a project's own, and checking with a public one.

`cryptography` is imported when a key is read, which is never for a project without one. No error shows any of a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from perstack.core.dsse import Envelope, envelope_of, pae
from perstack.dataclass import dataclass
from perstack.errors import UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_MOST_BYTES = 1 << 16
FROM_FILE = "file:"
FROM_ENV = "env:"
_HOW = "make one with: openssl genpkey -algorithm ed25519 -out KEY.pem"


@dataclass(frozen=True, slots=True)
class Signer:
    """A private key."""

    key: Ed25519PrivateKey
    key_id: str

    def sign(self, payload_type: str, body: bytes) -> Envelope:
        """The envelope of these bytes."""
        return envelope_of(payload_type, body, self.key_id, self.key.sign(pae(payload_type, body)))


@dataclass(frozen=True, slots=True)
class PublicKey:
    """What signatures are checked with."""

    key: Ed25519PublicKey
    key_id: str
    """The SHA-256, in hex, of the key in DER (SubjectPublicKeyInfo)."""

    def has_signed(self, envelope: Envelope) -> bool:
        """Whether one of the signatures is by this key, over just this payload and its type."""
        from cryptography.exceptions import InvalidSignature

        for signature in envelope.signatures:
            try:
                self.key.verify(signature.value(), envelope.signed())
            except (InvalidSignature, ValueError):
                continue
            return True
        return False


def read_signer(setting: str, env: Mapping[str, str]) -> Signer:
    """The private key that `signingKey` names, with the variables of `env`. Raises UsageError if there is none."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    place, pem = _private_pem(setting, env)
    try:
        key = load_pem_private_key(pem, None)
    except (ValueError, TypeError):  # TypeError: it is encrypted
        raise UsageError(f"{place} is not an unencrypted private key in PEM; {_HOW}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"{place} is a key of another algorithm than Ed25519; {_HOW}")
    return Signer(key, _id_of(key.public_key()))


def read_public_key(path: Path) -> PublicKey:
    """A public key in PEM. Raises UsageError if there is none in that file."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    how = "write it with: openssl pkey -in KEY.pem -pubout -out PUBLIC.pem"
    try:
        key = load_pem_public_key(_read(path, f"the key {path}"))
    except ValueError:
        raise UsageError(f"the key {path} is not a public key in PEM; {how}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError(f"the key {path} is of another algorithm than Ed25519")
    return PublicKey(key, _id_of(key))


def key_file(setting: str | None) -> Path | None:
    """The file that `signingKey` names; None if it names none."""
    return Path(setting.removeprefix(FROM_FILE)) if setting is not None and setting.startswith(FROM_FILE) else None


def key_variable(setting: str | None) -> str | None:
    """The variable that `signingKey` names; None if it names none."""
    return setting.removeprefix(FROM_ENV) if setting is not None and setting.startswith(FROM_ENV) else None


def _private_pem(setting: str, env: Mapping[str, str]) -> tuple[str, bytes]:
    """Where the key is, in words, and its text."""
    file, variable = key_file(setting), key_variable(setting)
    if file is not None:
        place = f"[audit] signingKey {file}"
        return place, _read(file, place)
    place = f"[audit] signingKey {setting}"
    if variable is None:
        raise UsageError("[audit] signingKey: name a file, `file:PATH`, or a variable, `env:NAME`")
    if not env.get(variable):
        raise UsageError(f"{place}: there is no variable {variable}; set it to the key in PEM")
    # in a .env file a text of several lines may have been written with \n
    return place, env[variable].replace("\\n", "\n").encode()


def _read(path: Path, place: str) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES)
    except OSError as error:
        raise UsageError(f"{place} cannot be read: {error.strerror or type(error).__name__}") from None


def _id_of(key: Ed25519PublicKey) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
