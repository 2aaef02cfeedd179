"""Database addresses: the part for libpq, and the part that may be shown.

Only hosts, database and schema are shown. Parts that are not understood are hidden, because they may be an unescaped
password, and so is the user, which may be a pasted key.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from perstack.dataclass import dataclass
from perstack.errors import UsageError

DEFAULT_SCHEMA = "perstack"
_HOSTS = re.compile(r"(?:(?:[\w.%~-]*|\[[0-9A-Fa-f:.%]+\])(?::\d*)?)(?:,(?:[\w.%~-]*|\[[0-9A-Fa-f:.%]+\])(?::\d*)?)*")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_DISPLAYED_SETTINGS = ("host", "port", "dbname")
_FORM = "write it as postgresql://USER:PASSWORD@HOST/DATABASE, with %-escapes for special characters in a password"


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """Parsed address of a database."""

    conninfo: str  # connection URI for libpq; may contain a password
    schema: str
    display_url: str  # address for messages, without user and password
    users: tuple[str, ...]  # user names of the address, as messages of the server may quote them
    secrets: tuple[str, ...]  # passwords of the address, longest first, to be removed from messages of other programs
    setting_names: frozenset[str]  # names of the libpq settings in the address
    setting: str = "storage"  # configuration setting that contains the address, for messages


def parse(location: str, setting: str = "storage") -> PostgresAddress:
    """Parse an address without its scheme. Raises UsageError, whose message shows no part of the address."""
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
        raise UsageError(
            f"{setting}: `schema` in the address must have up to 40 of a-z, 0-9 and _, and not begin with pg_"
        )
    user, _, password = userinfo.partition(":")
    libpq_query = [(name, value) for name, value in query if name != "schema"]
    secrets = {value for name, value in libpq_query if name not in _DISPLAYED_SETTINGS and "pass" in name}
    secrets |= {password, unquote(password)}
    names = {name for name, _ in libpq_query}
    users = {unquote(user), *(value for name, value in libpq_query if name == "user")}
    displayed_query = [(name, value) for name, value in libpq_query if name in _DISPLAYED_SETTINGS]
    return PostgresAddress(
        conninfo=parts._replace(query=urlencode(libpq_query, quote_via=quote)).geturl(),
        schema=schema,
        display_url=_display_address(hosts, database, displayed_query, schema),
        users=tuple(filter(None, users)),
        secrets=tuple(sorted(filter(None, secrets), key=len, reverse=True)),
        setting_names=frozenset(names),
        setting=setting,
    )


def _display_address(hosts: str, database: str, query: list[tuple[str, str]], schema: str) -> str:
    if schema != DEFAULT_SCHEMA:
        query = [*query, ("schema", schema)]
    ending = "?" + urlencode(query, safe="/", quote_via=quote) if query else ""
    return f"postgresql://{hosts}/{database}{ending}"


def without_secrets(address: PostgresAddress, text: str) -> str:
    """Return a message of the server or driver on one line, with users and passwords of the address masked."""
    for secret in address.secrets:
        text = text.replace(secret, "***")
    for user in address.users:
        text = re.sub(rf'\b(user|role|user name) "{re.escape(user)}"', r'\1 "***"', text)
    return " ".join(text.split())
