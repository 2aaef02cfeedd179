"""Translate pydantic's errors about values from outside into words for their sender."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from functools import cache, wraps
from re import findall
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs, ErrorDetails

from perstack.core.base.text import did_you_mean
from perstack.errors import UsageError

_MUST_BE = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "list_type": "a list",
    "tuple_type": "a list",
    "none_required": "null",
}
_BOUNDS = {
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "greater_than": "must be more than {gt}",
    "less_than": "must be less than {lt}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "is not of the form {pattern}",
    "json_invalid": "is not JSON: {error}",
    "invalid-json-value": "is not a JSON value",
}
_MISSING = {"missing", "missing_argument", "missing_positional_only_argument", "missing_keyword_only_argument"}
_STRAY = {"extra_forbidden", "unexpected_keyword_argument"}
_NAMES_ITSELF = _MISSING | _STRAY


def path_in(value: object, loc: Sequence[int | str], *, names_missing: bool = False) -> tuple[int | str, ...]:
    """Return a pydantic error's path in a value, without branches of unions, which the value does not have.

    `names_missing` keeps the last part although the value does not have it.
    """
    path: list[int | str] = []
    for index, part in enumerate(loc):
        match value:
            case Mapping() if part in value:
                value = cast("Mapping[object, object]", value)[part]
            case list() | tuple() if isinstance(part, int) and part < len(cast("Sequence[object]", value)):
                value = cast("Sequence[object]", value)[part]
            case _ if not names_missing or index < len(loc) - 1:
                continue
            case _:
                pass
        path.append(part)
    return tuple(path)


def in_words(errors: Iterable[ErrorDetails], given: object, known: Collection[str] = ()) -> str:
    """Return one line on each wrong value of `given`, without the values; `known`: names allowed at its top level."""
    found: dict[str, list[ErrorDetails]] = {}
    for one in errors:
        path = path_in(given, one["loc"] or ("",), names_missing=one["type"] in _NAMES_ITSELF)
        found.setdefault(".".join(map(str, path)), []).append(one)
    # An error inside a value is more precise than one about the whole value.
    inner = {name: those for name, those in found.items() if not any(other.startswith(f"{name}.") for other in found)}
    return "; ".join(_sentence(name, those, known) for name, those in inner.items())


def _sentence(name: str, errors: list[ErrorDetails], known: Collection[str]) -> str:
    place = f"`{name}`" if name else "it"
    kinds = {error["type"] for error in errors}
    if kinds <= _MISSING:
        return f"{place} is missing"
    if kinds <= _STRAY:
        return f"there is no argument {place}; {did_you_mean(name, known)}"
    choices = [choice for error in errors if error["type"] == "literal_error" for choice in _choices(error)]
    wanted = [f"one of {', '.join(choices)}"] if choices else []
    wanted += [_MUST_BE[error["type"]] for error in errors if error["type"] in _MUST_BE]
    if wanted:
        return f"{place} must be {' or '.join(dict.fromkeys(wanted))}"
    first = errors[0]
    words = _BOUNDS.get(first["type"], "{message}").format(message=_message(first), **first.get("ctx", {}))
    return f"{place} {words}" if first["type"] in _BOUNDS else f"{place}: {words}"


def _choices(error: ErrorDetails) -> list[str]:
    return findall("'([^']*)'", str(error.get("ctx", {}).get("expected")))


def _message(error: ErrorDetails) -> str:
    return error["msg"].removeprefix("Value error, ")


_T = TypeVar("_T")
_Method = TypeVar("_Method", bound=Callable[..., Coroutine[Any, Any, object]])


def read_call(
    reader: TypeAdapter[_T],
    name: str,
    parameters: Sequence[str],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
) -> _T:
    """Return what `reader` makes of the arguments. Raises UsageError naming method, argument and expected value."""
    try:
        return reader.validate_python(ArgsKwargs(args, dict(kwargs)))
    except ValidationError as error:
        raise UsageError(f"{name}: {_in_words(error, parameters, args, kwargs)}") from error


def checked(method: _Method) -> _Method:
    """Decorate a method so that its arguments are validated against its annotations first, as by `read_call`."""
    parameters = list(inspect.signature(method).parameters)

    @cache
    def reader() -> TypeAdapter[Coroutine[Any, Any, object]]:
        return TypeAdapter(cast("type[Coroutine[Any, Any, object]]", method))  # on the first call, because it is slow

    @wraps(method)
    async def read(*args: object, **kwargs: object) -> object:
        return await read_call(reader(), method.__name__, parameters, args, kwargs)

    return cast("_Method", read)


def _in_words(
    error: ValidationError, parameters: Sequence[str], args: tuple[object, ...], more: Mapping[str, object]
) -> str:
    given = {**dict(zip(parameters, args, strict=False)), **more}
    errors = error.errors(include_url=False, include_input=False)
    for one in errors:
        place, *rest = one["loc"]
        # Positional arguments are reported by their index.
        one["loc"] = (parameters[place] if isinstance(place, int) and place < len(parameters) else place, *rest)
    return in_words(errors, given, [name for name in parameters if name != "self"])


# Calls from Python. Their annotations are texts: the classes that they name are not imported for the check.

_Call = TypeVar("_Call", bound=Callable[..., object])
_KINDS: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "str": ("text", (str,)),
    "int": ("a whole number", (int,)),
    "float": ("a number", (int, float)),
    "bool": ("True or False", (bool,)),
    "Mapping": ("a dictionary", (Mapping,)),
    "Sequence": ("a list, even of one", (Iterable,)),
    "Iterable": ("a list, even of one", (Iterable,)),
    "Callable": ("a function", (object,)),
    "OnEvent": ("a function", (object,)),
    "Clock": ("a clock", (object,)),  # a protocol
    "type": ("a class", (object,)),  # the function checks it
    "None": ("None", (type(None),)),
}


def checked_call(function: _Call) -> _Call:
    """Decorate a public function so that an unknown argument, or a value of a wrong type, raises UsageError at once."""
    form = cache(lambda: inspect.signature(function))

    def check(args: tuple[object, ...], named: Mapping[str, object]) -> None:
        problem = _problem(form(), args, named)
        if problem is not None:
            raise UsageError(f"{function.__qualname__.removesuffix('.__init__')}: {problem}")

    @wraps(function)
    def call(*args: object, **named: object) -> object:
        check(args, named)
        return function(*args, **named)

    @wraps(function)
    async def call_async(*args: object, **named: object) -> object:
        check(args, named)
        return await cast("Callable[..., Coroutine[Any, Any, object]]", function)(*args, **named)

    return cast("_Call", call_async if inspect.iscoroutinefunction(function) else call)


def _problem(form: inspect.Signature, args: tuple[object, ...], named: Mapping[str, object]) -> str | None:
    known = [name for name in form.parameters if name not in ("self", "cls")]
    for name in named:
        if name not in known:
            return f"there is no argument `{name}`; {did_you_mean(name, known)}"
    try:
        given = form.bind(*args, **named).arguments
    except TypeError as error:
        return str(error)
    for name in known:
        wanted = str(form.parameters[name].annotation).split(" | ")
        if name in given and not any(_is_of_kind(given[name], one) for one in wanted):
            return f"`{name}` must be {' or '.join(_kind(one) for one in wanted if one != 'None')}"
        if "Path" in wanted and "\0" in str(given.get(name)):
            return f"`{name}` has a null character, which no path has"
    return None


def _is_of_kind(value: object, wanted: str) -> bool:
    name = wanted.partition("[")[0]
    if name not in _KINDS:
        return any(one.__name__ == name for one in type(value).__mro__)
    if not isinstance(value, _KINDS[name][1]) or (isinstance(value, bool) and name in ("int", "float")):
        return False
    if name in ("Callable", "OnEvent"):
        return callable(value)
    if name in ("Sequence", "Iterable"):
        return not isinstance(value, str | bytes | Mapping)
    if wanted == "Mapping[str, str]":
        texts = cast("Mapping[object, object]", value)
        return all(isinstance(one, str) for pair in texts.items() for one in pair)
    return True


def _kind(wanted: str) -> str:
    name = wanted.partition("[")[0]
    if name not in _KINDS:
        return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"
    return f"{_KINDS[name][0]}{' of texts' if wanted == 'Mapping[str, str]' else ''}"
