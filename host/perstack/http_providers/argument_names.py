"""Rename the arguments of a tool whose names a wire format refuses, and rename them back in calls.

A server may name an argument `$filter`, `uids[]` or in any alphabet. Formats that check names refuse the whole request
for one of them. So the model sees a legal name, calls are mapped back before they leave the provider, and calls in the
history are mapped to the legal name again, so that the model sees what it wrote.

One name has one substitute within a tool, and no substitute is the name of another argument of the tool. A name is
replaced only where the schema declares or requires it: equal keys of free-form data inside the arguments stay.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping
from hashlib import sha256
from typing import cast

from pydantic import JsonValue

from perstack.core.base.records import JsonObject, layers
from perstack.core.schemas.json_schema import MAX_VALUE_DEPTH
from perstack.dataclass import dataclass
from perstack.http_providers.schema_document import (
    SchemaDocument,
    declared_properties,
    item_schemas,
    property_schemas,
    required_names,
)


@dataclass(frozen=True, slots=True)
class NameRule:
    """Names that a wire format accepts, as character classes of regular expressions."""

    first: str  # characters that a name may begin with
    rest: str  # characters that it may contain
    max_chars: int = 64

    def accepts(self, name: str) -> bool:
        """Return whether the format accepts the name."""
        return re.fullmatch(f"[{self.first}][{self.rest}]{{0,{self.max_chars - 1}}}", name) is not None

    def nearest(self, name: str, taken: Collection[str], default: str) -> str:
        """Return an accepted, free name that is similar to `name`, or to `default` if no character is accepted."""
        letters = "".join(
            char for char in unicodedata.normalize("NFKD", name[:1000]) if not unicodedata.combining(char)
        )
        words = re.sub(f"[^{self.rest}]+", "_", letters).strip("_") or default
        words = words if re.match(f"[{self.first}]", words) else f"_{words}"
        digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        suffixes = ("", *(f"_{number}" for number in range(2, 10)), f"_{digest}")
        candidates = (words[: self.max_chars - len(suffix)] + suffix for suffix in suffixes)
        return next(candidate for candidate in candidates if candidate not in taken)


class ArgumentNames:
    """Substitutes of the argument names of one tool, for one rule."""

    def __init__(self, document: SchemaDocument, rule: NameRule | None) -> None:
        """Choose the substitutes; without a rule there are none."""
        self._document = document
        self._by_name = {} if rule is None else _substitutes(document, rule)
        self._by_substitute = {substitute: name for name, substitute in self._by_name.items()}
        self._known: dict[
            tuple[int, ...], _Declared
        ] = {}  # declarations by the identity of their schemas, which it keeps alive

    @property
    def changes(self) -> tuple[tuple[str, str], ...]:
        """Each replaced name with its substitute."""
        return tuple(self._by_name.items())

    def on_wire(self, name: str) -> str:
        """Return the name of an argument as the model sees it."""
        return self._by_name.get(name, name)

    def to_wire(self, args: JsonObject) -> JsonObject:
        """Return the arguments of a call under the names that the model sees."""
        return self._rename_all(args, to_wire=True)

    def data_to_wire(self, value: JsonValue, schema: JsonObject) -> JsonValue:
        """Return a value that a schema names, such as a default, under the names that the model sees."""
        is_changed = bool(self._by_name) and isinstance(value, dict | list)
        return self._rename_keys(value, [schema], to_wire=True) if is_changed else value

    def from_wire(self, args: JsonObject) -> JsonObject:
        """Return the arguments of a model's call under the tool's names. Names that are the tool's own are kept."""
        return self._rename_all(args, to_wire=False)

    def _rename_all(self, args: JsonObject, *, to_wire: bool) -> JsonObject:
        if not self._by_name or _is_too_deep(args):
            return args
        return cast("JsonObject", self._rename_keys(args, [self._document.root], to_wire=to_wire))

    def _rename_keys(self, value: JsonValue, schemas: list[JsonValue], *, to_wire: bool) -> JsonValue:
        if isinstance(value, list):
            inner = item_schemas(self._declared(schemas).parts)
            return [self._rename_keys(item, inner, to_wire=to_wire) for item in value] if inner else value
        if not isinstance(value, dict):
            return value
        declared = self._declared(schemas)
        if not declared.parts:
            return value
        new_names = _swapped(value, self._new_name(declared.names, to_wire=to_wire))
        renamed: JsonObject = {}
        for key, item in value.items():
            new_key = new_names[key]
            inner = property_schemas(declared.parts, key if to_wire else new_key)
            renamed[new_key] = self._rename_keys(item, inner, to_wire=to_wire)
        return renamed

    def _new_name(self, declared: frozenset[str], *, to_wire: bool) -> Callable[[str], str | None]:
        def wire_name(key: str) -> str | None:
            return self._by_name.get(key) if key in declared else None

        def own_name(key: str) -> str | None:
            name = self._by_substitute.get(key)
            return name if name in declared else None

        return wire_name if to_wire else own_name

    def _declared(self, schemas: list[JsonValue]) -> _Declared:
        key = tuple(map(id, schemas))
        if key not in self._known:
            parts = self._document.applicable(schemas)
            listed = (name for part in parts for name in (*declared_properties(part), *required_names(part)))
            names = frozenset(name for name in listed if name in self._by_name)
            self._known[key] = _Declared(schemas, parts, names)
        return self._known[key]


@dataclass(frozen=True, slots=True)
class _Declared:
    schemas: list[JsonValue]
    parts: list[JsonObject]  # all parts of the schemas that apply to a value
    names: frozenset[str]  # replaced names that they declare


def _swapped(value: JsonObject, new_name: Callable[[str], str | None]) -> Mapping[str, str]:
    """Return the new name of each key. An undeclared key in the way of a new name takes the name that became free.

    Otherwise one of both values would be lost, and the way back would not be exact.
    """
    new_names = {key: renamed for key in value if (renamed := new_name(key)) is not None}
    freed = {renamed: key for key, renamed in new_names.items()}
    return {key: new_names[key] if key in new_names else freed.get(key, key) for key in value}


def _substitutes(document: SchemaDocument, rule: NameRule) -> dict[str, str]:
    names = dict.fromkeys(_names_in(document.root))
    taken = {name for name in names if rule.accepts(name)}
    substitutes: dict[str, str] = {}
    for name in names:
        if name not in taken and not rule.accepts(name):
            substitutes[name] = rule.nearest(name, taken, "argument")
            taken.add(substitutes[name])
    return substitutes


def _names_in(schema: JsonObject) -> Iterator[str]:
    for layer in layers(schema):
        for part in layer:
            if isinstance(part, dict):
                table = cast("JsonObject", part)
                yield from declared_properties(table)
                yield from required_names(table)


def _is_too_deep(args: JsonObject) -> bool:
    return any(level > MAX_VALUE_DEPTH for level, _ in enumerate(layers(args)))
