"""The base of all records, their JSON, and helpers for JSON values.

Everything that is written to a log or a cache is a `Record`: an immutable pydantic model with camelCase keys.
Two rules keep logs readable and verifiable in every version:

- Unknown keys are ignored, and empty values are left out (`falsy`): a field with a default can be added at any time.
- Digests cover canonical JSON (`canonical_json`), never a model's current JSON. Changing that form requires a new
  version of everything that is digested.

JSON from outside enters by `read_json`, which rejects values that could not be stored and read again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from math import isfinite
from operator import not_
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, cast

from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel, to_snake
from pydantic.fields import FieldInfo
from pydantic_core import from_json

from perstack.core.base.text import REDACTED, did_you_mean
from perstack.dataclass import dataclass
from perstack.errors import UsageError

if not TYPE_CHECKING:
    from pydantic_core import ArgsKwargs

_LONE_SURROGATE = "[\ud800-\udfff]"

JsonObject = dict[str, JsonValue]


falsy = not_  # condition for `Field(exclude_if=falsy)`, which omits zero, false and empty values to keep lines short


class StrictCalls(type):
    """Metaclass of pydantic's dataclasses and records: wrong arguments raise a UsageError of one line.

    It affects calls in Python only: pydantic calls no class where it reads JSON or a definition, which may have keys of
    newer versions. A class may have `argument_names`, other names for its fields.
    """

    if not TYPE_CHECKING:  # a type checker takes the signature from the fields

        def __call__(cls, *args, **kwargs):
            """Create an instance. Raises UsageError for an unknown argument, or values of a wrong type."""
            instance = cls.__new__(cls)
            try:  # does what pydantic's own `__init__` does, without its frame
                cls.__pydantic_validator__.validate_python(
                    # asked of the class, since `isinstance(instance, BaseModel)` enters a method of its metaclass
                    ArgsKwargs(args, kwargs) if args or not isinstance(cls, type(BaseModel)) else kwargs,
                    self_instance=instance,
                    extra="forbid",
                )
            except ValidationError as error:
                kwargs = _arguments_by_field(cls, error, kwargs)
            else:
                return instance
            try:
                return super().__call__(*args, **kwargs)
            except ValidationError as error:
                problem = error
            # raised outside the handler: a traceback would otherwise show pydantic's error, too
            raise UsageError(_message_for(cls, problem, args, kwargs))


if TYPE_CHECKING:
    _Record = BaseModel  # pydantic has no public name for its metaclass
else:

    class _StrictModel(StrictCalls, type(BaseModel)):
        """Metaclass of records."""

    class _Record(BaseModel, metaclass=_StrictModel, defer_build=True):
        pass


_UNKNOWN_ARGUMENT = ("extra_forbidden", "unexpected_keyword_argument")


def _arguments_by_field(cls: type, error: ValidationError, kwargs: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments under the names of their fields. Raises UsageError for an unknown name."""
    aliases, fields = _argument_names(cls)
    for detail in error.errors(include_url=False, include_input=False):
        *path, name = map(str, detail["loc"] or ("",))
        # for pydantic a field that has both of its names as arguments is an unknown one, too
        if detail["type"] not in _UNKNOWN_ARGUMENT or (not path and (name in aliases or name in fields)):
            continue
        remedy = "leave it out" if path else did_you_mean(name, list(fields.values()))
        raise UsageError(f"{cls.__name__}: there is no argument `{'.'.join([*path, name])}`; {remedy}") from None
    return {aliases.get(name, name): value for name, value in kwargs.items()}


