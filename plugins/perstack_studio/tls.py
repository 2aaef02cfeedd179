"""The certificate with which the studio speaks TLS itself, and the names by which browsers may call it then.

The names are the DNS names and addresses of the certificate's subjectAltName: a browser accepts the certificate for no
other, so no other is accepted as Host or Origin. A name with `*` is left out, since it does not name one server.
"""

from __future__ import annotations

import re
import ssl
import stat
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from perstack.errors import UsageError
from perstack.system.clock import Clock
from perstack.system.user import notice

_DNS_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")


def load_tls(cert_file: str, key_file: str, clock: Clock) -> tuple[ssl.SSLContext, tuple[str, ...]]:
    """Return the context for TLS 1.2 and newer, and the certificate's names, at least one.

    Raises UsageError, which names the option to change. Warns about a key that other users can read.
    """
    if not (cert_file and key_file):
        present, missing = ("--tls-cert", "--tls-key") if cert_file else ("--tls-key", "--tls-cert")
        raise UsageError(f"{present}: TLS needs a certificate and its key: write {missing} FILE too")
    certificate, key = _load_certificate(cert_file), _load_key(key_file)
    if certificate.public_key() != key.public_key():
        raise UsageError(f"--tls-key {key_file}: not the key of {cert_file}: name the one that it was made with")
    _check_dates(certificate, cert_file, clock)
    names = _names(certificate)
    if not names:
        raise UsageError(
            f"--tls-cert {cert_file}: its subjectAltName has no host name or address that a browser could open"
            " (names with * do not count): use a certificate for the studio's name"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(cert_file, key_file, password="")
    except OSError as error:  # also ssl.SSLError, such as for a key that is too short
        raise UsageError(f"--tls-cert {cert_file}: {error.strerror or error}") from error
    return context, names


def _load_certificate(file: str) -> x509.Certificate:
    """Return the server's certificate, the first of the file."""
    try:
        return x509.load_pem_x509_certificates(_read("--tls-cert", file))[0]
    except ValueError as error:
        raise UsageError(f"--tls-cert {file}: not a certificate in PEM format") from error


def _load_key(file: str) -> PrivateKeyTypes:
    try:
        return load_pem_private_key(_read("--tls-key", file), None)
    except TypeError as error:
        raise UsageError(f"--tls-key {file}: the key has a password: write it to a file without one") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(f"--tls-key {file}: not a private key in PEM format") from error


def _read(option: str, file: str) -> bytes:
    path = Path(file)
    try:
        if option == "--tls-key" and path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            notice(f"{option} {file}: other users of this machine can read the key: run `chmod 600` on it")
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{option} {file}: {error.strerror or error}") from error


def _check_dates(certificate: x509.Certificate, file: str, clock: Clock) -> None:
    now = datetime.fromtimestamp(clock.now() / 1000, UTC)
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if last < now:
        raise UsageError(f"--tls-cert {file}: expired on {last:%Y-%m-%d}: renew it")
    if first > now:
        raise UsageError(
            f"--tls-cert {file}: valid only from {first:%Y-%m-%d %H:%M} UTC: see whether the clock is right"
        )


def _names(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the host names and addresses of a certificate, in its order, as browsers write them in Host."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    names: list[str] = []
    for name in found:
        if isinstance(name, x509.DNSName) and _DNS_NAME.fullmatch(name.value.lower()):
            names.append(name.value.lower())
        elif isinstance(name, x509.IPAddress):
            names.append(str(name.value))
    return tuple(dict.fromkeys(names))
