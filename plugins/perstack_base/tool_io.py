"""Arguments, which the host has checked against the tool's schema, as Python values."""

from __future__ import annotations

from perstack.core.base import JsonObject
from perstack.errors import SkillError


def text(args: JsonObject, name: str) -> str:
    """A string; the empty one if it is not given."""
    value = args.get(name, "")
    return value if isinstance(value, str) else ""


def encoded(args: JsonObject, name: str) -> bytes:
    """A string as UTF-8. Raises SkillError if it is not valid Unicode."""
    try:
        return text(args, name).encode()
    except UnicodeEncodeError as error:
        raise SkillError(f"{name} has a lone surrogate at character {error.start}; send valid Unicode") from error


def whole(args: JsonObject, name: str) -> int | None:
    """A whole number, also one that is written 3.0."""
    value = args.get(name)
    return int(value) if isinstance(value, int | float) else None


def flag(args: JsonObject, name: str, default: bool) -> bool:
    """A boolean."""
    value = args.get(name)
    return value if isinstance(value, bool) else default


def texts(args: JsonObject, name: str) -> list[str]:
    """The strings of a list."""
    value = args.get(name)
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def table(args: JsonObject, name: str) -> dict[str, str]:
    """An object's strings by their names."""
    value = args.get(name)
    return {key: item for key, item in value.items() if isinstance(item, str)} if isinstance(value, dict) else {}
