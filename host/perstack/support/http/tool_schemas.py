"""Turn the schema of a tool's arguments into what a wire format accepts.

Servers send any JSON Schema, in any draft, and endpoints refuse a whole request for one tool that they do not accept.
So a schema is written anew for the format, in two steps that are the same for every vendor:

1. `_flat` joins what a root may not contain on any vendor (`$ref`, `allOf`, `anyOf`, `oneOf`) to one object: the
   properties of all branches, and as text what of them cannot be said by `required`.
2. `_Writer` copies the keywords that draft 2020-12 knows, if their values fit it, and applies the format's
   `SchemaRules`. What differs between vendors is in these rules alone.

The result never demands more than the tool's schema of arguments that both can express, but often less: the host checks
each call against the original. Size and depth are bounded, so any schema ends in a schema.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from pydantic import JsonValue

from perstack.core.base.json_schema import shorten
from perstack.core.base.records import JsonObject, layers
from perstack.dataclass import dataclass
from perstack.support.http.argument_names import ArgumentNames, NameRule
from perstack.support.http.schema_document import SchemaDocument, branches, declared_properties, required_names

_Shape = Literal[
    "schema", "schemas", "table", "names", "dependencies", "count", "number", "text", "flag", "value", "values", "type"
]

_SHAPES: Mapping[str, _Shape] = {
    **dict.fromkeys(("items", "contains", "not", "propertyNames", "if", "then", "else", "contentSchema"), "schema"),
    **dict.fromkeys(("additionalProperties", "unevaluatedProperties", "unevaluatedItems"), "schema"),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), "schemas"),
    **dict.fromkeys(("properties", "patternProperties", "dependentSchemas"), "table"),
    "required": "names",
    "dependentRequired": "dependencies",
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minContains", "maxContains"), "count"),
    **dict.fromkeys(("minProperties", "maxProperties"), "count"),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), "number"),
    **dict.fromkeys(("title", "description", "pattern", "format", "contentEncoding", "contentMediaType"), "text"),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), "flag"),
    **dict.fromkeys(("default", "const"), "value"),
    **dict.fromkeys(("enum", "examples"), "values"),
    "type": "type",
}
"""Keywords of draft 2020-12 with the shape of their values. All others are left out: vendors know no others, and some
refuse them, also `$schema` and `$id`. `$ref` and definitions are written apart."""

_TYPES = frozenset(("object", "array", "string", "number", "integer", "boolean", "null"))
_BOOLEANS = frozenset(("additionalProperties", "unevaluatedProperties", "unevaluatedItems"))  # may be true or false
_TOLD = frozenset(
    (
        *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "uniqueItems"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "pattern", "format", "default"),
        *("enum", "const"),
    )
)
"""Keywords that are told in the description where a format does not have them."""

ALL_KEYWORDS = frozenset(_SHAPES)
MAX_DEPTH = 32  # levels of subschemas that are written; deeper ones are reduced to their type
MAX_SUBSCHEMAS = 4_000
_MAX_VALUE_LEVELS = 32
_MAX_TEXT_CHARS = 1_000
_MAX_ALTERNATIVES = 12  # sets of arguments that a sentence names
_MAX_BRANCHES = 100  # branches whose requirements are compared
_MAX_PLAIN_CHARS = 6_000


@dataclass(frozen=True, slots=True)
class SchemaRules:
    """Rules of one wire format for tools, beyond valid draft 2020-12 with an object at the root."""

    name: str
    argument_names: NameRule | None  # None: any names
    tool_names: NameRule
    keywords: frozenset[str] = ALL_KEYWORDS
    root_keywords: frozenset[str] = ALL_KEYWORDS
    has_references: bool = True  # False: `$ref` is replaced by what it refers to
    needs_properties: bool = False  # objects below the root must have `properties`, too
    needs_items: bool = False  # arrays must have `items`
    requires_declared: bool = False  # `required` may only name what `properties` of the same schema have
    enum_types: tuple[type, ...] | None = None  # types of values in `enum`; None: all
    formats: frozenset[str] | None = None  # values of `format`; None: all
    no_arguments: JsonObject | None = None  # schema of a tool without arguments; None: an object without properties


_ANY_NAME = NameRule("a-zA-Z0-9_-", "a-zA-Z0-9_-")
_COMMON_ARGUMENTS = NameRule("a-zA-Z0-9_.-", "a-zA-Z0-9_.-")
_BRANCHING = frozenset(("allOf", "anyOf", "oneOf"))

MESSAGES = SchemaRules(
    "messages",
    argument_names=_COMMON_ARGUMENTS,
    tool_names=_ANY_NAME,
    root_keywords=ALL_KEYWORDS - _BRANCHING,
)
"""Anthropic Messages, also on Bedrock and Vertex AI.

