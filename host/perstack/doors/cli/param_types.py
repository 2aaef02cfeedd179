"""What is given to a command as JSON or as text: typed, in a file, or on stdin."""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic import JsonValue

from perstack.config.toml import NotRead, read_bounded
from perstack.core.base import JsonObject
from perstack.core.json_reading import read_json
from perstack.core.results import result_schema_of, schema_fault
from perstack.errors import UsageError

MOST = 16 << 20
"""Bytes of a file, or of stdin."""


def given_text(text: str) -> str:
    """The text, or stdin for `-`. What is not UTF-8 is replaced. Raises UsageError if there is too much of it."""
    return _stdin("stdin").decode("utf-8", "replace") if text == "-" else text


def given_query(text: str | None) -> str:
    """The text, or stdin for `-` and where nothing was typed. Raises UsageError if it is empty, or nobody pipes any."""
    if text is None and sys.stdin is not None and sys.stdin.isatty():  # pyright: ignore[reportUnnecessaryComparison]
        raise UsageError("there is no QUERY: type one, or pipe it to stdin")
    query = given_text("-" if text is None else text)
    if not query.strip():
        raise UsageError("QUERY is empty: say what is to be done")
    return query


def given_json(text: str | None, what: str) -> JsonValue:
    """A JSON value: as typed, from `@FILE`, or from stdin by `-`. Raises UsageError."""
    if text is None:
        return None
    return _json(_given(text, what), what, "give JSON, @FILE, or - for stdin")


def given_object(text: str | None, what: str) -> JsonObject | None:
    """The same for a JSON object."""
    value = given_json(text, what)
    if value is not None and not isinstance(value, dict):
        raise UsageError(f"{what} must be a JSON object")
    return value


def given_answer(text: str | None, what: str) -> JsonValue:
    """The same for what may also be plain words."""
    if text is None or text.startswith("@") or text == "-":
        return given_json(text, what)
    if text.startswith("{"):
        return _json(_bytes(text), what, "give JSON, a text that begins with something else, or @FILE")
    try:
        return read_json(_bytes(text))
    except ValueError:
        return text


def given_error(text: str, what: str) -> str | JsonObject:
    """Plain words, or a JSON object. Raises UsageError."""
    value = given_answer(text, what) if text.startswith("{") else text
    return value if isinstance(value, dict) else text


def given_schema(file: str) -> JsonObject:
    """The schema of a result in a file. Raises UsageError for what cannot be read, or be used."""
    text = _given(f"@{file}", "--output-schema").decode("utf-8-sig", "replace")
    try:
        schema = result_schema_of(text)
    except ValueError as error:
        raise UsageError(f"--output-schema: {file} {error}") from error
    fault = schema_fault(schema)
    if fault is not None:
        raise UsageError(f"--output-schema: {file} {fault}")
    return schema


def json_on_stdin(remedy: str) -> JsonValue:
    """The JSON on stdin. Raises UsageError, with the remedy, if there is none."""
    return _json(_stdin("stdin"), "stdin", remedy)


def _json(data: bytes, what: str, remedy: str) -> JsonValue:
    try:
        return read_json(data)
    except ValueError as error:
        raise UsageError(f"{what} is not JSON: {error}; {remedy}") from error


def _given(text: str, what: str) -> bytes:
    if text == "-":
        return _stdin(what)
    if not text.startswith("@"):
        return _bytes(text)
    try:
        return read_bounded(Path(text[1:]), MOST)
    except NotRead as error:
        raise UsageError(f"{what}: {text[1:]} {error}") from error
    except OSError as error:
        raise UsageError(f"{what}: {text[1:]}: {(error.strerror or str(error)).lower()}") from error


def _stdin(what: str) -> bytes:
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]  # the process was started without it (`<&-`)
        return b""
    data = sys.stdin.buffer.read(MOST + 1)
    if len(data) > MOST:
        raise UsageError(f"{what}: stdin has more than {MOST >> 20} MiB: give less, or a file's path")
    return data


def _bytes(typed: str) -> bytes:
    # Python shows bytes of the command line that are not UTF-8 as halves of characters
    return typed.encode("utf-8", "surrogateescape")