def _message_for(cls: type, error: ValidationError, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
    from perstack.core.base.validation_errors import describe_errors

    fields = _argument_names(cls)[1]
    names: dict[str | int, str] = dict(enumerate(fields.values()))
    for field, name in fields.items():
        names[field] = names[to_camel(field)] = name
    values = {**dict(zip(fields.values(), args, strict=False)), **{names.get(key, key): kwargs[key] for key in kwargs}}
    errors = error.errors(include_url=False, include_input=False)
    for detail in errors:
        first, *rest = detail["loc"] or ("",)
        detail["loc"] = (names.get(first, first), *rest)
    return f"{cls.__name__}: {' '.join(describe_errors(errors, values).split())}"


def _argument_names(cls: type) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return two maps: from other names of fields to the fields, and from each field to its argument's name."""
    aliases = cast("Mapping[str, str]", getattr(cls, "argument_names", {}))
    of_field = {field: alias for alias, field in aliases.items()}
    fields = cast("Mapping[str, object]", getattr(cls, "__pydantic_fields__", {}))
    return aliases, {field: of_field.get(field, field) for field in fields}


class Record(_Record):
    """The base of immutable records: camelCase in JSON, snake_case in Python.

    Unknown keys of JSON are ignored, so that logs of newer versions can be read; unknown arguments in Python are
    errors. Modules with records avoid `from __future__ import annotations`, because pydantic compiles each text
    annotation at every start.
    """

    # Cache the camelCase form of names that many models share, and skip the check against pydantic's own names.
    model_config = ConfigDict(
        alias_generator=cache(to_camel),
        populate_by_name=True,
        extra="ignore",
        defer_build=True,
        protected_namespaces=(),
    )

    def to_json(self) -> bytes:
        """Return compact UTF-8 JSON with camelCase keys, without None values."""
        return encode_record(self)[1]


class IllegalEvent(ValueError):
    """An event that cannot follow in the current state, where this host never writes it."""


F = TypeVar("F", bound=Record)
_Value = TypeVar("_Value")


# Redaction. Each field that a person, a model or a tool wrote has a mark that says what a redaction leaves of it.


@dataclass(frozen=True, slots=True)
class Redactable:
    """Mark of a field that a person, a model or a tool wrote. A redaction leaves `remains(value)` of its value."""

    remains: Callable[..., object] | None = None  # None: the field's default remains


def _placeholders(value: str | tuple[str, ...]) -> str | tuple[str, ...]:
    return REDACTED if isinstance(value, str) else tuple(REDACTED for _ in value)


def _no_members(value: JsonObject) -> JsonObject:
    return {}


TEXT = Redactable(_placeholders)
EMPTIED = Redactable()
Text = Annotated[str, TEXT]
Arguments = Annotated[JsonObject, Redactable(_no_members)]


def blank(record: F) -> F:
    """Return the record as a redaction leaves it, with all records in it. Idempotent."""
    fields = {name: (field, getattr(record, name)) for name, field in type(record).model_fields.items()}
    changed = {name: remains for name, (field, value) in fields.items() if (remains := _remains(field, value)) != value}
    return record.model_copy(update=changed) if changed else record


def _remains(field: FieldInfo, value: object) -> object:
    mark = next((item for item in field.metadata if isinstance(item, Redactable)), None)
    if mark is not None:
        default = field.get_default(call_default_factory=True)
        return default if mark.remains is None or value == default else mark.remains(value)
    if isinstance(value, tuple):
        return tuple(blank(item) if isinstance(item, Record) else item for item in cast("tuple[object, ...]", value))
    return blank(value) if isinstance(value, Record) else value


def fields_of(record: BaseModel, target: type[BaseModel], **changes: object) -> dict[str, Any]:
    """Return the values of the fields that a record shares with another class, with `changed` ones replaced."""
    shared = [name for name in target.model_fields if name in type(record).model_fields]
    return {**{name: getattr(record, name) for name in shared}, **changes}


def encode_record(record: F) -> tuple[F, bytes]:
    """Return the record and its JSON.

    Lone surrogates, which models, servers and file names can produce and UTF-8 cannot encode, become U+FFFD in both.
    Raises ValueError if a value is nested some hundred levels deep.
    """
    try:
        # the same as `model_dump_json`, which makes a text of it in between
        return record, record.__pydantic_serializer__.to_json(record, by_alias=True, exclude_none=True)
    except ValueError:
        cleaned = type(record).model_validate(_replace_surrogates(record.model_dump()))
        return cleaned, cleaned.model_dump_json(by_alias=True, exclude_none=True).encode()


def _replace_surrogates(value: object) -> object:
    match value:
        case str():
            return re.sub(_LONE_SURROGATE, "\ufffd", value)
        case dict():
            return {
                _replace_surrogates(name): _replace_surrogates(item)
                for name, item in cast("dict[object, object]", value).items()
            }
        case list() | tuple():
            return [_replace_surrogates(item) for item in cast("Sequence[object]", value)]
        case _:
            return value


class EventParser(Generic[F]):
    """Parser of the events of one kind of log, built at the first event: a process that only starts Jobs reads none."""

    def __init__(self, build: Callable[[], TypeAdapter[F]]) -> None:
        self._build = build
        self._adapter: TypeAdapter[F] | None = None

    def __call__(self, payload: bytes) -> F:
        """Return the event in a JSON text. Raises pydantic's ValidationError."""
        if self._adapter is None:
            self._adapter = self._build()
        return self._adapter.validate_json(payload)


def snake_cased(values: Mapping[str, _Value]) -> dict[str, _Value]:
    """Return the values with names in camelCase changed to snake_case; a name that is there in both forms stays."""
    names = {name: to_snake(name) for name in values}
    return {
        snake if to_camel(snake) == name and snake not in values else name: values[name]
        for name, snake in names.items()
    }


# Canonical JSON for digests: one text per value. docs/events.md specifies it: Python's `json` without spaces and
# escapes, keys in their existing order, in which they are sent to models too. A change needs a new version of
# everything that is digested.

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False).encode