Source: Claude API, «Define tools»; the API's errors «input_schema does not support oneOf, allOf, or anyOf at the top
level», «Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'» and «JSON schema is invalid. It must match JSON
Schema draft 2020-12». Names below the root pass there, but not at every gateway of the format.
"""

OPENAI = SchemaRules(
    "openai",
    argument_names=_COMMON_ARGUMENTS,
    tool_names=_ANY_NAME,
    root_keywords=ALL_KEYWORDS - _BRANCHING - {"enum", "const", "not"},
    needs_properties=True,
    needs_items=True,
)
"""Chat Completions and Responses, without strict mode; also of compatible servers.

Source: OpenAI guide, «Function calling»; the API's errors «schema must have type 'object' and not have
'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level», «object schema missing properties» and «array schema missing
items». Names of arguments are those of the Messages API, to which many compatible servers forward.
"""

GENERATE_CONTENT = SchemaRules(
    "generateContent",
    argument_names=NameRule("a-zA-Z_", "a-zA-Z0-9_"),
    tool_names=NameRule("a-zA-Z_", "a-zA-Z0-9_-"),
    keywords=frozenset(
        (
            *("type", "format", "title", "description", "enum", "anyOf", "oneOf", "properties", "required"),
            *("additionalProperties", "items", "prefixItems", "minItems", "maxItems", "minimum", "maximum"),
        )
    ),
    root_keywords=frozenset(("type", "title", "description", "properties", "required", "additionalProperties")),
    has_references=False,
    needs_items=True,
    requires_declared=True,
    enum_types=(str, int, float),
    formats=frozenset(("date-time", "date", "time")),
    no_arguments={},
)
"""Gemini, in `parametersJsonSchema`.

Source: Gemini API reference, `FunctionDeclaration` and `responseJsonSchema` (keywords of JSON Schema); Vertex AI
reference, `FunctionDeclaration` (names of parameters and functions; without parameters the field is left unset). The
API has references, but refuses cyclic ones in required properties, and any with other keywords beside them.
"""

CONVERSE = SchemaRules(
    "converse",
    argument_names=_COMMON_ARGUMENTS,
    tool_names=_ANY_NAME,
    root_keywords=frozenset(("type", "properties", "required")),
    has_references=False,
    needs_properties=True,
    needs_items=True,
)
"""Bedrock's Converse, for the models of all vendors.

Source: Amazon Nova user guide, «Tool use», «Defining a tool» (three fields at the root); Amazon Bedrock API reference,
`ToolSpecification` (names of tools); the errors of the Messages API for Claude.
"""

PLAIN = SchemaRules("plain", argument_names=None, tool_names=_ANY_NAME)
"""No more than valid draft 2020-12 with an object at the root."""


def wire_schema(document: SchemaDocument, names: ArgumentNames, rules: SchemaRules) -> tuple[JsonObject, list[str]]:
    """Return a tool's schema for a wire format, and sentences for the model on what the schema does not say."""
    flat, sentences = _flat(document, names)
    if "not" in flat and "not" not in rules.root_keywords:
        sentences.append(f"Input constraint: the arguments must not match this JSON Schema: {_as_text(flat['not'])}.")
    schema = _Writer(document, names, rules).root(flat)
    is_empty = not schema["properties"] and not schema.keys() - _OF_NO_ARGUMENTS
    is_empty = is_empty and schema.get("additionalProperties") in (None, False)
    return (rules.no_arguments if is_empty and rules.no_arguments is not None else schema), sentences


