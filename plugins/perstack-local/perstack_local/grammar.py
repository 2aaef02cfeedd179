"""GBNF grammars from JSON schemas of tools, which make every reply one well-formed call.

The language is llama.cpp's (`grammars/README.md` there). A sentence of the grammar is

  {"tool": "NAME", "args": {…}}

with the properties in the schema's order and the separators of `json.dumps`. Enforced are: types, `required`, `enum`,
`const`, arrays with `items`, `minItems` and `maxItems`, nested objects, `anyOf`/`oneOf`, local `$ref`, that an integer
is not negative (`minimum`), and that a string is not empty (`minLength`). The host's own validation of arguments covers
all other keywords; a schema without any of these becomes any JSON value.

Pure: no I/O, and equal tools give equal text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TypeGuard

from pydantic import JsonValue

from perstack.core.base.records import JsonObject

MAX_COUNTED_ITEMS = 32  # array bounds above this are not enforced, because llama.cpp unrolls repetitions

EMPTY = '""'

_COMMON = {
    "value": 'object | array | string | number | "true" | "false" | "null"',
    "object": '"{" (string ": " value (", " string ": " value)*)? "}"',
    "array": '"[" (value (", " value)*)? "]"',
    "string": r'"\"" char* "\""',
    "text": r'"\"" char+ "\""',
    # A lone surrogate is legal JSON but an invalid string, so characters beyond U+FFFF are not escaped.
    "char": r'[^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" ([0-9a-ce-fA-CE-F] hex hex hex | [dD] [0-7] hex hex))',
    "hex": "[0-9a-fA-F]",
    "number": 'integer ("." [0-9]{1,16})?',
    "integer": '"-"? natural',
    "natural": '"0" | [1-9] [0-9]{0,14}',
    "boolean": '"true" | "false"',
}


def grammar_of(tools: Iterable[tuple[str, JsonObject]]) -> str:
    """Return the grammar of calls of these tools, by name and input schema. Raises ValueError without a tool."""
    rules = _Rules()
    calls: list[str] = []
    for name, schema in tools:
        arguments = _Converter(rules, schema).arguments()
        opening = literal('{"tool": ') + " " + literal(json_text(name)) + " " + literal(', "args": ')
        calls.append(rules.add("call", f"{opening} {arguments} {literal('}')}"))
    if not calls:
        raise ValueError("a grammar needs at least one tool")
    return rules.render(" | ".join(calls))


def grammar_of_object(schema: JsonObject) -> str:
    """Return the grammar of objects that fit a schema, as far as a grammar can express it."""
    rules = _Rules()
    return rules.render(_Converter(rules, schema).arguments())


def json_text(value: JsonValue) -> str:
    """Return JSON as the grammar spells it; the prompt must show this spelling."""
    return json.dumps(value, ensure_ascii=False)


def literal(text: str) -> str:
    """Return a GBNF literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


class _Rules:
    def __init__(self) -> None:
        self._bodies: dict[str, str] = {}

    def reserve(self, kind: str) -> str:
        name = f"{kind}-{len(self._bodies) + 1}"
        self._bodies[name] = ""
        return name

    def add(self, kind: str, body: str) -> str:
        return self.define(self.reserve(kind), body)

    def define(self, name: str, body: str) -> str:
        self._bodies[name] = body
        return name

    def render(self, root: str) -> str:
        rules = {"root": root, **self._bodies, **_COMMON}
        return "".join(f"{name} ::= {body}\n" for name, body in rules.items())


