"""What front doors for programs take."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from perstack.core.base import JsonObject
from perstack.core.wrong_values import in_words
from perstack.errors import UsageError


class Arguments(BaseModel):
    """Arguments of one operation: camelCase, or snake_case, and no stray keys, so that a misspelt one is noticed."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, defer_build=True
    )


_A = TypeVar("_A", bound=Arguments)


def read_arguments(model: type[_A], given: JsonObject, what: str = "") -> _A:
    """The arguments that are given. Raises UsageError, which begins with `what` and names each that is wrong."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        known = [field.alias or name for name, field in model.model_fields.items()]
        words = in_words(error.errors(include_url=False, include_input=False), given, known)
        raise UsageError(f"{what}: {words}" if what else words) from error