def plain_schema(document: SchemaDocument) -> tuple[JsonObject, str]:
    """Return the schema that every wire format accepts, an object of anything, and the tool's schema as text."""
    schema, sentences = wire_schema(document, ArgumentNames(document, None), PLAIN)
    text = shorten(_as_json(schema), _MAX_PLAIN_CHARS)
    anything: JsonObject = {"type": "object", "properties": {}, "additionalProperties": True}
    return anything, " ".join((*sentences, f"The arguments are a JSON object of this JSON Schema: {text}"))


_OF_NO_ARGUMENTS = frozenset(("type", "properties", "title", "description", "required", "additionalProperties"))


# One object in place of the branches at the root.


def _flat(document: SchemaDocument, names: ArgumentNames) -> tuple[JsonObject, list[str]]:
    conjuncts = document.conjuncts(document.root)
    flat: JsonObject = {**({} if "type" in document.root else {"type": "object"}), **_conjoined(conjuncts)}
    properties, required = declared_properties(flat), required_names(flat)
    sentences: list[str] = []
    for keyword, alternatives in _alternatives(conjuncts):
        properties = {**_united(document.applicable(alternatives)), **properties}
        parts = [document.conjuncts(branch) for branch in alternatives] if len(alternatives) <= _MAX_BRANCHES else []
        sets = [_required_of(branch) for branch in parts if branch and all(map(_may_be_object, branch))]
        required += [name for name in (sets[0] if sets else ()) if all(name in names_of for names_of in sets)]
        sentences += _constraint(keyword, sets, set(required), names)
    flat |= {"type": "object", "properties": properties}
    if required:
        flat["required"] = [*dict.fromkeys(required)]
    return {keyword: value for keyword, value in flat.items() if keyword not in ("anyOf", "oneOf")}, sentences


def _conjoined(conjuncts: Iterable[JsonObject]) -> JsonObject:
    """Return one schema for parts that all hold: the first value of each keyword, all properties and names required."""
    joined: JsonObject = {}
    properties: JsonObject = {}
    required: list[str] = []
    for part in conjuncts:
        joined |= {keyword: value for keyword, value in part.items() if keyword not in ("allOf", "$ref", *joined)}
        required += required_names(part)
        for name, schema in declared_properties(part).items():
            known = properties.get(name)
            properties[name] = {**schema, **known} if isinstance(schema, dict) and isinstance(known, dict) else schema
    if properties:
        joined["properties"] = properties
    if required:
        joined["required"] = [*dict.fromkeys(required)]
    return joined


def _alternatives(conjuncts: Iterable[JsonObject]) -> Iterator[tuple[str, list[JsonValue]]]:
    for part in conjuncts:
        for keyword in ("anyOf", "oneOf"):
            if branches(part, keyword):
                yield keyword, branches(part, keyword)


def _may_be_object(schema: JsonObject) -> bool:
    kind = schema.get("type", "object")
    return "object" in kind if isinstance(kind, list) else kind == "object" or kind not in _TYPES


def _united(parts: Iterable[JsonObject]) -> JsonObject:
    """Return the properties of all parts. One that they declare differently may be as any of them says."""
    variants: dict[str, dict[str, JsonValue]] = {}
    for part in parts:
        for name, schema in declared_properties(part).items():
            variants.setdefault(name, {})[_as_json(schema)] = schema
    return {name: _any_of([*schemas.values()]) for name, schemas in variants.items()}


