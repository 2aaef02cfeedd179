"""Structured output: the part of a JSON Schema that is sent to a vendor.

Each vendor supports a part of JSON Schema; what is sent is what Anthropic, OpenAI, Google and Amazon all accept. It may
require less than the schema does, and allows only the named keys: the host validates each result
against the schema itself.

Source: Claude API, "Structured outputs", section "JSON Schema limitations"; OpenAI guide, "Structured model outputs",
section "Supported schemas"; Gemini API, "Structured outputs"; Amazon Bedrock user guide, "Structured outputs".
"""

from __future__ import annotations

from pydantic import JsonValue

from perstack.core.base.records import JsonObject
from perstack.ports.provider import GenerationRequest

_TYPES = frozenset(("object", "array", "string", "number", "integer", "boolean", "null"))
_STRUCTURE_KEYWORDS = frozenset(
    ("type", "enum", "const", "anyOf", "items", "properties", "required", "additionalProperties")
)
_BOUND_KEYWORDS = frozenset(
    (
        *("minLength", "maxLength", "pattern", "format", "multipleOf"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties"),
    )
)
_ANNOTATION_KEYWORDS = frozenset(
    ("$comment", "$id", "$schema", "default", "deprecated", "description", "examples", "readOnly", "title", "writeOnly")
)

_MAX_DEPTH = 5
_MAX_PROPERTIES = 100
_MAX_OPTIONAL = 24
_MAX_UNIONS = 16
_MAX_VALUES = 500


class _NotSendable(Exception):
    """A schema that some vendor would refuse."""


def schema_for(request: GenerationRequest, setting: bool | None, *, is_known: bool) -> JsonObject | None:
    """Return the result's schema if it is to be sent: by `setting`, or without one if `is_known`; else None."""
    is_wanted = is_known if setting is None else setting
    return portable_schema(request.output) if is_wanted and request.output is not None else None


def portable_schema(schema: JsonObject) -> JsonObject | None:
    """Return the schema in the form that every vendor accepts; None if some vendor would refuse it."""
    try:
        return _Narrower().narrow(schema, 1)
    except _NotSendable:
        return None


def requires_all(schema: JsonValue) -> bool:
    """Return whether every property of every object is required, as OpenAI's strict mode demands."""
    if isinstance(schema, list):
        return all(map(requires_all, schema))
    if not isinstance(schema, dict):
        return True
    properties, required = schema.get("properties"), schema.get("required")
    if isinstance(properties, dict):
        return (
            isinstance(required, list)
            and set(properties) <= set(required)
            and all(map(requires_all, properties.values()))
        )
    return requires_all(schema.get("items")) and requires_all(schema.get("anyOf"))


class _Narrower:
    """Builds the narrowed schema and counts its parts, since vendors limit their number."""

    def __init__(self) -> None:
        self._properties = self._optional = self._unions = self._values = 0

    def narrow(self, schema: JsonValue, depth: int) -> JsonObject:
        """Return the narrowed schema. Raises _NotSendable."""
        if (
            not isinstance(schema, dict)
            or depth > _MAX_DEPTH
            or set(schema) - _STRUCTURE_KEYWORDS - _BOUND_KEYWORDS - _ANNOTATION_KEYWORDS
        ):
            raise _NotSendable
        narrowed: JsonObject = {"description": schema["description"]} if "description" in schema else {}
        if "anyOf" in schema:
            narrowed["anyOf"] = self._options(schema, depth)
            return narrowed
        narrowed["type"] = self._type(schema)
        if "enum" in schema or "const" in schema:
            narrowed["enum"] = self._choice(schema.get("enum", [schema.get("const")]))
        if narrowed["type"] == "object":
            narrowed |= self._object(schema, depth)
        if "items" in schema:
            narrowed["items"] = self.narrow(schema["items"], depth + 1)
        if self._unions > _MAX_UNIONS or self._values > _MAX_VALUES:
            raise _NotSendable
        return narrowed

    def _options(self, schema: JsonObject, depth: int) -> list[JsonValue]:
        options = schema["anyOf"]
        if depth == 1 or not isinstance(options, list) or not options or len(_STRUCTURE_KEYWORDS & set(schema)) > 1:
            raise _NotSendable
        self._unions += 1
        return [self.narrow(option, depth) for option in options]

    def _type(self, schema: JsonObject) -> JsonValue:
        kind = schema.get("type")
        kinds = kind if isinstance(kind, list) else [kind]
        is_union = len(kinds) > 1
        if not all(isinstance(item, str) and item in _TYPES for item in kinds) or (is_union and "object" in kinds):
            raise _NotSendable
        self._unions += is_union
        return kind

    def _choice(self, values: JsonValue) -> list[JsonValue]:
        if not isinstance(values, list) or any(isinstance(value, (dict, list, bool)) for value in values):
            raise _NotSendable
        self._values += len(values)
        return values

    def _object(self, schema: JsonObject, depth: int) -> JsonObject:
        properties, required = schema.get("properties"), schema.get("required", [])
        if not isinstance(properties, dict) or not properties or schema.get("additionalProperties", False) is not False:
            raise _NotSendable
        if not isinstance(required, list) or not all(name in properties for name in required):
            raise _NotSendable
        self._properties += len(properties)
        self._optional += len(properties) - len(required)
        if self._properties > _MAX_PROPERTIES or self._optional > _MAX_OPTIONAL:
            raise _NotSendable
        return {
            "properties": {name: self.narrow(subschema, depth + 1) for name, subschema in properties.items()},
            "required": [*required],
            "additionalProperties": False,
        }
