"""Methods whose arguments are checked, so that a wrong one is the caller's mistake and not a traceback from within."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import cache, wraps
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs

from perstack.core.wrong_values import in_words
from perstack.errors import UsageError

_Method = TypeVar("_Method", bound=Callable[..., Coroutine[Any, Any, object]])


def checked(method: _Method) -> _Method:
    """Every argument is read as its annotation asks before the method begins.

    Raises UsageError, which names the method, the argument, and what it must be.
    """

    @cache
    def reader() -> TypeAdapter[Coroutine[Any, Any, object]]:
        return TypeAdapter(cast("type[Coroutine[Any, Any, object]]", method))  # at the first call: it takes some time

    @wraps(method)
    async def read(*args: object, **kwargs: object) -> object:
        try:
            work = reader().validate_python(ArgsKwargs(args, kwargs))
        except ValidationError as error:
            raise UsageError(f"{method.__name__}: {_in_words(error, method, args, kwargs)}") from error
        return await work

    return cast("_Method", read)


def _in_words(error: ValidationError, method: Callable[..., object], args: tuple[object, ...], more: object) -> str:
    names = [name for name in inspect.signature(method).parameters if name != "self"]
    given = {**dict(zip(["self", *names], args, strict=False)), **cast("dict[str, object]", more)}
    errors = error.errors(include_url=False, include_input=False)
    for one in errors:
        place, *rest = one["loc"]
        # those that were given by place have its number
        one["loc"] = (["self", *names][place] if isinstance(place, int) else place, *rest)
    return in_words(errors, given, names)