def _any_of(schemas: list[JsonValue]) -> JsonValue:
    if len(schemas) == 1:
        return schemas[0]
    choices = [_choice(schema) for schema in schemas]
    values = [choice for choice in choices if choice is not None]
    if len(values) < len(choices):
        return {"anyOf": schemas}
    kinds = {kind for schema in schemas if isinstance(schema, dict) and isinstance(kind := schema.get("type"), str)}
    return {**({"type": kinds.pop()} if len(kinds) == 1 else {}), "enum": [value for few in values for value in few]}


def _choice(schema: JsonValue) -> list[JsonValue] | None:
    """Return the values of a schema that only lists them, such as the mark of a variant; None of any other."""
    if not isinstance(schema, dict) or schema.keys() - {"const", "enum", "type", "title", "default"}:
        return None
    return [schema["const"]] if "const" in schema else branches(schema, "enum") or None


def _required_of(parts: Iterable[JsonObject]) -> dict[str, str]:
    """Return the words for each name that an alternative requires: with its value, if there is only one."""
    words: dict[str, str] = {}
    for part in parts:
        for name in required_names(part):
            value = _choice(declared_properties(part).get(name))
            words[name] = "" if value is None or len(value) != 1 else f" = {_as_text(value[0])}"
    return words


def _constraint(keyword: str, sets: list[dict[str, str]], known: set[str], names: ArgumentNames) -> list[str]:
    extra = [
        ", ".join(f"{names.on_wire(name)}{words}" for name, words in required.items() if words or name not in known)
        for required in sets
    ]
    options = [*dict.fromkeys(extra)]
    if len(options) < 2 or "" in options:
        return []
    listed = [f"({number}) {option}" for number, option in enumerate(options[:_MAX_ALTERNATIVES], 1)]
    more = f", or one of {len(options) - len(listed)} more sets" if len(options) > len(listed) else ""
    amount = "exactly one of these sets" if keyword == "oneOf" else "one of these sets"
    return [shorten(f"Input constraint: give {amount} of arguments: {'; '.join(listed)}{more}.", _MAX_TEXT_CHARS)]


