"""What all models of the core share."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, JsonValue
from pydantic.alias_generators import to_camel

JsonObject = dict[str, JsonValue]
"""A JSON object, as it came or as it will be sent."""


def falsy(value: object) -> bool:
    """For `Field(exclude_if=falsy)`: zero, false and empty are not written, to keep lines short."""
    return not value


class Fact(BaseModel):
    """An immutable record: camelCase in JSON, snake_case in Python.

    Unknown keys are ignored, so that a log written by a newer version still opens.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", defer_build=True)

    def to_json(self) -> bytes:
        """Compact UTF-8 JSON with camelCase keys; what is None is left out."""
        return self.model_dump_json(by_alias=True, exclude_none=True).encode()
