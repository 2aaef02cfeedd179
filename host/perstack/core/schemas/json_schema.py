"""Check values against untrusted JSON Schemas in bounded time.

All validators are created here. A check spends steps from a `Meter`, each some microseconds, and stops when they are
used up. There is no clock, so the result is the same everywhere. Patterns run in linear time, a `$ref` is only resolved
within the schema, and a nested `$schema` is ignored. A keyword that could take longer than its steps say needs its own
implementation in `_bounded_keywords`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote

from pydantic import JsonValue

from perstack.core.base.records import JsonObject, layers
from perstack.core.schemas.patterns import compile_pattern
from perstack.dataclass import dataclass

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator
    from referencing.jsonschema import Schema, SchemaRegistry

    _Keyword = Callable[[Validator, JsonValue, JsonValue, JsonObject], Iterable[ValidationError] | None]


_MAX_MESSAGE_CHARS = 600
_ERROR_STEPS = 3  # steps for creating an error with its path and message
_CONTAINERS = (list, dict)


class Unfinished(Exception):
    """A check that has used up its steps."""


class Meter:
    """The steps that remain for a check, or for several that share them."""

    def __init__(self, steps: int) -> None:
        self.remaining = steps

    def spend(self, steps: int = 1) -> None:
        """Subtract the steps. Raises Unfinished if none are left."""
        self.remaining -= steps
        if self.remaining < 0:
            raise Unfinished


@dataclass(frozen=True, slots=True)
class CheckContext:
    """State of the current check that keywords use. Resolving a `$ref` costs `reference_price` steps."""

    meter: Meter
    reference_price: int
    has_pattern_properties: bool


CHECK: ContextVar[CheckContext] = ContextVar("check")


def objects(value: JsonValue) -> Iterator[JsonObject]:
    """Yield all objects in a value, including itself, in any order."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield item
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item


def shorten(text: str, max_chars: int = _MAX_MESSAGE_CHARS) -> str:
    """Return the text, or its beginning and end if it is too long."""
    return text if len(text) <= max_chars else f"{text[: max_chars * 2 // 3]} … {text[-(max_chars // 3) :]}"


@lru_cache(maxsize=16)
def limit_steps(base: type[Validator]) -> type[Validator]:
    """Return a validator class of this draft whose keywords spend steps."""
    extend = cast("Callable[..., type[Validator]]", import_module("jsonschema.validators").extend)  # untyped
    keywords = cast("Mapping[str, _Keyword]", base.VALIDATORS)
    bounded = {name: keyword for name, keyword in _bounded_keywords(keywords).items() if name in keywords}
    metered = {name: _count_steps(keyword) for name, keyword in {**_older_keywords(), **keywords, **bounded}.items()}
    draft = extend(base, metered)
    evolve = cast("Callable[..., Validator]", getattr(draft, "evolve"))  # noqa: B009 - its type is partly unknown

    def spending(validator: Validator, **changes: object) -> Validator:
        CHECK.get().meter.spend()
        schema = changes.get("schema")
        if isinstance(schema, dict) and "$schema" in schema:
            # A nested `$schema` would select keywords that spend no steps.
            table = cast("JsonObject", schema)
            changes["schema"] = {name: value for name, value in table.items() if name != "$schema"}
        return evolve(validator, **changes)

    setattr(draft, "evolve", spending)  # noqa: B010 - the class has it, but no type says that it may be replaced
    return draft


def _older_keywords() -> dict[str, _Keyword]:
    """Return `dependencies`, which later drafts only reserve, but authors still write."""
    from jsonschema.validators import Draft7Validator

    return {"dependencies": cast("Mapping[str, _Keyword]", Draft7Validator.VALIDATORS)["dependencies"]}


