"""Classification of errors of the server and the connection: whether to retry, and which message to show."""

from __future__ import annotations

import psycopg

from perstack_postgres.address import Address, without_secrets

_PASSING = {"57P01", "57P02", "57P03", "57P05", "25P03", "53300", "40001", "40P01", "55P03"}
"""SQLSTATEs of transient failures: shutdown or start, idle timeout, no free connection, deadlock, locked table."""

_REMEDIES = {
    "42501": "give the role its rights on the schema (docs/storages.md)",
    "53100": "the server's disk is full: free some space, then resume",
    "57014": "the server gave up after its time limit: look for what keeps it busy",
    "55P03": "another process keeps it locked: try again when it is done",
    "25006": "this server takes no writes: name the primary",
    "3D000": "make the database, or name another in `{setting}`",
}


_POOLING = "pooling mode"
_LASTING = (_POOLING, "certificate", "does not support SSL")
"""Texts of permanent failures that carry the SQLSTATE of a lost connection or none."""

_THERE = ("starting up", "not yet accepting", "shutting down", "too many clients", "connection slots")

FAILURES = (psycopg.Error, TimeoutError, OSError)
"""Exceptions that an attempt may fail with."""


def is_passing(error: BaseException) -> bool:
    """Return whether the operation may succeed soon on another connection."""
    if isinstance(error, TimeoutError | OSError):
        return True
    if isinstance(error, psycopg.Error) and not any(words in str(error) for words in _LASTING):
        code = error.sqlstate
        return code in _PASSING or (code or "").startswith("08") or (code is None and _is_of_connection(error))
    return False


def is_there(error: BaseException) -> bool:
    """Return whether a server refused the connection because it is starting, stopping or busy."""
    return any(words in str(error) for words in _THERE)


def _is_of_connection(error: psycopg.Error) -> bool:
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)


def reason(address: Address, error: BaseException) -> str:
    """Return the server's message and the remedy on one line."""
    if isinstance(error, TimeoutError):
        return "no answer in time: see whether the server runs and can be reached"
    code = error.sqlstate if isinstance(error, psycopg.Error) else None
    text = _words(address, error)
    if code in _REMEDIES:
        return f"{text}: {_REMEDIES[code].format(setting=address.setting)}"
    if code is None or code.startswith(("08", "28")):
        return f"{text}: {_how_to_reach(text).format(setting=address.setting)}"
    return text


def _words(address: Address, error: BaseException) -> str:
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    text = without_secrets(address, primary or str(error) or type(error).__name__)
    return text.removeprefix("connection failed: ").removesuffix(".")[:500]


def _how_to_reach(text: str) -> str:
    if _POOLING in text:
        return "set `pool_mode = session` (pgbouncer) for this database, or connect to the server itself"
    if "password" in text or "authentication" in text or "pg_hba" in text:
        return "give its password by a variable in `{setting}`, PGPASSWORD or ~/.pgpass"
    if "certificate" in text or "SSL" in text:
        return "see `sslmode` and `sslrootcert` in docs/storages.md"
    if "does not exist" in text:
        return "make it, or name another in `{setting}`"
    return "see whether the server runs and can be reached"
