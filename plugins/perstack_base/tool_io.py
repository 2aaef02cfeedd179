"""Arguments of tools as Python values, already validated against the schema, and results as compact JSON.

Results are compact because every later request is charged for them.
"""

from __future__ import annotations

import json

from perstack.core.base.records import JsonObject
from perstack.errors import SkillError
from perstack.ports.skill import ToolResult

compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Encode a value as JSON without spaces."""


def answer(value: JsonObject, *, is_error: bool = False) -> ToolResult:
    """Return a result that is one JSON object."""
    return ToolResult.text(compact(value), is_error=is_error)


def text(args: JsonObject, name: str) -> str:
    """Return a string argument; empty if it is missing."""
    value = args.get(name, "")
    return value if isinstance(value, str) else ""


def utf8(args: JsonObject, name: str) -> bytes:
    """Return a string argument as UTF-8. Raises SkillError for invalid Unicode."""
    try:
        return text(args, name).encode()
    except UnicodeEncodeError as error:
        raise SkillError(f"{name} has a lone surrogate at character {error.start}; send valid Unicode") from error


def integer(args: JsonObject, name: str) -> int | None:
    """Return an integer argument, also if it is written 3.0; None if it is missing."""
    value = args.get(name)
    return int(value) if isinstance(value, int | float) else None


def boolean(args: JsonObject, name: str, default: bool) -> bool:
    """Return a boolean argument, or the default."""
    value = args.get(name)
    return value if isinstance(value, bool) else default


def strings(args: JsonObject, name: str) -> list[str]:
    """Return the strings of a list argument."""
    value = args.get(name)
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def string_map(args: JsonObject, name: str) -> dict[str, str]:
    """Return the string values of an object argument by name."""
    value = args.get(name)
    return {key: item for key, item in value.items() if isinstance(item, str)} if isinstance(value, dict) else {}
