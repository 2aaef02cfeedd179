"""Write a subschema in the part of JSON Schema that a wire format accepts.

It copies the keywords that draft 2020-12 knows, if their values fit it; the description has what a format cannot
express. The result may accept more than the schema, never less. Size and depth are bounded, so this always ends.
"""

from __future__ import annotations

import json
import math
import re
import warnings

from pydantic import JsonValue

from perstack.core.base.records import JsonObject, layers
from perstack.core.schemas.json_schema import shorten
from perstack.http_providers.argument_names import ArgumentNames
from perstack.http_providers.schema_document import (
    EVALUATING,
    SchemaDocument,
    branches,
    conjoined,
    declared_properties,
    required_names,
)
from perstack.http_providers.schema_rules import SHAPES, SchemaRules, Shape

TYPES = frozenset(("object", "array", "string", "number", "integer", "boolean", "null"))
_BOOLEANS = frozenset(("additionalProperties", "unevaluatedProperties", "unevaluatedItems"))  # may be true or false
_QUOTED = frozenset(
    (
        *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "uniqueItems"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "pattern", "format", "default"),
        *("enum", "const"),
    )
)
"""Keywords that are quoted in the description if the format does not have them."""

MAX_DEPTH = 32  # levels of subschemas that are written; deeper ones are reduced to their type
MAX_SUBSCHEMAS = 4_000
MAX_TEXT_CHARS = 1_000
_MAX_VALUE_LEVELS = 32


