"""Read events from outside: CloudEvents 1.0 (cloudevents.io, core specification and JSON event format)."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

from pydantic import Field, JsonValue, ValidationError

from perstack.core.base.records import Record
from perstack.core.base.validation_errors import describe_errors
from perstack.errors import UsageError

_HEADER = "ce-"


class CloudEvent(Record):
    """One event. Its source and id together are unique: a duplicate is ignored."""

    specversion: str = Field(pattern=r"^1\.")
    id: str = Field(min_length=1)
    source: str = Field(pattern=r"^\S+$")
    type: str = Field(min_length=1)
    data: JsonValue = None

    @property
    def key(self) -> str:
        return f"{self.source} {self.id}"

    @property
    def text(self) -> str:
        """The data as if a person had typed it."""
        return self.data if isinstance(self.data, str) else json.dumps(self.data, ensure_ascii=False)


def is_cloud_event(body: JsonValue, headers: Mapping[str, str] | None = None) -> bool:
    """Return True for a CloudEvent, marked in the body (structured mode) or in the headers (binary mode)."""
    in_body = isinstance(body, dict) and "specversion" in body
    return in_body or f"{_HEADER}specversion" in (headers or {})


def read_cloud_event(body: JsonValue, headers: Mapping[str, str] | None = None) -> CloudEvent:
    """Return the event. Raises UsageError naming what is wrong."""
    context = {name.removeprefix(_HEADER): value for name, value in (headers or {}).items() if name.startswith(_HEADER)}
    fields: JsonValue = {**context, "data": body} if "specversion" in context else body
    if not isinstance(fields, dict):
        raise UsageError("a CloudEvent is a JSON object with specversion, id, source and type")
    encoded = fields.get("data_base64")
    if isinstance(encoded, str):
        try:
            text = base64.b64decode(encoded, validate=True).decode("utf-8", "replace")
        except ValueError as error:
            raise UsageError("data_base64 of the CloudEvent is not base64") from error
        fields = {**fields, "data": text}
    try:
        return CloudEvent.model_validate(fields)
    except ValidationError as error:
        problems = describe_errors(error.errors(include_url=False, include_input=False), fields)
        raise UsageError(f"not a CloudEvent 1.0: {problems}") from error
