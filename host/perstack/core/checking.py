"""Checks of values against JSON Schemas that strangers wrote. All validators are made here, and every check ends.

A check has steps to spend, some microseconds each, and no clock. Patterns run in linear time, a `$ref` is only looked
for in the schema itself, and a `$schema` inside a schema changes nothing of this.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, cast

from pydantic import JsonValue

from perstack.core.base import JsonObject
from perstack.core.depth import layers
from perstack.core.patterns import compiled
from perstack.core.schema_keywords import CHECK, Check, Meter, Unfinished, bounded, objects, shortened
from perstack.dataclass import dataclass

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

QUICK = 5_000
"""Steps that an event loop can wait for: some 20 ms."""
FULL = 400_000
"""Steps that are worth a thread: a second or two of a processor."""
DEEPEST = 100
"""Levels of a value: more would exhaust the stack of what reads it."""
DEEPEST_SCHEMA = 64

_MOST_ERRORS = 100


@dataclass(frozen=True, slots=True)
class Violation:
    """Why a value does not fit, or was not checked to the end."""

    message: str
    place: str = ""
    is_unfinished: bool = False
    """With more steps, or a stack that is less deep, there may be another answer."""


class Checker:
    """Checks values against one schema. What it needs is imported and made at the first check."""

    def __init__(self, schema: Mapping[str, JsonValue]) -> None:
        self._schema = dict(schema)
        self._validator: Validator | None = None
        self._reference_price = 0
        self._has_pattern_properties = False

    def violation(self, value: JsonValue, meter: Meter) -> Violation | None:
        """The first by its place of what does not fit; None if all does. Never raises, whatever the schema is."""
        from referencing.exceptions import Unresolvable

        try:
            return self._found(value, meter)
        except Unfinished:
            return Violation("too large or too involved to be checked against the schema", is_unfinished=True)
        except RecursionError:
            return Violation("nested too deep to be checked against the schema", is_unfinished=True)
        except Unresolvable as error:
            return Violation(f"the schema refers to {str(error.ref)[:200]}, which is not in it: nothing can be checked")
        except Exception as error:  # noqa: BLE001 - the schema is a stranger's, and may be anything
            return Violation(f"the schema is invalid, nothing can be checked: {shortened(str(error), 200)}")

    def _found(self, value: JsonValue, meter: Meter) -> Violation | None:
        if _is_deeper(value, DEEPEST, meter):
            return Violation(f"more than {DEEPEST} levels deep")
        if self._validator is None:
            self._measure(meter)
            self._validator = _validator(self._schema)
        token = CHECK.set(Check(meter, self._reference_price, self._has_pattern_properties))
        try:
            errors = islice(self._validator.iter_errors(value), _MOST_ERRORS)
            first = min(errors, key=lambda error: [str(part) for part in error.path], default=None)
        finally:
            CHECK.reset(token)
        if first is None:
            return None
        return Violation(first.message, shortened("/".join(str(part) for part in first.absolute_path), 200))

    def _measure(self, meter: Meter) -> None:
        size, is_named = 0, False
        for one in objects(self._schema):
            size += 1 + len(one)
            meter.spend()
            is_named = is_named or any(name in one for name in ("$id", "id", "$anchor", "$dynamicAnchor"))
            self._has_pattern_properties = self._has_pattern_properties or "patternProperties" in one
        # a name inside a schema is looked for in all of it, anew for each reference
        self._reference_price = 1 + (size // 4 if is_named else 0)


def schema_problem(schema: JsonValue, meter: Meter) -> str | None:
    """Why nothing can be checked against a schema; None if it can, or is not an object. Spends steps, never raises."""
    if not isinstance(schema, dict):
        return None
    try:
        if _is_deeper(schema, DEEPEST_SCHEMA, meter):
            return f"its schema is more than {DEEPEST_SCHEMA} levels deep"
        references = [one for inner in objects(schema) if isinstance(one := inner.get("$ref"), str)]
        meter.spend(len(references))
    except Unfinished:
        return "its schema is too large to be checked"
    found = _metachecker(json.dumps(schema.get("$schema"))[:1000]).violation(schema, meter)
    if found is not None and found.is_unfinished:
        return "its schema is too large to be checked"
    if found is not None:
        return f"its schema is invalid at {found.place or 'the top'}: {shortened(found.message, 200)}"
    broken = next((one for one in references if not _resolves(one, schema)), None)
    return None if broken is None else f"its schema refers to {broken[:200]}, which is not in it"


def unchecked(schema: JsonValue) -> list[str]:
    """What of a schema is not checked, each with the reason, in a line."""
    found: dict[str, None] = {}
    has_pattern_properties, has_unevaluated = False, False
    for inner in objects(schema):
        properties = inner.get("patternProperties")
        has_pattern_properties = has_pattern_properties or isinstance(properties, dict)
        has_unevaluated = has_unevaluated or "unevaluatedProperties" in inner
        for pattern in _patterns(inner):
            why = compiled(pattern)
            if isinstance(why, str):
                found[f"pattern {shortened(pattern, 100)} is not checked: {why}"] = None
    if has_pattern_properties and has_unevaluated:
        found["unevaluatedProperties is not checked beside patternProperties"] = None
    return list(found)


def _is_deeper(value: JsonValue, levels: int, meter: Meter) -> bool:
    """Whether a value has more levels; each value in it costs a part of a step. Raises Unfinished."""
    for level, layer in enumerate(layers(value)):
        meter.spend(len(layer) // 8)
        if level > levels:
            return True
    return False


def _patterns(schema: JsonObject) -> Iterator[str]:
    pattern, properties = schema.get("pattern"), schema.get("patternProperties")
    if isinstance(pattern, str):
        yield pattern
    if isinstance(properties, dict):
        yield from properties


def _validator(schema: JsonObject) -> Validator:
    from jsonschema.validators import Draft202012Validator, validator_for  # 35 ms of imports, at the first check
    from referencing import Registry

    named = schema.get("$schema")
    base = validator_for(schema, Draft202012Validator) if isinstance(named, str) else Draft202012Validator
    return bounded(base)(schema, registry=Registry())


@lru_cache(maxsize=16)
def _metachecker(named: str) -> Checker:
    """For the draft that a schema names, in JSON."""
    from jsonschema.validators import Draft202012Validator, validator_for

    name = named[1:-1] if named.startswith('"') else ""
    base = validator_for({"$schema": name}, Draft202012Validator) if name else Draft202012Validator
    return Checker(cast("JsonObject", base.META_SCHEMA))


def _resolves(reference: str, schema: JsonObject) -> bool:
    is_named = reference.startswith("#") and not reference.startswith("#/")
    return is_named or named_by(reference, schema) is not None


def named_by(reference: str, schema: JsonObject) -> tuple[JsonValue] | None:
    """What a `$ref` names by its place in the schema; None if there is nothing, or it has another name."""
    if reference == "#":
        return (schema,)
    if not reference.startswith("#/"):
        return None
    found: JsonValue = schema
    for part in reference[2:].split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        inner = _at(found, key)
        if inner is None:
            return None
        found = inner[0]
    return (found,)


def _at(value: JsonValue, key: str) -> tuple[JsonValue] | None:
    if isinstance(value, dict):
        return (value[key],) if key in value else None
    if isinstance(value, list):
        return (value[int(key)],) if key.isascii() and key.isdigit() and int(key) < len(value) else None
    return None
