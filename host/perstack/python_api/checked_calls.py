"""Check the arguments of calls from Python.

Annotations are read as texts, so that the check does not import the classes that they name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import cache, update_wrapper, wraps
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs

from perstack.core.base.text import did_you_mean
from perstack.core.base.validation_errors import describe_errors
from perstack.errors import UsageError

_T = TypeVar("_T")

_Method = TypeVar("_Method", bound=Callable[..., Coroutine[Any, Any, object]])


def read_call(
    reader: TypeAdapter[_T],
    name: str,
    parameters: Sequence[str],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
) -> _T:
    """Return the arguments as `reader` validates them. Raises UsageError naming method, argument and expected value."""
    try:
        return reader.validate_python(ArgsKwargs(args, dict(kwargs)))
    except ValidationError as error:
        raise UsageError(f"{name}: {_describe_validation_error(error, parameters, args, kwargs)}") from error


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


def _describe_validation_error(
    error: ValidationError, parameters: Sequence[str], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> str:
    values = {**dict(zip(parameters, args, strict=False)), **kwargs}
    errors = error.errors(include_url=False, include_input=False)
    for detail in errors:
        first, *rest = detail["loc"]
        # Positional arguments are reported by their index.
        detail["loc"] = (parameters[first] if isinstance(first, int) and first < len(parameters) else first, *rest)
    return describe_errors(errors, values, [name for name in parameters if name != "self"])


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
    "Clock": ("a clock", (object,)),  # a protocol has no class to compare with
    "type": ("a class", (object,)),  # the called function checks which class
    "None": ("None", (type(None),)),
}


def checked_call(function: _Call) -> _Call:
    """Decorate a public function so that an unknown argument, or a value of a wrong type, raises UsageError at once."""
    signature = cache(lambda: inspect.signature(function))

    def check(args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        problem = _find_problem(signature(), args, kwargs)
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


def _find_problem(signature: inspect.Signature, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str | None:
    parameter_names = [name for name in signature.parameters if name not in ("self", "cls")]
    for name in kwargs:
        if name not in parameter_names:
            return f"there is no argument `{name}`; {did_you_mean(name, parameter_names)}"
    try:
        values = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        return str(error)
    for name in parameter_names:
        kinds = str(signature.parameters[name].annotation).split(" | ")
        if name in values and not any(_is_instance_of(values[name], kind) for kind in kinds):
            return f"`{name}` must be {' or '.join(_describe_kind(kind) for kind in kinds if kind != 'None')}"
        if "Path" in kinds and "\0" in str(values.get(name)):
            return f"`{name}` has a null character, which no path has"
    return None


def _is_instance_of(value: object, kind: str) -> bool:
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


def _describe_kind(kind: str) -> str:
    name = kind.partition("[")[0]
    if name not in _TYPES_BY_ANNOTATION:
        return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"
    return f"{_TYPES_BY_ANNOTATION[name][0]}{' of texts' if kind == 'Mapping[str, str]' else ''}"
