"""What all models of the core share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from operator import not_
from typing import TypeVar, cast

from pydantic import BaseModel, ConfigDict, JsonValue
from pydantic.alias_generators import to_camel

_HALF = "[\ud800-\udfff]"

JsonObject = dict[str, JsonValue]
"""A JSON object, as it came or as it will be sent."""


falsy = not_
"""For `Field(exclude_if=falsy)`: zero, false and empty are not written, to keep lines short."""


class Fact(BaseModel):
    """An immutable record: camelCase in JSON, snake_case in Python.

    Unknown keys are ignored, so that a log written by a newer version still opens. Modules with many of them do without
    `from __future__ import annotations`: pydantic compiles each annotation that is text, at each start.
    """

    # a name that many models have is made into camelCase once, and checked against no names of pydantic's own
    model_config = ConfigDict(
        alias_generator=cache(to_camel),
        populate_by_name=True,
        extra="ignore",
        defer_build=True,
        protected_namespaces=(),
    )

    def to_json(self) -> bytes:
        """Compact UTF-8 JSON with camelCase keys; what is None is left out."""
        return encoded(self)[1]


F = TypeVar("F", bound=Fact)


def encoded(fact: F) -> tuple[F, bytes]:
    """The fact, and its JSON.

    Half of a surrogate pair, which no UTF-8 can hold, becomes U+FFFD in both: it comes in JSON escapes of models and
    servers, and in names of files. Raises ValueError for a value that is nested some hundred levels deep.
    """
    try:
        return fact, fact.model_dump_json(by_alias=True, exclude_none=True).encode()
    except ValueError:
        whole = type(fact).model_validate(_whole(fact.model_dump()))
        return whole, whole.model_dump_json(by_alias=True, exclude_none=True).encode()


def _whole(value: object) -> object:
    match value:
        case str():
            return re.sub(_HALF, "\ufffd", value)
        case dict():
            return {_whole(name): _whole(inner) for name, inner in cast("dict[object, object]", value).items()}
        case list() | tuple():
            return [_whole(inner) for inner in cast("Sequence[object]", value)]
        case _:
            return value
