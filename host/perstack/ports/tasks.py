"""The task port: the interface through which a skill lets an Expert keep tasks."""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, get_type_hints

from pydantic import TypeAdapter

from perstack.core.base.validation_errors import read_call
from perstack.core.tasks.operations import (
    Answer,
    Archive,
    Cancel,
    Checkpoint,
    Command,
    Complete,
    Create,
    Delete,
    Fail,
    Get,
    List,
    ListCheckpoints,
    Pause,
    Resume,
    Retry,
    Start,
)

_P = ParamSpec("_P")
_R = TypeVar("_R")


def read_command(command: type[Command[_R]], *args: object, **kwargs: object) -> Command[_R]:
    """Build an operation from arguments of any type, converted to the annotations of its fields. Raises UsageError."""
    if command not in _READERS:
        _READERS[command] = (_reader_of(command), _name(command), tuple(inspect.signature(command).parameters))
    return read_call(*_READERS[command], args, kwargs)


_READERS: dict[type[Command[Any]], tuple[TypeAdapter[Any], str, Sequence[str]]] = {}
"""Arguments of `read_call` per operation. Built at the operation's first use, since building takes some time."""


def _reader_of(command: type[Command[_R]]) -> TypeAdapter[Command[_R]]:
    def build(*args: object, **kwargs: object) -> Command[_R]:
        return command(*args, **kwargs)

    vars(build)["__signature__"] = inspect.signature(command)
    build.__annotations__ = get_type_hints(command, include_extras=True)
    return TypeAdapter(cast("type[Command[_R]]", build))


def _name(command: type[Command[_R]]) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", command.__name__).lower()


def _method(
    command: Callable[_P, Command[_R]],
) -> Callable[Concatenate[TaskMemory, _P], Coroutine[Any, Any, _R]]:
    declared = cast("type[Command[_R]]", command)

    async def work(memory: TaskMemory, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return await memory.do(read_command(declared, *args, **kwargs))

    signature = inspect.signature(declared)
    plain = get_type_hints(declared)
    taken = [one.replace(annotation=plain[one.name]) for one in signature.parameters.values()]
    self = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    vars(work)["__signature__"] = inspect.Signature([self, *taken])
    work.__name__ = work.__qualname__ = _name(declared)
    work.__doc__ = declared.__doc__
    return work


class TaskMemory(ABC):
    """Tasks that any process may pause and resume.

    Each operation of `core/tasks/operations.py` is a method with the operation's fields as its arguments. An operation
    that changes a task returns the changed task. It raises NotFound, NotAllowed if the task's status does not allow it,
    Conflict if the task has another version than `expected_version`, and UsageError, naming the argument, for an
    invalid one. Durations are milliseconds, points in time milliseconds since 1970. JSON values and texts may have up
    to 1 MiB each.
    """

    @abstractmethod
    async def do(self, command: Command[_R]) -> _R:
        """Do an operation whose arguments have been validated."""

    create = _method(Create)
    list = _method(List)
    get = _method(Get)
    start = _method(Start)
    checkpoint = _method(Checkpoint)
    list_checkpoints = _method(ListCheckpoints)
    pause = _method(Pause)
    answer = _method(Answer)
    resume = _method(Resume)
    complete = _method(Complete)
    fail = _method(Fail)
    retry = _method(Retry)
    cancel = _method(Cancel)
    archive = _method(Archive)
    delete = _method(Delete)