class SchemaWriter:
    """Writes subschemas for one format, up to `MAX_SUBSCHEMAS` of them."""

    def __init__(self, document: SchemaDocument, names: ArgumentNames, rules: SchemaRules) -> None:
        """Write the schema of one tool: `names` are the arguments of `document`, as `rules` demand them."""
        self._document = document
        self._names = names
        self._rules = rules
        self._left = MAX_SUBSCHEMAS
        self._targets: list[JsonObject] = []  # targets of references, each once
        self._definition_names: dict[int, str] = {}  # names of targets, by identity
        self._open: set[int] = set()  # targets that are being written in place of references

    def root(self, flat: JsonObject) -> JsonObject:
        """Return the whole schema, with the definitions that it refers to."""
        schema = self._keywords(flat, 0)
        definitions: JsonObject = {}
        for target in self._targets:  # grows while definitions are written
            definitions[self._definition_names[id(target)]] = self._schema(target, 1)
        return {**schema, "$defs": definitions} if definitions else schema

    def _schema(self, schema: JsonValue, depth: int) -> JsonObject:
        """Return a subschema; `{}`, which accepts anything, if it is not an object."""
        if not isinstance(schema, dict):
            return {}
        self._left -= 1
        if depth > MAX_DEPTH or self._left < 0:
            return self._outline(schema)
        target = self._document.target(schema["$ref"]) if "$ref" in schema else None
        if not isinstance(target, dict):
            return self._keywords(schema, depth)
        if self._rules.has_references:
            return {"$ref": self._reference(str(schema["$ref"]), target), **self._keywords(schema, depth)}
        if id(target) in self._open:
            return self._outline({**target, **schema})
        self._open.add(id(target))
        try:
            siblings = {keyword: value for keyword, value in schema.items() if keyword != "$ref"}
            return self._schema({**target, **siblings}, depth + 1)
        finally:
            self._open.discard(id(target))

    def _reference(self, reference: str, target: JsonObject) -> str:
        if id(target) not in self._definition_names:
            last = re.sub(r"[^a-zA-Z0-9_.-]+", "_", reference.rpartition("/")[2].lstrip("#"))[:64] or "root"
            name = last
            while name in self._definition_names.values():
                name += "_"
            self._definition_names[id(target)] = name
            self._targets.append(target)
        return f"#/$defs/{self._definition_names[id(target)]}"

    def _outline(self, schema: JsonObject) -> JsonObject:
        """Return a subschema without inner subschemas: its type and description."""
        return self._completed(
            {**self._keyword_of(schema, "type"), **self._keyword_of(schema, "description")}, schema, 1
        )

    def _keyword_of(self, schema: JsonObject, keyword: str) -> JsonObject:
        written = self._value(keyword, schema.get(keyword), schema, MAX_DEPTH)
        return {} if written is None else {keyword: written[0]}

    def _keywords(self, schema: JsonObject, depth: int) -> JsonObject:
        rules = self._rules
        accepted_keywords = rules.keywords if depth else rules.keywords & rules.root_keywords
        if "allOf" in schema and "allOf" not in accepted_keywords:
            schema = conjoined(self._document.conjuncts(schema))
        schema = _modern(schema)
        if "const" in schema and "const" not in accepted_keywords:
            schema = {**schema, "enum": [schema["const"]]}
        written: JsonObject = {}
        quoted_keywords: list[str] = []
        for keyword, value in schema.items():
            if keyword not in SHAPES:
                continue
            written_value = self._value(keyword, value, schema, depth) if keyword in accepted_keywords else None
            if written_value is not None and keyword == "oneOf" and written_value[0] != value:
                # the branches have lost keywords, so a value could match two of them
                written.setdefault("anyOf", written_value[0])
            elif written_value is not None:
                written[keyword] = written_value[0]
            elif keyword in _QUOTED and depth and value not in (None, [], {}):
                quoted_keywords.append(f"{keyword}: {as_text(value)}")
        if quoted_keywords:
            description = written.get("description", "")
            written["description"] = f"{description} ({', '.join(quoted_keywords)})".strip()
        return self._completed(written, schema, depth)

    def _value(self, keyword: str, value: JsonValue, schema: JsonObject, depth: int) -> tuple[JsonValue] | None:
        """Return the value of a keyword as it is written; None to leave the keyword out."""
        match SHAPES[keyword]:
            case "schema":
                return self._subschema(keyword, value, depth)
            case "schemas":
                return self._branches(keyword, value, depth)
            case "table":
                return self._table(keyword, value, depth)
            case "names":
                return (self._names_of(value),) if isinstance(value, list) else None
            case "dependencies":
                return self._dependencies(value)
            case "value":
                return (self._data(value, schema),) if _is_shallow(value) else None
            case "values":
                return self._values(keyword, value, schema)
            case "type":
                return _types(value)
            case shape:
                return (value,) if self._fits_shape(keyword, shape, value) else None

    def _fits_shape(self, keyword: str, shape: Shape, value: JsonValue) -> bool:
        if shape == "text":
            return isinstance(value, str) and self._fits_text(keyword, value)
        if shape == "flag" or isinstance(value, bool):
            return shape == "flag" and isinstance(value, bool)
        if not isinstance(value, int | float) or (isinstance(value, float) and not math.isfinite(value)):
            return False  # an integer may be beyond the greatest float, for which `isfinite` raises OverflowError
        return value > 0 if keyword == "multipleOf" else shape == "number" or (value >= 0 and value == int(value))

    def _fits_text(self, keyword: str, value: str) -> bool:
        if keyword == "pattern":
            return _is_pattern(value)
        formats = self._rules.formats
        return keyword != "format" or formats is None or value in formats

    def _subschema(self, keyword: str, value: JsonValue, depth: int) -> tuple[JsonValue] | None:
        if isinstance(value, bool):
            return (value,) if keyword in _BOOLEANS else None
        if keyword == "propertyNames" and self._names.changes:
            return None
        written = self._schema(value, depth + 1)
        # a negation or condition that has lost keywords would exclude more
        return None if keyword in _EXCLUDING and written != value else (written,)

    def _branches(self, keyword: str, value: JsonValue, depth: int) -> tuple[JsonValue] | None:
        if not isinstance(value, list):
            return None
        is_tuple = keyword == "prefixItems"
        written: list[JsonValue] = [self._schema(item, depth + 1) for item in value if is_tuple or item is not False]
        is_vacuous = not written or (keyword in ("anyOf", "oneOf") and {} in written)
        return None if is_vacuous else (written,)

    def _table(self, keyword: str, value: JsonValue, depth: int) -> tuple[JsonValue] | None:
        if not isinstance(value, dict):
            return ({},) if keyword == "properties" else None
        if keyword == "patternProperties":
            if not all(map(_is_pattern, value)):
                return None
            return ({pattern: self._schema(schema, depth + 1) for pattern, schema in value.items()},)
        table: JsonObject = {}
        for name, schema in value.items():
            if schema is not False:
                wire_name = self._names.on_wire(name)
                table[wire_name] = self._schema(schema if wire_name == name else _with_origin(name, schema), depth + 1)
        return (table,)

    def _names_of(self, value: list[JsonValue]) -> list[JsonValue]:
        return [*dict.fromkeys(self._names.on_wire(name) for name in value if isinstance(name, str))]

    def _dependencies(self, value: JsonValue) -> tuple[JsonValue] | None:
        if not isinstance(value, dict):
            return None
        tables = {name: names for name, names in value.items() if isinstance(names, list)}
        return ({self._names.on_wire(name): self._names_of(names) for name, names in tables.items()},)

    def _values(self, keyword: str, value: JsonValue, schema: JsonObject) -> tuple[JsonValue] | None:
        types = self._rules.enum_types
        if not isinstance(value, list) or not value or not _is_shallow(value):
            return None
        if keyword == "enum" and types is not None and not all(_is_one_of(item, types) for item in value):
            return None
        return ([self._data(item, schema) for item in value],)

    def _data(self, value: JsonValue, schema: JsonObject) -> JsonValue:
        return self._names.data_to_wire(value, schema)

    def _completed(self, written: JsonObject, schema: JsonObject, depth: int) -> JsonObject:
        """Return the keywords, with those added that the format requires."""
        rules, kinds = self._rules, _kinds(written)
        if "patternProperties" in schema and "patternProperties" not in written:
            written.pop("additionalProperties", None)
        if schema.keys() & EVALUATING - written.keys():
            written.pop("unevaluatedProperties", None)
        if "object" in kinds and (rules.needs_properties or not depth):
            written.setdefault("properties", {})
        if rules.needs_items and "array" in kinds and not written.get("items"):
            written["items"] = {**_ANY_ITEM}
        required = written.get("required")
        if rules.requires_declared and isinstance(required, list):
            declared = declared_properties(written)
            written["required"] = [name for name in required if name in declared]
        return written


