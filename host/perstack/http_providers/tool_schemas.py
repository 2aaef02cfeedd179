"""Turn the schema of a tool's arguments into what a wire format accepts.

Servers send any JSON Schema, in any draft, and endpoints refuse a whole request for one tool that they do not accept.
So a schema is rewritten for the format, in two steps that all vendors share:

1. `_flatten_root` joins what a root may not contain on any vendor (`$ref`, `allOf`, `anyOf`, `oneOf`) to one object:
   the properties of all branches, and as text the conditions that `required` cannot express.
2. `SchemaWriter` copies the keywords that draft 2020-12 knows, if their values fit it, and applies the format's
   `SchemaRules`. What differs between vendors is in these rules alone.

The result never demands more than the tool's schema of arguments that both can express, but often less: the host checks
each call against the original. Size and depth are bounded, so any schema ends in a schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pydantic import JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.schemas.json_schema import shorten
from perstack.http_providers.argument_names import ArgumentNames
from perstack.http_providers.schema_document import (
    SchemaDocument,
    branches,
    conjoined,
    declared_properties,
    required_names,
)
from perstack.http_providers.schema_rules import PLAIN, SchemaRules
from perstack.http_providers.schema_writer import MAX_TEXT_CHARS, TYPES, SchemaWriter, as_json, as_text

_MAX_ALTERNATIVES = 12  # maximum sets of arguments that a sentence names
_MAX_BRANCHES = 100  # maximum branches of a schema whose requirements are compared
_MAX_PLAIN_CHARS = 6_000


def wire_schema(document: SchemaDocument, names: ArgumentNames, rules: SchemaRules) -> tuple[JsonObject, list[str]]:
    """Return a tool's schema for a wire format, and sentences for the model about what the schema cannot express."""
    flat, sentences = _flatten_root(document, names)
    if "not" in flat and "not" not in rules.root_keywords:
        sentences.append(f"Input constraint: the arguments must not match this JSON Schema: {as_text(flat['not'])}.")
    schema = SchemaWriter(document, names, rules).root(flat)
    is_empty = not schema["properties"] and not schema.keys() - _OF_NO_ARGUMENTS
    is_empty = is_empty and schema.get("additionalProperties") in (None, False)
    return (rules.no_arguments if is_empty and rules.no_arguments is not None else schema), sentences


def plain_schema(document: SchemaDocument) -> tuple[JsonObject, str]:
    """Return the schema that every wire format accepts (any object), and the tool's schema as text."""
    schema, sentences = wire_schema(document, ArgumentNames(document, None), PLAIN)
    text = shorten(as_json(schema), _MAX_PLAIN_CHARS)
    anything: JsonObject = {"type": "object", "properties": {}, "additionalProperties": True}
    return anything, " ".join((*sentences, f"The arguments are a JSON object of this JSON Schema: {text}"))


_OF_NO_ARGUMENTS = frozenset(("type", "properties", "title", "description", "required", "additionalProperties"))


# One object in place of the branches at the root.


def _flatten_root(document: SchemaDocument, names: ArgumentNames) -> tuple[JsonObject, list[str]]:
    conjuncts = document.conjuncts(document.root)
    flat: JsonObject = {**({} if "type" in document.root else {"type": "object"}), **conjoined(conjuncts)}
    properties, required = declared_properties(flat), required_names(flat)
    sentences: list[str] = []
    for keyword, alternatives in _alternatives(conjuncts):
        properties = {**_merge_properties(document.applicable(alternatives)), **properties}
        parts = [document.conjuncts(branch) for branch in alternatives] if len(alternatives) <= _MAX_BRANCHES else []
        sets = [_requirement_texts(branch) for branch in parts if branch and all(map(_may_be_object, branch))]
        required += [name for name in (sets[0] if sets else ()) if all(name in required_set for required_set in sets)]
        sentences += _constraint_sentences(keyword, sets, set(required), names)
    flat |= {"type": "object", "properties": properties}
    if required:
        flat["required"] = [*dict.fromkeys(required)]
    return {keyword: value for keyword, value in flat.items() if keyword not in ("anyOf", "oneOf")}, sentences


def _alternatives(conjuncts: Iterable[JsonObject]) -> Iterator[tuple[str, list[JsonValue]]]:
    for part in conjuncts:
        for keyword in ("anyOf", "oneOf"):
            if branches(part, keyword):
                yield keyword, branches(part, keyword)


def _may_be_object(schema: JsonObject) -> bool:
    kind = schema.get("type", "object")
    return "object" in kind if isinstance(kind, list) else kind == "object" or kind not in TYPES


def _merge_properties(parts: Iterable[JsonObject]) -> JsonObject:
    """Return the properties of all parts; several declarations of one property are alternatives."""
    variants: dict[str, dict[str, JsonValue]] = {}
    for part in parts:
        for name, schema in declared_properties(part).items():
            variants.setdefault(name, {})[as_json(schema)] = schema
    return {name: _any_of([*schemas.values()]) for name, schemas in variants.items()}


def _any_of(schemas: list[JsonValue]) -> JsonValue:
    if len(schemas) == 1:
        return schemas[0]
    choices = [_listed_values(schema) for schema in schemas]
    values = [choice for choice in choices if choice is not None]
    if len(values) < len(choices):
        return {"anyOf": schemas}
    kinds = {kind for schema in schemas if isinstance(schema, dict) and isinstance(kind := schema.get("type"), str)}
    return {**({"type": kinds.pop()} if len(kinds) == 1 else {}), "enum": [value for few in values for value in few]}


def _listed_values(schema: JsonValue) -> list[JsonValue] | None:
    """Return the values of a schema that only lists values, such as the mark of a variant; None for any other."""
    if not isinstance(schema, dict) or schema.keys() - {"const", "enum", "type", "title", "default"}:
        return None
    return [schema["const"]] if "const" in schema else branches(schema, "enum") or None


def _requirement_texts(parts: Iterable[JsonObject]) -> dict[str, str]:
    """Return for each name that an alternative requires the text ` = value` if it has one value; else an empty text."""
    words: dict[str, str] = {}
    for part in parts:
        for name in required_names(part):
            value = _listed_values(declared_properties(part).get(name))
            words[name] = "" if value is None or len(value) != 1 else f" = {as_text(value[0])}"
    return words


def _constraint_sentences(keyword: str, sets: list[dict[str, str]], known: set[str], names: ArgumentNames) -> list[str]:
    lists = [
        ", ".join(f"{names.on_wire(name)}{words}" for name, words in required.items() if words or name not in known)
        for required in sets
    ]
    options = [*dict.fromkeys(lists)]
    if len(options) < 2 or "" in options:
        return []
    entries = [f"({number}) {option}" for number, option in enumerate(options[:_MAX_ALTERNATIVES], 1)]
    rest = f", or one of {len(options) - len(entries)} more sets" if len(options) > len(entries) else ""
    amount = "exactly one of these sets" if keyword == "oneOf" else "one of these sets"
    return [shorten(f"Input constraint: give {amount} of arguments: {'; '.join(entries)}{rest}.", MAX_TEXT_CHARS)]
