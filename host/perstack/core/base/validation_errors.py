"""Translate pydantic's errors about values from outside into words for their sender."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from functools import cache, update_wrapper, wraps
from re import findall
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs, ErrorDetails

from perstack.core.base.text import did_you_mean
from perstack.errors import UsageError

_KIND_BY_ERROR = {
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
_BOUND_MESSAGES = {
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
_MISSING_TYPES = {"missing", "missing_argument", "missing_positional_only_argument", "missing_keyword_only_argument"}
_UNKNOWN_TYPES = {"extra_forbidden", "unexpected_keyword_argument"}
_TYPES_WITH_NAME = _MISSING_TYPES | _UNKNOWN_TYPES


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


def in_words(errors: Iterable[ErrorDetails], values: object, known: Collection[str] = ()) -> str:
    """Return one line on each wrong value of `given`, without the values; `known`: names allowed at its top level."""
    by_path: dict[str, list[ErrorDetails]] = {}
    for error in errors:
        path = path_in(values, error["loc"] or ("",), names_missing=error["type"] in _TYPES_WITH_NAME)
        by_path.setdefault(".".join(map(str, path)), []).append(error)
    # An error inside a value is more precise than one about the whole value.
    innermost = {
        name: group for name, group in by_path.items() if not any(other.startswith(f"{name}.") for other in by_path)
    }
    return "; ".join(_sentence(name, group, known) for name, group in innermost.items())


def _sentence(name: str, errors: list[ErrorDetails], known: Collection[str]) -> str:
    subject = f"`{name}`" if name else "it"
    kinds = {error["type"] for error in errors}
    if kinds <= _MISSING_TYPES:
        return f"{subject} is missing"
    if kinds <= _UNKNOWN_TYPES:
        return f"there is no argument {subject}; {did_you_mean(name, known)}"
    choices = [choice for error in errors if error["type"] == "literal_error" for choice in _choices(error)]
    expected = [f"one of {', '.join(choices)}"] if choices else []
    expected += [_KIND_BY_ERROR[error["type"]] for error in errors if error["type"] in _KIND_BY_ERROR]
    if expected:
        return f"{subject} must be {' or '.join(dict.fromkeys(expected))}"
    first = errors[0]
    phrase = _BOUND_MESSAGES.get(first["type"], "{message}").format(message=_message(first), **first.get("ctx", {}))
    return f"{subject} {phrase}" if first["type"] in _BOUND_MESSAGES else f"{subject}: {phrase}"


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
    error: ValidationError, parameters: Sequence[str], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> str:
    values = {**dict(zip(parameters, args, strict=False)), **kwargs}
    errors = error.errors(include_url=False, include_input=False)
    for detail in errors:
        first, *rest = detail["loc"]
        # Positional arguments are reported by their index.
        detail["loc"] = (parameters[first] if isinstance(first, int) and first < len(parameters) else first, *rest)
    return in_words(errors, values, [name for name in parameters if name != "self"])


# Calls from Python. Their annotations are texts: the classes that they name are not imported for the check.

_Call = TypeVar("_Call", bound=Callable[..., object])
_TYPES_BY_ANNOTATION: Mapping[str, tuple[str, tuple[type, ...]]] = {
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

    def check(args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        problem = _problem(form(), args, kwargs)
        if problem is not None:
            raise UsageError(f"{function.__qualname__.removesuffix('.__init__')}: {problem}")

    @wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        check(args, kwargs)
        return function(*args, **kwargs)

    @wraps(function)
    async def call_async(*args: object, **kwargs: object) -> object:
        check(args, kwargs)
        return await cast("Callable[..., Coroutine[Any, Any, object]]", function)(*args, **kwargs)

    return cast("_Call", call_async if inspect.iscoroutinefunction(function) else call)


def called_as(declaration: Callable[..., object]) -> Callable[[_Call], _Call]:
    """Decorate a public function that passes its `**options` to `declaration`, so that it has its signature.

    Calls are checked as by `checked_call`.
    """

    def decorate(function: _Call) -> _Call:
        update_wrapper(function, declaration, assigned=(), updated=())  # `__wrapped__`, for `inspect.signature`
        return checked_call(function)

    return decorate


def _problem(form: inspect.Signature, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str | None:
    known = [name for name in form.parameters if name not in ("self", "cls")]
    for name in kwargs:
        if name not in known:
            return f"there is no argument `{name}`; {did_you_mean(name, known)}"
    try:
        values = form.bind(*args, **kwargs).arguments
    except TypeError as error:
        return str(error)
    for name in known:
        kinds = str(form.parameters[name].annotation).split(" | ")
        if name in values and not any(_is_of_kind(values[name], kind) for kind in kinds):
            return f"`{name}` must be {' or '.join(_kind(kind) for kind in kinds if kind != 'None')}"
        if "Path" in kinds and "\0" in str(values.get(name)):
            return f"`{name}` has a null character, which no path has"
    return None


def _is_of_kind(value: object, kind: str) -> bool:
    name = kind.partition("[")[0]
    if name not in _TYPES_BY_ANNOTATION:
        return any(base.__name__ == name for base in type(value).__mro__)
    if not isinstance(value, _TYPES_BY_ANNOTATION[name][1]) or (isinstance(value, bool) and name in ("int", "float")):
        return False
    if name in ("Callable", "OnEvent"):
        return callable(value)
    if name in ("Sequence", "Iterable"):
        return not isinstance(value, str | bytes | Mapping)
    if kind == "Mapping[str, str]":
        texts = cast("Mapping[object, object]", value)
        return all(isinstance(text, str) for pair in texts.items() for text in pair)
    return True


def _kind(kind: str) -> str:
    name = kind.partition("[")[0]
    if name not in _TYPES_BY_ANNOTATION:
        return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"
    return f"{_TYPES_BY_ANNOTATION[name][0]}{' of texts' if kind == 'Mapping[str, str]' else ''}"