def _as_text(value: JsonValue) -> str:
    return shorten(_as_json(value), _MAX_TEXT_CHARS // 4)


def _as_json(value: JsonValue) -> str:
    """Return a value as JSON text; a text that is the same for no other value if it is too deep."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    except (ValueError, RecursionError):
        return f"(too deep: {id(value)})"


# The schema for a format.


class _Writer:
    """Writes subschemas for one format, up to `MAX_SUBSCHEMAS` of them."""

    def __init__(self, document: SchemaDocument, names: ArgumentNames, rules: SchemaRules) -> None:
        self._document = document
        self._names = names
        self._rules = rules
        self._left = MAX_SUBSCHEMAS
        self._targets: list[JsonObject] = []  # of references, each once
        self._definition_names: dict[int, str] = {}  # of targets, by identity
        self._open: set[int] = set()  # targets that are being written in place of references

    def root(self, flat: JsonObject) -> JsonObject:
        """Return the whole schema, with the definitions that it refers to."""
        schema = self._keywords(flat, 0)
        definitions: JsonObject = {}
        for target in self._targets:  # grows while definitions are written
            definitions[self._definition_names[id(target)]] = self._schema(target, 1)
        return {**schema, "$defs": definitions} if definitions else schema

    def _schema(self, schema: JsonValue, depth: int) -> JsonObject:
        """Return a subschema; an empty one, which accepts anything, for one that is not an object."""
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
        """Return a subschema without those in it: its type and description."""
        written = {**self._written_keyword(schema, "type"), **self._written_keyword(schema, "description")}
        return self._completed(written, schema, 1)

    def _written_keyword(self, schema: JsonObject, keyword: str) -> JsonObject:
        written = self._value(keyword, schema.get(keyword), schema, MAX_DEPTH)
        return {} if written is None else {keyword: written[0]}

    def _keywords(self, schema: JsonObject, depth: int) -> JsonObject:
        rules = self._rules
        accepted = rules.keywords if depth else rules.keywords & rules.root_keywords
        if "allOf" in schema and "allOf" not in accepted:
            schema = _conjoined(self._document.conjuncts(schema))
        schema = _modern(schema)
        if "const" in schema and "const" not in accepted:
            schema = {**schema, "enum": [schema["const"]]}
        written: JsonObject = {}
        told: list[str] = []
        for keyword, value in schema.items():
            if keyword not in _SHAPES:
                continue
            found = self._value(keyword, value, schema, depth) if keyword in accepted else None
            if found is not None and keyword == "oneOf" and found[0] != value:
                # written with less, a value could match two of its branches
                written.setdefault("anyOf", found[0])
            elif found is not None:
                written[keyword] = found[0]
            elif keyword in _TOLD and depth and value not in (None, [], {}):
                told.append(f"{keyword}: {_as_text(value)}")
        if told:
            words = written.get("description", "")
            written["description"] = f"{words} ({', '.join(told)})".strip()
        return self._completed(written, schema, depth)

    def _value(self, keyword: str, value: JsonValue, schema: JsonObject, depth: int) -> tuple[JsonValue] | None:
        """Return the value of a keyword as it is written; None to leave the keyword out."""
        match _SHAPES[keyword]:
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
                return (value,) if self._is_accepted(keyword, shape, value) else None

    def _is_accepted(self, keyword: str, shape: _Shape, value: JsonValue) -> bool:
        if shape == "text":
            formats = self._rules.formats
            return isinstance(value, str) and (keyword != "format" or formats is None or value in formats)
        if shape == "flag" or isinstance(value, bool):
            return shape == "flag" and isinstance(value, bool)
        if not isinstance(value, int | float) or not math.isfinite(value):
            return False
        return value > 0 if keyword == "multipleOf" else shape == "number" or (value >= 0 and value == int(value))

    def _subschema(self, keyword: str, value: JsonValue, depth: int) -> tuple[JsonValue] | None:
        if isinstance(value, bool):
            return (value,) if keyword in _BOOLEANS else None
        if keyword == "propertyNames" and self._names.changes:
            return None
        written = self._schema(value, depth + 1)
        # with less in it, a negation or a condition would exclude more
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
            return ({pattern: self._schema(schema, depth + 1) for pattern, schema in value.items()},)
        table: JsonObject = {}
        for name, schema in value.items():
            if schema is not False:
                shown = self._names.on_wire(name)
                table[shown] = self._schema(schema if shown == name else _with_origin(name, schema), depth + 1)
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
        """Return the keywords with those that the format demands beside them."""
        rules, kinds = self._rules, _kinds(written)
        if "patternProperties" in schema and "patternProperties" not in written:
            written.pop("additionalProperties", None)
        if schema.keys() & _EVALUATING - written.keys():
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
_EVALUATING = frozenset((*_BRANCHING, "if", "then", "else", "dependentSchemas", "patternProperties", "$ref"))
_ANY_ITEM: JsonObject = {"description": "any JSON value"}  # not `{}`, which some servers take for none


def _with_origin(name: str, schema: JsonValue) -> JsonObject:
    """Return the schema of a renamed argument with its own name, which the texts of its server may use."""
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
        kinds: list[JsonValue] = [*dict.fromkeys(kind for kind in value if isinstance(kind, str) and kind in _TYPES)]
        return (kinds,) if kinds else None
    return (value,) if isinstance(value, str) and value in _TYPES else None


def _kinds(schema: JsonObject) -> frozenset[JsonValue]:
    kind = schema.get("type")
    return frozenset(kind) if isinstance(kind, list) else frozenset((kind,))


def _is_one_of(value: JsonValue, types: tuple[type, ...]) -> bool:
    return isinstance(value, types) and not isinstance(value, bool) and value != ""


def _is_shallow(value: JsonValue) -> bool:
    return all(level <= _MAX_VALUE_LEVELS for level, _ in enumerate(layers(value)))
