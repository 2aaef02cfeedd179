"""Rules for single values of a definition: each says in words what is wrong with one, or None if nothing is."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from math import isfinite

from pydantic import JsonValue

from perstack.core.base import JsonObject

EXPERT_KEY = r"^(@[a-z0-9][a-z0-9._-]*/)?[a-zA-Z0-9][a-zA-Z0-9._-]*$"
"""A valid Expert key without its version: `name` or `@org/name`."""

RUNTIME_LEVEL = (1, 0, 0)
"""What `minRuntimeVersion` is compared with: the level of the original's runtime, not this package's version."""

_MAX_NAME = 255
_VERSION = r"(?a)(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)(?:-[\w.-]+)?(?:\+[\w.-]+)?"
_LEVEL = r"(?a)v?(\d+)(?:\.(\d+))?(?:\.(\d+))?(?:[-+][0-9A-Za-z.+-]+)?"
_ENTRY = r"\w+(\.\w+)*:\w+(\.\w+)*"
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_DOMAIN = rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*"
_VARIABLE = r"env:[A-Za-z_][A-Za-z0-9_]*"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def key_and_version(key: str) -> tuple[str, str | None]:
    """`name@version` taken apart; the `@` of a scope stands first and starts no version."""
    name, separator, version = key.rpartition("@")
    return (name, version) if separator and name else (key, None)


def wrong_expert_key(key: str) -> str | None:
    if re.fullmatch(EXPERT_KEY, key) and len(key) <= _MAX_NAME:
        return None
    name, version = key_and_version(key)
    if version is not None and re.fullmatch(EXPERT_KEY, name):
        return f'an Expert\'s key has no version in it: name it `{name}` and write version = "{version}"'
    if len(key) > _MAX_NAME:
        return f"an Expert's key has at most {_MAX_NAME} characters, this one {len(key)}"
    return (
        "is not a valid Expert key: `name` or `@org/name`, of letters, digits, `.`, `_` and `-`,"
        " a letter or digit first"
    )


def wrong_version(version: str) -> str | None:
    return None if re.fullmatch(_VERSION, version) else f'must be a semantic version such as "1.0.0", not "{version}"'


def wrong_runtime_level(wanted: str) -> str | None:
    level = re.fullmatch(_LEVEL, wanted)
    if level is None:
        return f'must be a version such as "v1.0", not "{wanted}"'
    if tuple(int(part or 0) for part in level.groups()) > RUNTIME_LEVEL:
        here = ".".join(map(str, RUNTIME_LEVEL[:2]))
        return f"needs a runtime of {wanted}, this one is v{here}: install a newer one"
    return None


def wrong_domain(domain: str) -> str | None:
    if not re.fullmatch(_DOMAIN, domain):
        return "is not a domain: write `example.com`, or `*.example.com` for all below it"
    # a look-alike name in punycode reads like another one
    if any(part.casefold().startswith("xn--") for part in domain.split(".")):
        return "must not be punycode (xn--): only plain ASCII domains are taken"
    return None


def wrong_issuer(issuer: str) -> str | None:
    is_address = issuer.startswith(("https://", "http://"))
    return None if is_address else "must be an address such as https://auth.example.com"


def wrong_entry(entry: str) -> str | None:
    return None if re.fullmatch(_ENTRY, entry) else f'must be "package.module:function", not "{entry}"'


def wrong_number(number: float) -> str | None:
    return None if isfinite(number) else "must be a finite number"


def wrong_budget(dollars: float) -> str | None:
    return None if isfinite(dollars) and 0 < dollars <= 1_000_000_000 else "must be US dollars, more than 0"


def wrong_price(dollars: float) -> str | None:
    return None if isfinite(dollars) and 0 <= dollars <= 1_000_000 else "must be US dollars for a million tokens"


def wrong_anchor(anchor: str | Sequence[str]) -> str | None:
    from urllib.parse import urlsplit  # few definitions have an anchor

    if not isinstance(anchor, str):
        return None if anchor and anchor[0] else "names no program: the first item of the list is what is run"
    if anchor.startswith("file:"):
        return None if anchor != "file:" else "names no file: write `file:PATH`"
    if not anchor.startswith(("https://", "http://")):
        return 'must be `file:PATH`, an `https://` address, or a program as a list: ["program", "argument"]'
    try:
        address = urlsplit(anchor)
        host = address.hostname
        has_user = address.username is not None or address.password is not None
    except ValueError:
        return "is not an address"
    if has_user:
        return "must not have a user or a password in it: let a program send, which knows where to find them"
    if address.scheme == "http" and host not in _LOOPBACK:
        return "must be `https://`: what is sent in the clear can be changed on its way"
    return None if host else "is not an address: the host is missing"


def wrong_key(key: str) -> str | None:
    """The text itself is never shown: it may be a key."""
    if re.fullmatch(_VARIABLE, key) or (key.startswith("file:") and key != "file:"):
        return None
    return "must name a file, `file:PATH`, or a variable, `env:NAME`: the key itself does not belong here"


def schema_of(text: str) -> JsonObject:
    """The JSON schema of an object that a text holds. Raises ValueError that says what is wrong with the text."""
    try:
        schema: JsonValue = json.loads(text)
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from error
    except RecursionError:
        raise ValueError("is nested too deep: make it flatter") from None
    if not isinstance(schema, dict):
        raise ValueError('must be the JSON schema of an object: write {"type": "object", …}')
    if schema.get("type", "object") != "object":
        raise ValueError(f'must be the schema of an object: write "type": "object", not {json.dumps(schema["type"])}')
    return {"type": "object", **schema}
