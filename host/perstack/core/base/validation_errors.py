"""Translate pydantic's errors about values from outside into words for their sender."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from re import findall
from typing import cast

from pydantic_core import ErrorDetails

from perstack.core.base.text import did_you_mean

_KIND_BY_ERROR = {
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
_BOUND_MESSAGES = {
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
_MISSING_TYPES = {"missing", "missing_argument", "missing_positional_only_argument", "missing_keyword_only_argument"}
_UNKNOWN_TYPES = {"extra_forbidden", "unexpected_keyword_argument"}
_TYPES_WITH_NAME = _MISSING_TYPES | _UNKNOWN_TYPES


def path_in(value: object, loc: Sequence[int | str], *, names_missing: bool = False) -> tuple[int | str, ...]:
    """Return a pydantic error's path in a value, without branches of unions, which the value does not have.

    `names_missing` keeps the last part although the value does not have it.
    """
    path: list[int | str] = []
    for index, part in enumerate(loc):
        match value:
            case Mapping() if part in value:
                value = cast("Mapping[object, object]", value)[part]
            case list() | tuple() if isinstance(part, int) and part < len(cast("Sequence[object]", value)):
                value = cast("Sequence[object]", value)[part]
            case _ if not names_missing or index < len(loc) - 1:
                continue
            case _:
                pass
        path.append(part)
    return tuple(path)


def describe_errors(errors: Iterable[ErrorDetails], values: object, known: Collection[str] = ()) -> str:
    """Return a sentence for each wrong part of `values`, without its value; `known`: names allowed at the top."""
    by_path: dict[str, list[ErrorDetails]] = {}
    for error in errors:
        path = path_in(values, error["loc"] or ("",), names_missing=error["type"] in _TYPES_WITH_NAME)
        by_path.setdefault(".".join(map(str, path)), []).append(error)
    # An error inside a value is more precise than one about the whole value.
    innermost = {
        name: group for name, group in by_path.items() if not any(other.startswith(f"{name}.") for other in by_path)
    }
    return "; ".join(_sentence(name, group, known) for name, group in innermost.items())


def _sentence(name: str, errors: list[ErrorDetails], known: Collection[str]) -> str:
    subject = f"`{name}`" if name else "it"
    kinds = {error["type"] for error in errors}
    if kinds <= _MISSING_TYPES:
        return f"{subject} is missing"
    if kinds <= _UNKNOWN_TYPES:
        return f"there is no argument {subject}; {did_you_mean(name, known)}"
    choices = [choice for error in errors if error["type"] == "literal_error" for choice in _choices(error)]
    expected = [f"one of {', '.join(choices)}"] if choices else []
    expected += [_KIND_BY_ERROR[error["type"]] for error in errors if error["type"] in _KIND_BY_ERROR]
    if expected:
        return f"{subject} must be {' or '.join(dict.fromkeys(expected))}"
    first = errors[0]
    phrase = _BOUND_MESSAGES.get(first["type"], "{message}").format(message=_message(first), **first.get("ctx", {}))
    return f"{subject} {phrase}" if first["type"] in _BOUND_MESSAGES else f"{subject}: {phrase}"


def _choices(error: ErrorDetails) -> list[str]:
    return findall("'([^']*)'", str(error.get("ctx", {}).get("expected")))


def _message(error: ErrorDetails) -> str:
    return error["msg"].removeprefix("Value error, ")
