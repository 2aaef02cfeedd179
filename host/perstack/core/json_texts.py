"""The texts in a JSON value."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pydantic import JsonValue

from perstack.core.base import JsonObject


def texts_in(value: JsonValue) -> Iterator[str]:
    """Every text, in order; names of keys are none."""
    match value:
        case str():
            yield value
        case list():
            for inner in value:
                yield from texts_in(inner)
        case dict():
            for inner in value.values():
                yield from texts_in(inner)
        case _:
            return


def with_texts(table: JsonObject, change: Callable[[str], str]) -> JsonObject:
    """The same object with each text changed."""
    return {name: _changed(inner, change) for name, inner in table.items()}


def _changed(value: JsonValue, change: Callable[[str], str]) -> JsonValue:
    match value:
        case str():
            return change(value)
        case list():
            return [_changed(inner, change) for inner in value]
        case dict():
            return with_texts(value, change)
        case _:
            return value
