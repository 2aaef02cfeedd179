"""Values of command-line arguments: texts, JSON, files, stdin, and times.

Functions import what they need, so that `--help` loads none of it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perstack.core.base.text import parse_span
from perstack.doors.shared.text import shorten
from perstack.errors import UsageError
from perstack.system.clock import SYSTEM
from perstack.system.files import system_reason

if TYPE_CHECKING:
    from pydantic import JsonValue

    from perstack.core.base.records import JsonObject

MAX_INPUT_BYTES = 16 << 20  # maximum bytes of a file or of stdin


def read_text(text: str) -> str:
    """Return the text, or stdin for `-`, with invalid UTF-8 replaced. Raises UsageError if it is too long."""
    return _stdin("stdin").decode("utf-8", "replace") if text == "-" else text


def read_query(text: str | None, otherwise: str = "") -> str:
    """Return the text, or stdin for `-` or no text. Raises UsageError if it is empty or stdin is a terminal.

    `otherwise` is added to the error for a missing text: what to do without one.
    """
    if text is None and sys.stdin is not None and sys.stdin.isatty():  # pyright: ignore[reportUnnecessaryComparison]
        raise UsageError(f"QUERY is missing: type one, or pipe it to stdin{otherwise}")
    from perstack.core.jobs.job_choice import check_query

    query = read_text("-" if text is None else text)
    return check_query(query, otherwise)


def _read_value(text: str | None, name: str) -> JsonValue:
    """Return a JSON value: as typed, from `@FILE`, or from stdin for `-`; None without text. Raises UsageError."""
    if text is None:
        return None
    return _json(_read_content(text, name), name, "give JSON, @FILE, or - for stdin")


def read_object(text: str | None, name: str) -> JsonObject | None:
    """Return a JSON object, read as `_read_value` does. Raises UsageError for any other value."""
    value = _read_value(text, name)
    if value is not None and not isinstance(value, dict):
        raise UsageError(f"{name} must be a JSON object")
    return value


def read_answer(text: str | None, name: str) -> JsonValue:
    """Return a JSON value, read as `_read_value` does, or the text itself if it is not JSON. Raises UsageError."""
    if text is None or text.startswith("@") or text == "-":
        return _read_value(text, name)
    if text.startswith("{"):
        return _json(_bytes(text), name, "give JSON, @FILE, or a text that does not begin like JSON")
    from perstack.core.base.records import read_json

    try:
        return read_json(_bytes(text))
    except ValueError:
        return text


def read_error(text: str, name: str) -> str | JsonObject:
    """Return a text, or a JSON object if the text begins with `{`. Raises UsageError."""
    value = read_answer(text, name) if text.startswith("{") else text
    return value if isinstance(value, dict) else text


def read_schema(file: str) -> JsonObject:
    """Return the result schema in a file. Raises UsageError if it cannot be read or used."""
    from perstack.core.schemas.result_schemas import parse_result_schema, schema_fault

    text = _read_content(f"@{file}", "--output-schema").decode("utf-8-sig", "replace")
    try:
        schema = parse_result_schema(text)
    except ValueError as error:
        raise UsageError(f"--output-schema: {file} {error}") from error
    fault = schema_fault(schema)
    if fault is not None:
        raise UsageError(f"--output-schema: {file} {fault}")
    return schema


def json_on_stdin(remedy: str) -> JsonValue:
    """Return the JSON on stdin. Raises UsageError with the remedy if it is invalid."""
    return _json(_stdin("stdin"), "stdin", remedy)


def _json(data: bytes, name: str, remedy: str) -> JsonValue:
    from perstack.core.base.records import read_json

    try:
        return read_json(data)
    except ValueError as error:
        raise UsageError(f"{name} is not JSON: {error}; {remedy}") from error


def _read_content(text: str, name: str) -> bytes:
    if text == "-":
        return _stdin(name)
    if not text.startswith("@"):
        return _bytes(text)
    from perstack.toml_reader.source import NotRead, read_bounded

    try:
        return read_bounded(Path(text[1:]), MAX_INPUT_BYTES)
    except NotRead as error:
        raise UsageError(f"{name}: {text[1:]} {error}") from error
    except OSError as error:
        raise UsageError(f"{name}: {text[1:]}: {system_reason(error)}") from error


def _stdin(name: str) -> bytes:
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]  # None if the process was started without stdin (`<&-`)
        return b""
    data = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
    if len(data) > MAX_INPUT_BYTES:
        raise UsageError(f"{name}: stdin has more than {MAX_INPUT_BYTES >> 20} MiB: give less, or a file's path")
    return data


def _bytes(text: str) -> bytes:
    # Python represents bytes of the command line that are not UTF-8 as lone surrogates
    return text.encode("utf-8", "surrogateescape")


# Durations and moments, in milliseconds; moments since 1970.

_ECHO_CELLS = 40  # maximum cells of the typed text in an error


def read_span(text: str, name: str) -> int:
    """Return the milliseconds of `90s`, `5m`, `2h`, `7d`. Raises UsageError."""
    try:
        return parse_span(text)
    except ValueError as error:
        raise UsageError(f"{name} {shorten(text, _ECHO_CELLS)}: give a duration such as 90s, 5m, 2h or 7d") from error


def read_since(text: str, name: str) -> int:
    """Return the moment of `2026-11-30`, or of a time ago such as `7d` or `2w`. Raises UsageError."""
    weeks = re.fullmatch(r"(\d{1,6})w", text)
    try:
        return _epoch_ms(text)
    except ValueError:
        try:
            return SYSTEM.now() - (int(weeks[1]) * _WEEK_MS if weeks else parse_span(text))
        except ValueError as error:
            remedy = "write a date such as 2026-11-30, or a time ago such as 7d"
            raise UsageError(f"{name} {shorten(text, _ECHO_CELLS)}: {remedy}") from error


def read_moment(text: str, name: str) -> int:
    """Return the moment of `+5m`, `2026-11-22T08:00` or a number. Raises UsageError."""
    if re.fullmatch(r"[0-9]{1,15}", text):
        return int(text)
    if text.startswith("+"):
        return SYSTEM.now() + read_span(text[1:], name)
    try:
        return _epoch_ms(text)
    except ValueError as error:
        excerpt = shorten(text, _ECHO_CELLS)
        raise UsageError(f"{name} {excerpt}: give a moment such as +5m or 2026-11-22T08:00") from error


_WEEK_MS = 7 * 86_400_000


def _epoch_ms(text: str) -> int:
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except OverflowError as error:
        raise ValueError(str(error)) from error


# Parameter types.


class _ReadType(click.ParamType[object]):
    def __init__(self, name: str, read: Callable[[str, str], object]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        if not isinstance(value, str) or not value or param is None:
            return value  # an empty value is refused with a common message
        is_option = param.param_type_name == "option"
        return self._read(value, param.opts[0] if is_option else param.metavar or (param.name or "").upper())


STATE = _ReadType("json", read_object)
ANSWER = _ReadType("answer", read_answer)
ERROR = _ReadType("error", read_error)
SPAN = _ReadType("time", read_span)
SINCE = _ReadType("time", read_since)
MOMENT = _ReadType("time", read_moment)