def _count_steps(keyword: _Keyword) -> _Keyword:
    def run(
        validator: Validator, value: JsonValue, instance: JsonValue, schema: JsonObject
    ) -> Iterator[ValidationError]:
        meter = CHECK.get().meter
        meter.spend(1 + (_length(value) + _length(instance)) // 8)
        for error in keyword(validator, value, instance, schema) or ():
            meter.spend(_ERROR_STEPS + len(error.message) // 200)
            error.message = shorten(error.message)
            yield error

    return run


def _length(value: JsonValue) -> int:
    return len(value) if isinstance(value, _CONTAINERS) else 0


def _bounded_keywords(keywords: Mapping[str, _Keyword]) -> dict[str, _Keyword]:
    """Return implementations of the keywords that could otherwise take longer than their steps say."""
    return {
        "pattern": _pattern,
        "patternProperties": _pattern_properties(keywords["properties"]),
        "additionalProperties": _additional_properties(keywords["additionalProperties"]),
        "unevaluatedProperties": _unevaluated_properties(keywords.get("unevaluatedProperties", _pattern)),
        "uniqueItems": _unique_items,
        "enum": _compared(keywords["enum"]),
        "const": _compared(keywords.get("const", keywords["enum"])),
        **{
            name: _priced_reference(keywords[name])
            for name in ("$ref", "$dynamicRef", "$recursiveRef")
            if name in keywords
        },
    }


def _matches(pattern: str, text: str) -> bool | None:
    """Return True if the pattern is found in the text; None if it cannot be matched."""
    compiled = compile_pattern(pattern)
    if isinstance(compiled, str):
        return None
    CHECK.get().meter.spend(1 + len(text) * compiled.programsize // 1000)
    return compiled.search(text.encode("utf-8", "replace")) is not None


def _pattern(
    validator: Validator, value: JsonValue, instance: JsonValue, schema: JsonObject
) -> Iterator[ValidationError]:
    from jsonschema.exceptions import ValidationError

    if isinstance(instance, str) and _matches(str(value), instance) is False:
        yield ValidationError(f"{instance!r} does not match {value!r}")


def _pattern_properties(properties: _Keyword) -> _Keyword:
    def run(
        validator: Validator, value: JsonValue, instance: JsonValue, schema: JsonObject
    ) -> Iterator[ValidationError]:
        if not isinstance(instance, dict) or not isinstance(value, dict):
            return
        for pattern, subschema in value.items():
            declared: JsonObject = {name: subschema for name in instance if _matches(pattern, name)}
            yield from properties(validator, declared, instance, schema) or ()

    return run


def _additional_properties(keyword: _Keyword) -> _Keyword:
    def run(
        validator: Validator, value: JsonValue, instance: JsonValue, schema: JsonObject
    ) -> Iterable[ValidationError]:
        patterns = schema.get("patternProperties")
        if isinstance(patterns, dict) and isinstance(instance, dict):
            rest = (name for name in instance if all(_matches(pattern, name) is False for pattern in patterns))
            instance = {name: instance[name] for name in rest}
            schema = {name: part for name, part in schema.items() if name != "patternProperties"}
        return keyword(validator, value, instance, schema) or ()

    return run


def _unevaluated_properties(keyword: _Keyword) -> _Keyword:
    def run(
        validator: Validator, value: JsonValue, instance: JsonValue, schema: JsonObject
    ) -> Iterable[ValidationError]:
        if CHECK.get().has_pattern_properties:
            return ()  # the library would match the patterns in an unbounded engine
        return keyword(validator, value, instance, schema) or ()

    return run


def _unique_items(
    validator: Validator, value: JsonValue, instance: JsonValue, schema: JsonObject
) -> Iterator[ValidationError]:
    from jsonschema.exceptions import ValidationError

    if not value or not isinstance(instance, list):
        return
    seen: set[str] = set()
    for item in instance:
        seen.add(_canonical(item))
    if len(seen) < len(instance):
        yield ValidationError(f"{instance!r} has non-unique elements")


def _canonical(value: JsonValue) -> str:
    """Return one text for all values that are equal in JSON Schema, where 1 equals 1.0 but not true."""
    CHECK.get().meter.spend()
    match value:
        case dict():
            return f"{{{','.join(sorted(f'{name!r}:{_canonical(inner)}' for name, inner in value.items()))}}}"
        case list():
            return f"[{','.join(map(_canonical, value))}]"
        case float() if value.is_integer():
            return repr(int(value))
        case _:
            return repr(value)


def _compared(keyword: _Keyword) -> _Keyword:
    def run(
        validator: Validator, value: JsonValue, instance: JsonValue, schema: JsonObject
    ) -> Iterable[ValidationError]:
        if isinstance(instance, _CONTAINERS):
            # Each value of `enum` may be compared with everything in the instance.
            size = sum(_sizes(instance))
            CHECK.get().meter.spend(size * (1 + _length(value)) // 8)
        return keyword(validator, value, instance, schema) or ()

    return run


def _sizes(value: JsonValue) -> Iterator[int]:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, _CONTAINERS):
            yield 1 + len(item)
            waiting += item.values() if isinstance(item, dict) else item


def _priced_reference(keyword: _Keyword) -> _Keyword:
    def run(
        validator: Validator, value: JsonValue, instance: JsonValue, schema: JsonObject
    ) -> Iterable[ValidationError]:
        check = CHECK.get()
        check.meter.spend(check.reference_price)
        return keyword(validator, value, instance, schema) or ()

    return run


# Limits of checks.

QUICK_STEPS = 5_000  # steps that an event loop can wait for: about 20 ms
FULL_STEPS = 400_000  # steps that are worth a thread: one or two seconds of CPU time
MAX_VALUE_DEPTH = 100  # maximum levels of a value; more would exhaust the stack of its readers
MAX_SCHEMA_DEPTH = 64

_MAX_ERRORS = 100


@dataclass(frozen=True, slots=True)
class Violation:
    """Reason why a value does not fit, or could not be checked completely."""

    message: str
    place: str = ""  # path of the value at fault, such as `items/0`; empty for the whole
    is_unfinished: bool = False  # True if more steps, or a less deep stack, could change the answer


_ANNOTATIONS = frozenset(("title", "description", "default", "examples", "deprecated"))
_SCALARS: Mapping[JsonValue, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}


@dataclass(frozen=True, slots=True)
class _ScalarObject:
    """A schema of an object with scalar properties and no further condition, as the arguments of most tools are."""

    types: Mapping[str, tuple[type, ...]]
    required: frozenset[str]
    is_open: bool  # True if other properties are allowed

    @classmethod
    def of(cls, schema: JsonObject) -> _ScalarObject | None:
        """Return the schema in this form; None if it has any other condition."""
        properties, required = schema.get("properties", {}), schema.get("required", [])
        is_open = schema.get("additionalProperties", True)
        keys = _ANNOTATIONS | {"type", "properties", "required", "additionalProperties"}
        if not (schema.keys() <= keys and schema.get("type") == "object" and isinstance(is_open, bool)):
            return None
        if not (isinstance(properties, dict) and isinstance(required, list)):
            return None
        types: dict[str, tuple[type, ...]] = {}
        for name, subschema in properties.items():
            if not (isinstance(subschema, dict) and subschema.keys() <= _ANNOTATIONS | {"type"}):
                return None
            kind = subschema.get("type")
            if not isinstance(kind, str) or kind not in _SCALARS:
                return None
            types[name] = _SCALARS[kind]
        names = frozenset(name for name in required if isinstance(name, str))
        return cls(types, names, is_open) if len(names) == len(required) else None

    def accepts(self, value: JsonValue) -> bool:
        """Return True if the value certainly fits; False if only the validator can tell, as for the integer 1.0."""
        if not isinstance(value, dict) or not self.required <= value.keys():
            return False
        for name, item in value.items():
            types = self.types.get(name)
            if types is None:
                if not self.is_open or isinstance(item, _CONTAINERS):
                    return False
            elif not isinstance(item, types) or (isinstance(item, bool) and bool not in types):
                return False
        return True


class Checker:
    """A checker for one schema. Imports and the validator are created when they are first needed."""

    def __init__(self, schema: Mapping[str, JsonValue]) -> None:
        self._schema = dict(schema)
        self._scalars = _ScalarObject.of(self._schema)
        self._validator: Validator | None = None
        self._reference_price = 0
        self._has_pattern_properties = False

    def violation(self, value: JsonValue, meter: Meter) -> Violation | None:
        """Return the first violation by its path; None if the value fits. Never raises for any schema."""
        if self._scalars is not None and self._scalars.accepts(value):
            return None
        from referencing.exceptions import Unresolvable

        try:
            return self._find_violation(value, meter)
        except Unfinished:
            return Violation("too large or too involved to be checked against the schema", is_unfinished=True)
        except RecursionError:
            return Violation("nested too deep to be checked against the schema", is_unfinished=True)
        except Unresolvable as error:
            return Violation(f"the schema refers to {str(error.ref)[:200]}, which is not in it: nothing can be checked")
        except Exception as error:  # noqa: BLE001 - the schema is untrusted
            return Violation(f"the schema is invalid, nothing can be checked: {shorten(str(error), 200)}")

    def _find_violation(self, value: JsonValue, meter: Meter) -> Violation | None:
        if _is_deeper(value, MAX_VALUE_DEPTH, meter):
            return Violation(f"more than {MAX_VALUE_DEPTH} levels deep")
        if self._validator is None:
            self._measure_schema(meter)
            self._validator = _validator(self._schema)
        token = CHECK.set(CheckContext(meter, self._reference_price, self._has_pattern_properties))
        try:
            errors = islice(self._validator.iter_errors(value), _MAX_ERRORS)
            first = min(errors, key=lambda error: [str(part) for part in error.path], default=None)
        finally:
            CHECK.reset(token)
        if first is None:
            return None
        return Violation(first.message, shorten("/".join(str(part) for part in first.absolute_path), 200))

    def _measure_schema(self, meter: Meter) -> None:
        size, is_named = 0, False
        for subschema in objects(self._schema):
            size += 1 + len(subschema)
            meter.spend()
            is_named = is_named or any(name in subschema for name in ("$id", "id", "$anchor", "$dynamicAnchor"))
            self._has_pattern_properties = self._has_pattern_properties or "patternProperties" in subschema
        # Each reference to a named subschema searches the whole schema again.
        self._reference_price = 1 + (size // 4 if is_named else 0)


def schema_problem(schema: JsonValue, meter: Meter) -> str | None:
    """Return why a schema cannot be used for checks; None if it can, or if it is not an object. Never raises."""
    if not isinstance(schema, dict):
        return None
    try:
        if _is_deeper(schema, MAX_SCHEMA_DEPTH, meter):
            return f"its schema is more than {MAX_SCHEMA_DEPTH} levels deep"
        meter.spend(_reference_steps(schema))
    except Unfinished:
        return "its schema is too large to be checked"
    violation = _metachecker(json.dumps(schema.get("$schema"))[:1000]).violation(schema, meter)
    if violation is not None and violation.is_unfinished:
        return "its schema is too large to be checked"
    if violation is not None:
        return f"its schema is invalid at {violation.place or 'the top'}: {shorten(violation.message, 200)}"
    try:
        reference = _find_unresolved(schema, meter)
    except Unfinished:
        return "its schema is too large to be checked"
    except Exception as error:  # noqa: BLE001 - the schema is untrusted, and its addresses may be none
        return f"its schema is invalid: {shorten(str(error), 200)}"
    return None if reference is None else f"its schema refers to {reference[:200]}, which is not in it"


def unchecked_parts(schema: JsonValue) -> list[str]:
    """Return the parts of a schema that are not checked, each with the reason, one per line."""
    parts: dict[str, None] = {}
    dialect = schema.get("$schema") if isinstance(schema, dict) else None
    if isinstance(dialect, str) and not _is_known_dialect(dialect):
        parts[f"the dialect {shorten(dialect, 100)} is unknown: the schema is checked as one of draft 2020-12"] = None
    has_pattern_properties, has_unevaluated = False, False
    for subschema in objects(schema):
        properties = subschema.get("patternProperties")
        has_pattern_properties = has_pattern_properties or isinstance(properties, dict)
        has_unevaluated = has_unevaluated or "unevaluatedProperties" in subschema
        for pattern in _patterns(subschema):
            compiled = compile_pattern(pattern)
            if isinstance(compiled, str):
                parts[f"pattern {shorten(pattern, 100)} is not checked: {compiled}"] = None
    if has_pattern_properties and has_unevaluated:
        parts["unevaluatedProperties is not checked together with patternProperties"] = None
    return list(parts)


def _is_deeper(value: JsonValue, levels: int, meter: Meter) -> bool:
    """Return True if a value has more levels; each value costs an eighth of a step. Raises Unfinished."""
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


def _draft(schema: JsonObject) -> type[Validator]:
    from jsonschema.validators import Draft202012Validator, validator_for  # imports take 35 ms

    dialect = schema.get("$schema")
    return validator_for(schema, Draft202012Validator) if isinstance(dialect, str) else Draft202012Validator


def _is_known_dialect(dialect: str) -> bool:
    from referencing import Specification
    from referencing.jsonschema import specification_with

    return specification_with(dialect, default=Specification.OPAQUE) is not Specification.OPAQUE


def _validator(schema: JsonObject) -> Validator:
    from referencing import Registry

    return limit_steps(_draft(schema))(schema, registry=Registry())


@lru_cache(maxsize=16)
def _metachecker(dialect: str) -> Checker:
    from jsonschema.validators import Draft202012Validator, validator_for

    name = dialect[1:-1] if dialect.startswith('"') else ""
    base = validator_for({"$schema": name}, Draft202012Validator) if name else Draft202012Validator
    return Checker(cast("JsonObject", base.META_SCHEMA))


_REFERENCE_KEYWORDS = ("$ref", "$dynamicRef")
_MAX_REFERENCE_CHARS = 2_000


def _reference_steps(schema: JsonObject) -> int:
    """Return the steps for resolving all references once. Raises Unfinished if one is too long to be joined often."""
    references = [subschema.get(name) for subschema in objects(schema) for name in (*_REFERENCE_KEYWORDS, "$id", "id")]
    lengths = [len(reference) for reference in references if isinstance(reference, str)]
    if max(lengths, default=0) > _MAX_REFERENCE_CHARS:
        raise Unfinished
    return len(lengths) * (1 + max(lengths, default=0) // 10)


def _find_unresolved(schema: JsonObject, meter: Meter) -> str | None:
    """Return a reference without a target that a check could reach; None without one. Nothing is fetched."""
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import specification_with

    dialect = specification_with(str(cast("JsonObject", _draft(schema).META_SCHEMA).get("$schema")))
    root = dialect.create_resource(cast("Schema", schema))
    address = root.id() or ""
    drafts = cast("SchemaRegistry", import_module("jsonschema_specifications").REGISTRY)  # untyped
    resolver = drafts.with_resource(address, root).crawl().resolver(address)
    waiting, seen = [(root, resolver)], set[int]()
    while waiting:
        resource, resolver = waiting.pop()
        contents = cast("JsonValue", resource.contents)
        if not isinstance(contents, dict) or id(contents) in seen:
            continue
        meter.spend()
        seen.add(id(contents))
        for reference in map(contents.get, _REFERENCE_KEYWORDS):
            if isinstance(reference, str):
                try:
                    target = resolver.lookup(reference)
                except Unresolvable:
                    return reference
                waiting.append((dialect.create_resource(target.contents), target.resolver))
        waiting += ((child, resolver.in_subresource(child)) for child in resource.subresources())
    return None


def resolve_reference(reference: str, schema: JsonObject) -> tuple[JsonValue] | None:
    """Return the target of a `$ref` in a tuple, since it may be null; None unless it is a path within the schema."""
    if reference == "#":
        return (schema,)
    if not reference.startswith("#/"):
        return None
    target: JsonValue = schema
    for part in reference[2:].split("/"):
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        child = _child(target, key)
        if child is None:
            return None
        target = child[0]
    return (target,)


def _child(value: JsonValue, key: str) -> tuple[JsonValue] | None:
    if isinstance(value, dict):
        return (value[key],) if key in value else None
    if isinstance(value, list):
        return (value[int(key)],) if key.isascii() and key.isdigit() and int(key) < len(value) else None
    return None
