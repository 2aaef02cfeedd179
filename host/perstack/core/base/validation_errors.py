"""Translate pydantic's errors about values from outside into words for their sender."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from re import findall
from typing import cast

from pydantic_core import ErrorDetails

_MUST_BE = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "list_type": "a list",
    "tuple_type": "a list",
    "none_required": "null",
}
_BOUNDS = {
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "greater_than": "must be more than {gt}",
    "less_than": "must be less than {lt}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "is not of the form {pattern}",
    "json_invalid": "is not JSON: {error}",
    "invalid-json-value": "is not a JSON value",
}
_MISSING = {"missing", "missing_argument", "missing_positional_only_argument", "missing_keyword_only_argument"}
_STRAY = {"extra_forbidden", "unexpected_keyword_argument"}
_NAMES_ITSELF = _MISSING | _STRAY


def in_words(errors: Iterable[ErrorDetails], given: object, known: Collection[str] = ()) -> str:
    """Return one line on each wrong value of `given`, without the values; `known`: names allowed at its top level."""
    found: dict[str, list[ErrorDetails]] = {}
    for one in errors:
        found.setdefault(_name(one, given), []).append(one)
    # An error inside a value is more precise than one about the whole value.
    inner = {name: those for name, those in found.items() if not any(other.startswith(f"{name}.") for other in found)}
    return "; ".join(_sentence(name, those, known) for name, those in inner.items())


def _name(error: ErrorDetails, given: object) -> str:
    """Return the path to a value, without pydantic's union branches, which the sender does not know."""
    way: list[str] = []
    value, (*above, last) = given, error["loc"] or ("",)
    for part in (*above, last):
        match value:
            case Mapping() if part in value:
                value = cast("Mapping[object, object]", value)[part]
            case list() | tuple() if isinstance(part, int) and part < len(cast("Sequence[object]", value)):
                value = cast("Sequence[object]", value)[part]
            case _ if part is not last or error["type"] not in _NAMES_ITSELF:
                continue
            case _:
                pass
        way.append(str(part))
    return ".".join(way)


def _sentence(name: str, errors: list[ErrorDetails], known: Collection[str]) -> str:
    place = f"`{name}`" if name else "it"
    kinds = {error["type"] for error in errors}
    if kinds <= _MISSING:
        return f"{place} is missing"
    if kinds <= _STRAY:
        near = get_close_matches(name, list(known), n=1, cutoff=0.6)
        return f"there is no argument {place}; " + (
            f"did you mean `{near[0]}`?" if near else f"there are: {', '.join(known)}"
        )
    choices = [choice for error in errors if error["type"] == "literal_error" for choice in _choices(error)]
    wanted = [f"one of {', '.join(choices)}"] if choices else []
    wanted += [_MUST_BE[error["type"]] for error in errors if error["type"] in _MUST_BE]
    if wanted:
        return f"{place} must be {' or '.join(dict.fromkeys(wanted))}"
    first = errors[0]
    words = _BOUNDS.get(first["type"], "{message}").format(message=_message(first), **first.get("ctx", {}))
    return f"{place} {words}" if first["type"] in _BOUNDS else f"{place}: {words}"


def _choices(error: ErrorDetails) -> list[str]:
    return findall("'([^']*)'", str(error.get("ctx", {}).get("expected")))


def _message(error: ErrorDetails) -> str:
    return error["msg"].removeprefix("Value error, ")
