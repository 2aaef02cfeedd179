"""Check the arguments of public methods, so that a wrong one raises UsageError instead of an internal error."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cache, wraps
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs

from perstack.core.base.validation_errors import in_words
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
