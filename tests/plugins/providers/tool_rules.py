"""What vendors document, or say in their errors, about the schemas of tools: the rules of the fake endpoints.

Written apart from the tables in perstack.http_providers.schema_rules, so that a mistake there does not hide here. Each
function returns the vendor's words for the first thing that is wrong, and None for a schema that is accepted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from jsonschema.validators import Draft202012Validator
from jsonschema_specifications import REGISTRY
from wire import Wire
from wire_anthropic import MessagesWire
from wire_bedrock import ConverseWire
from wire_google import GoogleWire
from wire_openai import ChatWire, ResponsesWire

Rule = Callable[[Any], str | None]

_TABLES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "contains", "not", "propertyNames", "if", "then", "else", "additionalProperties")
_COMMON_KEY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_GOOGLE_KEY = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,63}")


def _one_metaschema() -> Any:
    """Return the metaschema of draft 2020-12 with its vocabularies in one: checked in a fraction of the time."""
    root: Any = Draft202012Validator.META_SCHEMA
    parts = [
        root,
        *(REGISTRY.contents(f"{root['$id'].removesuffix('schema')}{part['$ref']}") for part in root["allOf"]),
    ]
    joined = {
        keyword: {name: one for part in parts for name, one in part.get(keyword, {}).items()} for keyword in _JOINED
    }
    text = json.dumps({"type": ["object", "boolean"], **joined})
    return json.loads(text.replace('"$dynamicRef": "#meta"', '"$ref": "#"'))


_JOINED = ("properties", "$defs")
METASCHEMA = Draft202012Validator(_one_metaschema(), format_checker=Draft202012Validator.FORMAT_CHECKER)


def subschemas(schema: Any) -> Iterator[Any]:
    """Yield a schema and those in it."""
    yield schema
    if isinstance(schema, dict):
        for name in _TABLES:
            for inner in (schema.get(name) or {}).values():
                yield from subschemas(inner)
        for name in _LISTS:
            for inner in schema.get(name) or ():
                yield from subschemas(inner)
        for name in _SINGLE:
            if name in schema:
                yield from subschemas(schema[name])


def _is_object(schema: Any) -> str | None:
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return "schema must be a JSON Schema of 'type: \"object\"'"
    error = next(METASCHEMA.iter_errors(schema), None)
    return error and f"JSON schema is invalid. It must match JSON Schema draft 2020-12: {error.message}"


def _at_root(schema: Any, *keywords: str) -> str | None:
    found = [keyword for keyword in keywords if keyword in schema]
    return f"schema does not support {', '.join(found)} at the top level" if found else None


def _keys(schema: Any, pattern: re.Pattern[str]) -> str | None:
    for inner in subschemas(schema):
        for key in (inner.get("properties") or {}) if isinstance(inner, dict) else ():
            if not pattern.fullmatch(key):
                return f"Property keys should match pattern '{pattern.pattern}': {key}"
    return None


def _complete(schema: Any) -> str | None:
    """Refuse arrays without items and objects without properties, as strict servers do at every level."""
    for inner in subschemas(schema):
        kinds = inner.get("type") if isinstance(inner, dict) else None
        if (kinds == "array" or (isinstance(kinds, list) and "array" in kinds)) and not inner.get("items"):
            return "array schema missing items"
        if kinds == "object" and not isinstance(inner.get("properties"), dict):
            return "object schema missing properties"
    return None


def _references(schema: Any) -> str | None:
    for inner in subschemas(schema):
        reference = inner.get("$ref") if isinstance(inner, dict) else None
        if reference is not None and reference.removeprefix("#/$defs/") not in schema.get("$defs", {}):
            return f"reference to undefined schema: {reference}"
    return None


def messages(schema: Any) -> str | None:
    """Return the Messages API's refusal; of keys below the root, that of a gateway."""
    return (
        _is_object(schema)
        or _at_root(schema, "oneOf", "allOf", "anyOf")
        or _keys(schema, _COMMON_KEY)
        or _references(schema)
    )


def openai(schema: Any) -> str | None:
    """Return the refusal of OpenAI's function calling, or of a gateway that forwards to another vendor."""
    return (
        _is_object(schema)
        or _at_root(schema, "oneOf", "anyOf", "allOf", "enum", "const", "not")
        or _keys(schema, _COMMON_KEY)
        or _complete(schema)
        or _references(schema)
    )


_GOOGLE_KEYWORDS = frozenset(
    (
        *("type", "format", "title", "description", "enum", "items", "prefixItems", "minItems", "maxItems"),
        *("minimum", "maximum", "anyOf", "oneOf", "properties", "additionalProperties", "required"),
    )
)


def _without_properties(schema: Any) -> str | None:
    is_open = schema.get("additionalProperties", False) is not False
    return None if is_open else "properties: should be non-empty for OBJECT type"


def google(schema: Any) -> str | None:
    """Return the refusal of generateContent for `parametersJsonSchema`; None also if that is left unset."""
    if schema is None:
        return None
    refused = _is_object(schema) or _keys(schema, _GOOGLE_KEY)
    if refused or not schema.get("properties"):
        return refused or _without_properties(schema)
    for inner in subschemas(schema):
        if not isinstance(inner, dict):
            continue
        unknown = inner.keys() - _GOOGLE_KEYWORDS
        if unknown:
            return f"Unknown name {sorted(unknown)[0]}"
        if set(inner.get("required", ())) - set(inner.get("properties", ())):
            return "required[0]: property is not defined"
        if any(isinstance(value, bool) or value in (None, "") for value in inner.get("enum", ())):
            return "enum[0]: cannot be empty"
        if inner.get("type") == "array" and not inner.get("items"):
            return "items: missing field"
    return None


def converse(schema: Any) -> str | None:
    """Return the refusal of Converse for Nova, whose root takes three fields, or for Claude."""
    other = schema.keys() - {"type", "properties", "required"} if isinstance(schema, dict) else set()
    if other:
        return f"toolSpec.inputSchema.json: extraneous key {sorted(other)[0]}"
    has_reference = any(isinstance(inner, dict) and "$ref" in inner for inner in subschemas(schema))
    return _is_object(schema) or _keys(schema, _COMMON_KEY) or ("$ref is not supported" if has_reference else None)


def rule_of(wire: Wire) -> Rule:
    """Return the rule for a tool's schema at an endpoint."""
    kinds: tuple[tuple[type | tuple[type, ...], Rule], ...] = (
        (MessagesWire, messages),
        ((ChatWire, ResponsesWire), openai),
        (GoogleWire, google),
        (ConverseWire, converse),
    )
    return next(rule for kind, rule in kinds if isinstance(wire, kind))


def schemas_of(wire: Wire, body: Any) -> dict[str, Any]:
    """Return the schema of each tool in a request's body, by name; None if it has none."""
    found: dict[str, Any] = {}
    tools = wire.tools(body) or ()
    for tool in tools["tools"] if isinstance(tools, dict) else tools:
        for entry in tool.get("functionDeclarations", [tool]):
            spec = entry.get("function") or entry.get("toolSpec") or entry
            schema = next(
                (spec[key] for key in ("input_schema", "parameters", "parametersJsonSchema") if key in spec),
                spec.get("inputSchema", {}).get("json"),
            )
            found[spec["name"]] = schema
    return found


def refusal(wire: Wire, body: Any) -> str | None:
    """Return the endpoint's words for the first tool in a body that it refuses."""
    rule = rule_of(wire)
    for name, schema in schemas_of(wire, body).items():
        words = rule(schema)
        if words is not None:
            return f"Invalid schema for function '{name}': {words}"
    return None
