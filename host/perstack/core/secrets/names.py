"""Recognise names of variables, options and keys whose values are secrets."""

from __future__ import annotations

import re

_SECRET_WORDS = frozenset(
    ("token", "secret", "password", "passwd", "passphrase", "passcode", "pass", "pwd", "pw", "psk", "apikey",
     "authorization", "bearer", "credential", "credentials", "cookie", "pat")
)  # fmt: skip

_SECRET_ENDINGS = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "apikey",
    "secretkey",
    "accesskey",
    "privatekey",
)

_KEY_QUALIFIERS = frozenset(
    ("api", "access", "account", "app", "auth", "encryption", "hmac", "license", "master", "preshared", "private",
     "secret", "service", "shared", "signing", "subscription", "x")
)  # fmt: skip

# variables for the current and previous folder, which are not passwords
_FOLDER_VARIABLES = frozenset(("PWD", "OLDPWD"))

_PAGINATION_WORDS = frozenset(("page", "next", "continuation", "sync", "start", "pagination", "nextpage"))


def is_secret_name(name: str) -> bool:
    """Return True if the last words of a name denote a secret: `--api-key`, `GITHUB_TOKEN`, not `--token-file`."""
    words = [word.casefold() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]
    if not words:
        return False
    if words[-2:] == ["key", "base"]:  # SECRET_KEY_BASE, of Rails
        words = words[:-1]
    is_key = words[-1] == "key" and len(words) > 1 and words[-2] in _KEY_QUALIFIERS
    return is_key or words[-1] in _SECRET_WORDS or words[-1].endswith(_SECRET_ENDINGS)


def is_set_secret(name: str) -> bool:
    """Return True if what a program or file assigns to this name is a secret."""
    words = [word.casefold() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name[-100:])]
    if name in _FOLDER_VARIABLES or (len(words) > 1 and words[-1] == "token" and words[-2] in _PAGINATION_WORDS):
        return False
    return is_secret_name(name[-100:]) or (name.isupper() and name.endswith("_AUTH"))