def canonical_json(value: JsonValue) -> bytes:
    """Return the canonical text of a JSON value; a number that is not finite becomes null, as in a log."""
    try:
        text = _encode(value)
    except ValueError:
        text = _encode(_null_infinities(value))
    return text.encode("utf-8", "surrogatepass")


def canonical_record(record: Record, *, has_floats: bool = True) -> bytes:
    """Return the canonical text of a record: as in a log, except for the notation of floats."""
    if not has_floats:
        with suppress(ValueError):  # a lone surrogate
            # pydantic writes everything else as `json` does, and much faster
            return record.__pydantic_serializer__.to_json(record, by_alias=True, exclude_none=True)
    return canonical_json(record.model_dump(mode="json", by_alias=True, exclude_none=True))


def _null_infinities(value: JsonValue) -> JsonValue:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {key: _null_infinities(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_null_infinities(item) for item in value]
    return value


# Nesting is measured without recursion, because values may be deeper than any stack.


def layers(value: object) -> Iterator[list[object]]:
    """Yield a value, then its direct children, then their children, and so on; for JSON and TOML."""
    layer = [value]
    while layer:
        yield layer
        children: list[object] = []
        for item in layer:
            if isinstance(item, dict):
                children += cast("dict[str, object]", item).values()
            elif isinstance(item, list):
                children += cast("list[object]", item)
        layer = children


# JSON from outside is accepted only if it can be stored and read again completely.

_HUGE = re.compile(rb"[eE]\+?[0-9]{3}|[0-9]{200}")  # any number too large for a float contains this


def read_json(data: bytes) -> JsonValue:
    """Return the value. Raises ValueError if the data is not UTF-8 JSON that can be stored completely.

    Also refused are values nested some 200 levels deep, numbers that are not finite or exceed a float, and lone
    surrogates.
    """
    value: JsonValue = from_json(data, allow_inf_nan=False)
    if _HUGE.search(data) and _has_infinity(value):
        raise ValueError("a number is out of range")
    return value


def _has_infinity(value: JsonValue) -> bool:
    remaining = [value]
    while remaining:
        item = remaining.pop()
        if isinstance(item, float) and math.isinf(item):
            return True
        if isinstance(item, (list, dict)):
            remaining.extend(cast("Iterable[JsonValue]", item.values() if isinstance(item, dict) else item))
    return False


def first_problem(error: ValidationError) -> tuple[str, str]:
    """Return the place and the message of pydantic's first error; the place is empty for the whole value."""
    first = error.errors(include_url=False, include_input=False)[0]
    return ".".join(map(str, first["loc"])), first["msg"]


def texts_in(value: JsonValue, *, keys: bool = False) -> Iterator[str]:
    """Yield every text in order, with or without the keys of objects."""
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from texts_in(item, keys=keys)
        case dict():
            for name, inner in value.items():
                if keys:
                    yield name
                yield from texts_in(inner, keys=keys)
        case _:
            return


def map_texts(table: JsonObject, change: Callable[[str], str]) -> JsonObject:
    return {name: _map_texts(item, change) for name, item in table.items()}


def _map_texts(value: JsonValue, change: Callable[[str], str]) -> JsonValue:
    match value:
        case str():
            return change(value)
        case list():
            return [_map_texts(item, change) for item in value]
        case dict():
            return map_texts(value, change)
        case _:
            return value