_EXCLUDING = frozenset(("not", "if"))
_ANY_ITEM: JsonObject = {"description": "any JSON value"}  # not `{}`, which some servers treat as missing


def as_text(value: JsonValue) -> str:
    """Return a value as JSON text that is short enough for a sentence."""
    return shorten(as_json(value), MAX_TEXT_CHARS // 4)


def as_json(value: JsonValue) -> str:
    """Return a value as JSON text; if it is too deep, a text that no other value has."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    except (ValueError, RecursionError):
        return f"(too deep: {id(value)})"


def _with_origin(name: str, schema: JsonValue) -> JsonObject:
    """Return the schema of a renamed argument with its original name, which the texts of its server may use."""
    table = schema if isinstance(schema, dict) else {}
    words = table.get("description")
    origin = f"The argument `{shorten(name, 200)}`"
    return {**table, "description": f"{origin}: {words}" if isinstance(words, str) and words else f"{origin}."}


def _modern(schema: JsonObject) -> JsonObject:
    """Return the schema with keywords of older drafts, and of OpenAPI, in the spelling of draft 2020-12."""
    changes: JsonObject = {}
    items, rest = schema.get("items"), schema.get("additionalItems")
    if isinstance(items, list):
        changes |= {"prefixItems": items, "items": True if rest is None else rest}
        items = changes["items"]
    if items is False:
        size = len(branches({**schema, **changes}, "prefixItems"))
        changes |= {"items": True, "maxItems": schema.get("maxItems", size)}
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if schema.get(exclusive) is True:
            changes |= {exclusive: schema.get(bound), bound: None}
    dependencies = schema.get("dependencies")
    if isinstance(dependencies, dict):
        changes |= {"dependentRequired": dependencies, "dependentSchemas": dependencies}
    kind = schema.get("type")
    if schema.get("nullable") is True and isinstance(kind, str):
        changes["type"] = [kind, "null"]
    names = required_names(schema)
    if names and names != schema.get("required"):
        changes["required"] = [*names]
    return {**schema, **changes} if changes else schema


def _types(value: JsonValue) -> tuple[JsonValue] | None:
    if isinstance(value, list):
        kinds: list[JsonValue] = [*dict.fromkeys(kind for kind in value if isinstance(kind, str) and kind in TYPES)]
        return (kinds,) if kinds else None
    return (value,) if isinstance(value, str) and value in TYPES else None


def _kinds(schema: JsonObject) -> frozenset[JsonValue]:
    kind = schema.get("type")
    return frozenset(kind) if isinstance(kind, list) else frozenset((kind,))


def _is_one_of(value: JsonValue, types: tuple[type, ...]) -> bool:
    return isinstance(value, types) and not isinstance(value, bool) and value != ""


_FLAGS = re.compile(r"\(\?[a-zA-Z-]")


def _is_pattern(value: str) -> bool:
    """Return whether Python accepts a pattern too: vendors check patterns against the metaschema with its `re`.

    Flags are in no pattern of ECMA-262, and with them a class of characters may take a second to compile.
    """
    if len(value) > MAX_TEXT_CHARS or _FLAGS.search(value):
        return False
    try:
        with warnings.catch_warnings(action="ignore"):
            re.compile(value)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def _is_shallow(value: JsonValue) -> bool:
    return all(level <= _MAX_VALUE_LEVELS for level, _ in enumerate(layers(value)))
