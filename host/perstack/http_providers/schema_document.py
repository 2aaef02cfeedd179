"""Read a JSON Schema that a stranger wrote: references, branches, and the schemas that apply to a part of a value.

Nothing here raises for any schema. What is malformed is skipped, each walk visits a subschema once, and references are
followed only within the schema, so cyclic ones end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from pydantic import JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.schemas.json_schema import objects, resolve_reference

_BRANCHES = ("allOf", "anyOf", "oneOf")
_CONDITIONS = ("if", "then", "else")
_DEPENDENCIES = ("dependentSchemas", "dependencies")
_OTHER_PROPERTIES = ("additionalProperties", "unevaluatedProperties")
_ITEMS = ("prefixItems", "items", "additionalItems", "unevaluatedItems", "contains")


EVALUATING = frozenset(
    (*_BRANCHES, *_CONDITIONS, "dependentSchemas", "patternProperties", "$ref", "$dynamicRef", "$recursiveRef")
)
"""Keywords whose subschemas evaluate properties for `unevaluatedProperties`."""


_Parts = Callable[[JsonObject], Iterable[JsonValue]]


class SchemaDocument:
    """A tool's schema with its references.

    `root` differs from the given schema in one thing: a root that lists whole argument objects (`enum`, `const`) is
    read as alternatives of properties with one value each.
    """

    def __init__(self, schema: JsonObject) -> None:
        """Store the schema; references are indexed when one needs it."""
        self.root = _with_alternatives(schema)
        self._schema = schema
        self._named: dict[str, JsonObject] | None = None

    def target(self, reference: JsonValue) -> JsonValue:
        """Return the subschema that a reference leads to, through references alone; None if there is none."""
        visited: set[str] = set()
        while isinstance(reference, str) and reference not in visited:
            visited.add(reference)
            subschema = self._find(reference)
            if not (isinstance(subschema, dict) and subschema.keys() == {"$ref"}):
                return subschema
            reference = subschema["$ref"]
        return None

    def conjuncts(self, schema: JsonValue) -> list[JsonObject]:
        """Return the parts of a schema that all hold for a value: itself, `$ref` and `allOf`, followed recursively."""
        return self._closure([schema], lambda part: [self.target(part.get("$ref")), *_members(part, ("allOf",))])

    def applicable(self, schemas: Iterable[JsonValue]) -> list[JsonObject]:
        """Return all parts of the schemas that may describe one value, including the parts of every branch."""
        return self._closure(schemas, self._parts)

    def _closure(self, schemas: Iterable[JsonValue], parts: _Parts) -> list[JsonObject]:
        schemas_by_id: dict[int, JsonObject] = {}
        pending = list(schemas)[::-1]
        while pending:
            schema = pending.pop()
            if isinstance(schema, dict) and id(schema) not in schemas_by_id:
                schemas_by_id[id(schema)] = schema
                pending += list(parts(schema))[::-1]
        return list(schemas_by_id.values())

    def _parts(self, schema: JsonObject) -> Iterator[JsonValue]:
        yield self.target(schema.get("$ref"))
        yield from _members(schema, _BRANCHES)
        yield from (schema[name] for name in _CONDITIONS if name in schema)
        yield from _values(schema, _DEPENDENCIES)

    def _find(self, reference: str) -> JsonValue:
        base, _, fragment = reference.partition("#")
        resource = self._schema if not base else self._resources().get(base)
        if resource is None or not fragment:
            return resource
        if fragment.startswith("/"):
            resolved = resolve_reference(f"#{fragment}", resource)
            return None if resolved is None else resolved[0]
        return self._resources().get(f"#{fragment}")

    def _resources(self) -> dict[str, JsonObject]:
        """Return the subschemas that have a name, by `$id`, or by `#` and their anchor."""
        if self._named is None:
            self._named = {}
            for part in objects(self._schema):
                for keyword, mark in (("$id", ""), ("id", ""), ("$anchor", "#"), ("$dynamicAnchor", "#")):
                    name = part.get(keyword)
                    if isinstance(name, str):
                        self._named.setdefault(f"{mark}{name.removesuffix('#')}", part)
        return self._named


def property_schemas(parts: Iterable[JsonObject], name: str) -> list[JsonValue]:
    """Return the schemas that parts have for the property `name`, declared or not."""
    schemas: list[JsonValue] = []
    for part in parts:
        declared = declared_properties(part)
        if name in declared:
            schemas.append(declared[name])
        schemas += _values(part, ("patternProperties",))
        schemas += [part[keyword] for keyword in _OTHER_PROPERTIES if keyword in part]
    return schemas


def item_schemas(parts: Iterable[JsonObject]) -> list[JsonValue]:
    """Return the schemas that parts have for the items of a list, at any index."""
    schemas: list[JsonValue] = []
    for part in parts:
        for keyword in _ITEMS:
            schema = part.get(keyword)
            schemas += schema if isinstance(schema, list) else [schema]
    return schemas


def declared_properties(schema: JsonObject) -> JsonObject:
    """Return the properties that a schema declares itself."""
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def required_names(schema: JsonObject) -> list[str]:
    """Return the names that a schema requires, each once. In draft 3 and sloppy schemas the property has `required`."""
    required = schema.get("required")
    names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    flagged = (
        name
        for name, inner in declared_properties(schema).items()
        if isinstance(inner, dict) and inner.get("required") is True
    )
    return list(dict.fromkeys((*names, *flagged)))


def branches(schema: JsonObject, keyword: str) -> list[JsonValue]:
    """Return the branches of `anyOf`, `oneOf` or `allOf`; empty if they are malformed."""
    value = schema.get(keyword)
    return value if isinstance(value, list) else []


def conjoined(conjuncts: Iterable[JsonObject]) -> JsonObject:
    """Return one schema for parts that all hold: the first value of each keyword, all properties and names required."""
    joined: JsonObject = {}
    properties: JsonObject = {}
    required: list[str] = []
    has_evaluating_keyword = False
    for part in conjuncts:
        has_evaluating_keyword |= bool(part.keys() & EVALUATING)
        joined |= {keyword: value for keyword, value in part.items() if keyword not in ("allOf", "$ref", *joined)}
        required += required_names(part)
        for name, schema in declared_properties(part).items():
            first = properties.get(name)
            properties[name] = {**schema, **first} if isinstance(schema, dict) and isinstance(first, dict) else schema
    if has_evaluating_keyword:  # `unevaluatedProperties` counts what these parts evaluate, of which some is not joined
        joined.pop("unevaluatedProperties", None)
    if properties:
        joined["properties"] = properties
    if required:
        joined["required"] = [*dict.fromkeys(required)]
    return joined


def _with_alternatives(schema: JsonObject) -> JsonObject:
    values = [*branches(schema, "enum"), *([schema["const"]] if "const" in schema else [])]
    alternatives: list[JsonValue] = [_exactly(value) for value in values if isinstance(value, dict)]
    rest: JsonObject = {keyword: value for keyword, value in schema.items() if keyword not in ("enum", "const")}
    return {**rest, "allOf": [*branches(schema, "allOf"), {"anyOf": alternatives}]} if alternatives else rest


def _exactly(value: JsonObject) -> JsonObject:
    return {"properties": {name: {"const": item} for name, item in value.items()}, "required": [*value]}


def _members(schema: JsonObject, keywords: Iterable[str]) -> Iterator[JsonValue]:
    for keyword in keywords:
        yield from branches(schema, keyword)


def _values(schema: JsonObject, keywords: Iterable[str]) -> Iterator[JsonValue]:
    for keyword in keywords:
        table = schema.get(keyword)
        if isinstance(table, dict):
            yield from table.values()
