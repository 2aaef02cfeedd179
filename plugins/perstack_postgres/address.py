"""Addresses of databases: what is given to libpq, and what of it is shown.

What is shown has the user, the hosts, the database and the schema, and nothing else: no part of an address that is not
understood is shown either, for it may be a password that was not escaped.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from perstack.dataclass import dataclass
from perstack.errors import UsageError

DEFAULT_SCHEMA = "perstack"
_HOSTS = re.compile(r"(?:(?:[\w.%~-]*|\[[0-9A-Fa-f:.%]+\])(?::\d*)?)(?:,(?:[\w.%~-]*|\[[0-9A-Fa-f:.%]+\])(?::\d*)?)*")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_SHOWN = ("host", "port", "dbname", "user")
_FORM = "write it as postgresql://USER:PASSWORD@HOST/DATABASE, with %-escapes for what is special in a password"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a store is."""

    conninfo: str
    """For libpq. It may have a password."""
    schema: str
    shown: str
    """For people: no password."""
    secrets: tuple[str, ...]
    """What must not be shown, as it may stand in messages of others."""
    given: frozenset[str]
    """The settings of libpq that it names."""
    setting: str = "storage"
    """Where a person writes it."""


def parse(location: str, setting: str = "storage") -> Address:
    """The address whose scheme is followed by `location`. Raises UsageError, which shows nothing of it."""
    try:
        parts = urlsplit("postgresql:" + location)
        query = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise UsageError(f"{setting}: this is not the address of a PostgreSQL database: {_FORM}") from None
    userinfo, _, hosts = parts.netloc.rpartition("@")
    database = parts.path.removeprefix("/")
    is_whole = location.startswith("//") and not parts.fragment and "\0" not in unquote(location)
    if not is_whole or not _HOSTS.fullmatch(hosts) or re.search(r"[/@:]", database) or "@" in userinfo:
        raise UsageError(f"{setting}: this is not the address of a PostgreSQL database: {_FORM}")
    schema = dict(query).get("schema", DEFAULT_SCHEMA)
    if not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
        raise UsageError(f"{setting}: `schema` in the address is to be of a-z, 0-9 and _, at most 40, and not `pg_…`")
    user, _, password = userinfo.partition(":")
    kept = [(name, value) for name, value in query if name != "schema"]
    secrets = {value for name, value in kept if name not in _SHOWN and "pass" in name} | {password, unquote(password)}
    given = {name for name, _ in kept}
    return Address(
        conninfo=parts._replace(query=urlencode(kept, quote_via=quote)).geturl(),
        schema=schema,
        shown=_shown(user, hosts, database, [(name, value) for name, value in kept if name in _SHOWN], schema),
        secrets=tuple(sorted((one for one in secrets if one), key=len, reverse=True)),
        given=frozenset(given),
        setting=setting,
    )


def _shown(user: str, hosts: str, database: str, query: list[tuple[str, str]], schema: str) -> str:
    if schema != DEFAULT_SCHEMA:
        query = [*query, ("schema", schema)]
    ending = "?" + urlencode(query, safe="/", quote_via=quote) if query else ""
    return f"postgresql://{user + '@' if user else ''}{hosts}/{database}{ending}"


def without_secrets(address: Address, text: str) -> str:
    """A message of somebody else, on one line, with nothing of the address that is secret."""
    for secret in address.secrets:
        text = text.replace(secret, "***")
    return " ".join(text.split())
