"""What front doors for programs take."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Arguments(BaseModel):
    """Arguments of one operation: camelCase, or snake_case, and no stray keys, so that a misspelt one is noticed."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, defer_build=True
    )