class _Converter:
    """Converter of one tool's schema to rules.

    `open_refs` are the references with which the current position begins. Repeating one would create a left-recursive
    rule, which the parser rejects. Inside an object or array the set is empty, because a bracket precedes.
    """

    def __init__(self, rules: _Rules, root: JsonObject) -> None:
        self._rules = rules
        self._root = root
        self._refs: dict[tuple[str, frozenset[str]], str] = {}

    def arguments(self) -> str:
        """Return the expression for the tool's arguments, which are always an object."""
        return self._convert_schema({**self._root, "type": "object"}, frozenset())

    def _convert_schema(self, schema: JsonValue, open_refs: frozenset[str]) -> str:
        """Return the GBNF expression of a schema; an unsupported keyword widens it."""
        if not is_schema(schema):
            return "value"
        if isinstance(ref := schema.get("$ref"), str):
            return self._convert_reference(ref, open_refs)
        if "const" in schema:
            return literal(json_text(schema["const"]))
        if isinstance(values := schema.get("enum"), list) and values:
            return self._rules.add("enum", " | ".join(literal(json_text(value)) for value in values))
        schema = _without_single_all_of(schema)
        if "$ref" in schema:
            return self._convert_schema(schema, open_refs)
        choices = _alternatives(schema)
        if choices:
            return self._rules.add("choice", " | ".join(self._convert_schema(choice, open_refs) for choice in choices))
        return self._convert_type(schema)

    def _convert_type(self, schema: JsonObject) -> str:
        match _type_of(schema):
            case "object":
                return self._convert_object(schema)
            case "array":
                return self._convert_array(schema)
            case "string":
                return "text" if _int_or_default(schema.get("minLength"), 0) >= 1 else "string"
            case "integer":
                return "natural" if _int_or_default(schema.get("minimum"), -1) >= 0 else "integer"
            case "number":
                return "number"
            case "boolean":
                return "boolean"
            case "null":
                return '"null"'
            case _:
                return "value"

    def _convert_reference(self, ref: str, open_refs: frozenset[str]) -> str:
        target = _resolve(self._root, ref)
        if ref in open_refs or target is None:
            return "value"
        key = (ref, open_refs)
        if key not in self._refs:
            # reserved before the conversion, so that it may refer to itself
            self._refs[key] = self._rules.reserve("ref")
            self._rules.define(self._refs[key], self._convert_schema(target, open_refs | {ref}))
        return self._refs[key]

    def _convert_array(self, schema: JsonObject) -> str:
        item = self._convert_schema(schema.get("items", True), frozenset())
        low, high = _int_or_default(schema.get("minItems"), 0), _int_or_default(schema.get("maxItems"), -1)
        low = low if low <= MAX_COUNTED_ITEMS else 0
        if high == 0:
            return '"[]"'
        max_more = high - 1 if 0 < high <= MAX_COUNTED_ITEMS else ""
        items = item if high == 1 else f'{item} (", " {item}){{{max(low - 1, 0)},{max_more}}}'
        return self._rules.add("array", f'"[" {items} "]"' if low else f'"[" ({items})? "]"')

    def _convert_object(self, schema: JsonObject) -> str:
        properties = _all_properties(schema)
        if properties:
            return self._rules.add("object", f'"{{" {self._convert_members(schema, properties)} "}}"')
        extra = schema.get("additionalProperties", True)
        if extra is False:
            return '"{}"'
        if not is_schema(extra) or not extra:
            return "object"
        value = self._convert_schema(extra, frozenset())
        return self._rules.add("map", f'"{{" (string ": " {value} (", " string ": " {value})*)? "}}"')

    def _convert_members(self, schema: JsonObject, properties: JsonObject) -> str:
        """Return the members in order, built from last to first: once as the first member and once after another."""
        required = _string_items(schema.get("required"))
        first, rest = EMPTY, ""
        for name, member in reversed(list(properties.items())):
            pair = f"{literal(json_text(name) + ': ')} {self._convert_schema(member, frozenset())}"
            tail = f" {rest}" if rest else ""
            if name in required:
                first, after = f"{pair}{tail}", f'", " {pair}{tail}'
            else:
                first, after = f"({pair}{tail} | {first})", f'(", " {pair})?{tail}'
            first, rest = self._rules.add("first", first), self._rules.add("rest", after)
        return first


def is_schema(value: JsonValue) -> TypeGuard[JsonObject]:
    """Return whether a schema can have keywords; `true` and `false` are schemas without any."""
    return isinstance(value, dict)


def _type_of(schema: JsonObject) -> JsonValue:
    """Return a schema's type, inferred from its keywords if it names none."""
    if "type" in schema:
        return schema["type"]
    if "properties" in schema:
        return "object"
    return "array" if "items" in schema else None


def _alternatives(schema: JsonObject) -> list[JsonObject]:
    """Return the schemas of which a value must fit one; empty if the schema has no alternatives."""
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return [{**schema, "type": kind} for kind in kinds]
    if "properties" in schema:
        return []
    choices = schema.get("anyOf") or schema.get("oneOf")
    shared: JsonObject = {} if kinds is None else {"type": kinds}
    return [{**shared, **choice} for choice in choices if is_schema(choice)] if isinstance(choices, list) else []


def _without_single_all_of(schema: JsonObject) -> JsonObject:
    inner = schema.get("allOf")
    if isinstance(inner, list) and len(inner) == 1 and is_schema(inner[0]):
        return {**{key: value for key, value in schema.items() if key != "allOf"}, **inner[0]}
    return schema


def _all_properties(schema: JsonObject) -> JsonObject:
    """Return the properties by name, with those that are only listed as required."""
    declared = schema.get("properties")
    properties = dict(declared) if is_schema(declared) else {}
    return {**properties, **{name: True for name in _string_items(schema.get("required")) if name not in properties}}


def _string_items(value: JsonValue) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def _int_or_default(value: JsonValue, default: int) -> int:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


def _resolve(root: JsonObject, ref: str) -> JsonValue:
    """Return the schema at a local JSON pointer; None if there is none."""
    if not ref.startswith("#"):
        return None
    node: JsonValue = root
    for step in ref[1:].split("/")[1:]:
        node = node.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(node, dict) else None
    return node
