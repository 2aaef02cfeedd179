"""The keywords of JSON Schema, each of which spends steps: together they cannot take longer than these allow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, cast

from pydantic import JsonValue

from perstack.core.base import JsonObject
from perstack.core.patterns import compiled
from perstack.dataclass import dataclass

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

    _Keyword = Callable[[Validator, JsonValue, JsonValue, JsonObject], Iterable[ValidationError] | None]

_LONGEST_MESSAGE = 600
_ERROR = 3
"""Steps that it takes to make one, with its place and its message."""
_BIG_VALUES = (list, dict)


class Unfinished(Exception):
    """A check has used its steps."""


class Meter:
    """What a check may still spend; one may be shared by several."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int = 1) -> None:
        """Raises Unfinished when nothing is left."""
        self.left -= steps
        if self.left < 0:
            raise Unfinished


@dataclass(frozen=True, slots=True)
class Check:
    """What the keywords have to know of the check that they are a part of."""

    meter: Meter
    reference_price: int
    """Steps that it takes to find what a `$ref` names."""
    has_pattern_properties: bool
    """Whether they are anywhere in the schema."""


CHECK: ContextVar[Check] = ContextVar("check")
"""The one that is made now, in this thread."""


def objects(value: JsonValue) -> Iterator[JsonObject]:
    """Every object in a value, itself among them, in no order."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


def shortened(text: str, most: int = _LONGEST_MESSAGE) -> str:
    """The same, or its beginning and its end."""
    return text if len(text) <= most else f"{text[: most * 2 // 3]} … {text[-(most // 3) :]}"


@lru_cache(maxsize=16)
def bounded(base: type[Validator]) -> type[Validator]:
    """The same draft, with keywords that spend steps."""
    extend = cast("Callable[..., type[Validator]]", import_module("jsonschema.validators").extend)  # it has no types
    keywords = cast("Mapping[str, _Keyword]", base.VALIDATORS)
    own = {name: keyword for name, keyword in _own(keywords).items() if name in keywords}
    metered = {name: _metered(keyword) for name, keyword in {**keywords, **own}.items()}
    made = extend(base, metered)
    evolve = cast("Callable[..., Validator]", getattr(made, "evolve"))  # noqa: B009 - its type is partly unknown

    def spending(validator: Validator, **changes: object) -> Validator:
        CHECK.get().meter.spend()
        schema = changes.get("schema")
        if isinstance(schema, dict) and "$schema" in schema:
            # it would have keywords that spend nothing
            whole = cast("JsonObject", schema)
            changes["schema"] = {name: value for name, value in whole.items() if name != "$schema"}
        return evolve(validator, **changes)

    setattr(made, "evolve", spending)  # noqa: B010 - the class has it, but no type says that it may be replaced
    return made


def _metered(keyword: _Keyword) -> _Keyword:
    def run(
        validator: Validator, value: JsonValue, instance: JsonValue, schema: JsonObject
    ) -> Iterator[ValidationError]:
        meter = CHECK.get().meter
        meter.spend(1 + (_length(value) + _length(instance)) // 8)
        for error in keyword(validator, value, instance, schema) or ():
            meter.spend(_ERROR + len(error.message) // 200)
            error.message = shortened(error.message)
            yield error

    return run


def _length(value: JsonValue) -> int:
    return len(value) if isinstance(value, _BIG_VALUES) else 0


def _own(keywords: Mapping[str, _Keyword]) -> dict[str, _Keyword]:
    """The keywords that could take longer than their steps say."""
    return {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
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
    """None if the pattern cannot be matched."""
    found = compiled(pattern)
    if isinstance(found, str):
        return None
    CHECK.get().meter.spend(1 + len(text) * found.programsize // 1000)
    return found.search(text.encode("utf-8", "replace")) is not None


def _pattern(
    validator: Validator, value: JsonValue, instance: JsonValue, schema: JsonObject
) -> Iterator[ValidationError]:
    from jsonschema.exceptions import ValidationError

    if isinstance(instance, str) and _matches(str(value), instance) is False:
        yield ValidationError(f"{instance!r} does not match {value!r}")


def _pattern_properties(
    validator: Validator, value: JsonValue, instance: JsonValue, schema: JsonObject
) -> Iterator[ValidationError]:
    if not isinstance(instance, dict) or not isinstance(value, dict):
        return
    for pattern, subschema in value.items():
        for name, inner in instance.items():
            if _matches(pattern, name):
                yield from _descend(validator, inner, subschema, path=name, schema_path=pattern)


def _additional_properties(keyword: _Keyword) -> _Keyword:
    def run(
        validator: Validator, value: JsonValue, instance: JsonValue, schema: JsonObject
    ) -> Iterator[ValidationError]:
        from jsonschema.exceptions import ValidationError

        patterns = schema.get("patternProperties")
        if not isinstance(patterns, dict) or not isinstance(instance, dict):
            yield from keyword(validator, value, instance, schema) or ()
            return
        known = schema.get("properties")
        named = known if isinstance(known, dict) else {}
        more = [
            name
            for name in instance
            if name not in named and not any(_matches(pattern, name) is not False for pattern in patterns)
        ]
        if isinstance(value, dict):
            for name in more:
                yield from _descend(validator, instance[name], value, path=name)
        elif value is False and more:
            allowed = ", ".join(repr(pattern) for pattern in sorted(patterns))
            yield ValidationError(f"{', '.join(map(repr, more))}: no such properties, nor do they match {allowed}")

    return run


def _unevaluated_properties(keyword: _Keyword) -> _Keyword:
    def run(
        validator: Validator, value: JsonValue, instance: JsonValue, schema: JsonObject
    ) -> Iterable[ValidationError]:
        if CHECK.get().has_pattern_properties:
            return ()  # the library would match them itself, in its own engine
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
    """One text for all values that are equal in JSON Schema, where 1 is 1.0 and is not true."""
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
        if isinstance(instance, _BIG_VALUES):
            # each of the values may be compared with all that is in this one
            size = sum(_sizes(instance))
            CHECK.get().meter.spend(size * (1 + _length(value)) // 8)
        return keyword(validator, value, instance, schema) or ()

    return run


def _sizes(value: JsonValue) -> Iterator[int]:
    """Of every object and list in it."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, _BIG_VALUES):
            yield 1 + len(one)
            waiting += one.values() if isinstance(one, dict) else one


def _priced_reference(keyword: _Keyword) -> _Keyword:
    def run(
        validator: Validator, value: JsonValue, instance: JsonValue, schema: JsonObject
    ) -> Iterable[ValidationError]:
        check = CHECK.get()
        check.meter.spend(check.reference_price)
        return keyword(validator, value, instance, schema) or ()

    return run


def _descend(
    validator: Validator, instance: JsonValue, schema: JsonValue, path: str, schema_path: str | None = None
) -> Iterable[ValidationError]:
    descend = cast("Callable[..., Iterable[ValidationError]]", getattr(validator, "descend"))  # noqa: B009 - no type has it
    return descend(instance, schema, path=path, schema_path=schema_path)
