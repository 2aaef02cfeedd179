"""`TaskMemory`: the operations on tasks as typed methods, which skills and Python programs use."""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, get_type_hints

from pydantic import TypeAdapter

from perstack.core.base.records import snake_cased
from perstack.ports.parts import Part
from perstack.python_api.checked_calls import read_call
from perstack.tasks.operations import (
    AnswerCommand,
    ArchiveCommand,
    CancelCommand,
    CheckpointCommand,
    CompleteCommand,
    CreateCommand,
    DeleteCommand,
    FailCommand,
    GetCommand,
    ListCheckpointsCommand,
    ListCommand,
    PauseCommand,
    ResumeCommand,
    RetryCommand,
    StartCommand,
    TaskCommand,
)
from perstack.tasks.task_decisions import TaskSubject

_P = ParamSpec("_P")
_R = TypeVar("_R")


def read_command(command: type[TaskCommand[_R]], *args: object, **kwargs: object) -> TaskCommand[_R]:
    """Build an operation from arguments of any type, converted to the annotations of its fields.

    Names may be in snake_case or camelCase. Raises UsageError.
    """
    if command not in _READERS:
        _READERS[command] = (
            _reader_of(command),
            _operation_name(command),
            tuple(inspect.signature(command).parameters),
        )
    return read_call(*_READERS[command], args, snake_cased(kwargs))


_READERS: dict[type[TaskCommand[Any]], tuple[TypeAdapter[Any], str, Sequence[str]]] = {}
"""Arguments of `read_call` per operation. Built at the operation's first use, since building takes some time."""


def _reader_of(command: type[TaskCommand[_R]]) -> TypeAdapter[TaskCommand[_R]]:
    def build(*args: object, **kwargs: object) -> TaskCommand[_R]:
        return command(*args, **kwargs)

    vars(build)["__signature__"] = inspect.signature(command)
    build.__annotations__ = get_type_hints(command, include_extras=True)
    return TypeAdapter(cast("type[TaskCommand[_R]]", build))


def _operation_name(command: type[TaskCommand[_R]]) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", command.__name__.removesuffix("Command")).lower()


def _method_for(
    command: Callable[_P, TaskCommand[_R]],
) -> Callable[Concatenate[TaskMemory, _P], Coroutine[Any, Any, _R]]:
    """Return a method with a command's signature and docstring, which validates its arguments and does the command."""
    command_type = cast("type[TaskCommand[_R]]", command)

    async def operation(memory: TaskMemory, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return await memory.do(read_command(command_type, *args, **kwargs))

    signature = inspect.signature(command_type)
    plain = get_type_hints(command_type)
    parameters = [parameter.replace(annotation=plain[parameter.name]) for parameter in signature.parameters.values()]
    self = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    vars(operation)["__signature__"] = inspect.Signature([self, *parameters])
    operation.__name__ = operation.__qualname__ = _operation_name(command_type)
    operation.__doc__ = command_type.__doc__
    return operation


class TaskMemory(ABC):
    """Tasks that any process may pause and resume.

    Each operation of `tasks/operations.py` is a method with the operation's fields as its arguments. An operation
    that changes a task returns the changed task. It raises NotFound, NotAllowed if the task's status does not allow it,
    Conflict if the task has another version than `expected_version`, and UsageError, naming the argument, for an
    invalid one. Durations are milliseconds, points in time milliseconds since 1970. JSON values and texts may have up
    to 1 MiB each.
    """

    @abstractmethod
    async def do(self, command: TaskCommand[_R]) -> _R:
        """Do an operation whose arguments have been validated."""

    @abstractmethod
    async def subject_of(self, task_id: str) -> TaskSubject:
        """Return what decisions about a task's calls need: state, events and time. Raises NotFound and Damaged."""

    create = _method_for(CreateCommand)
    list = _method_for(ListCommand)
    get = _method_for(GetCommand)
    start = _method_for(StartCommand)
    checkpoint = _method_for(CheckpointCommand)
    list_checkpoints = _method_for(ListCheckpointsCommand)
    pause = _method_for(PauseCommand)
    answer = _method_for(AnswerCommand)
    resume = _method_for(ResumeCommand)
    complete = _method_for(CompleteCommand)
    fail = _method_for(FailCommand)
    retry = _method_for(RetryCommand)
    cancel = _method_for(CancelCommand)
    archive = _method_for(ArchiveCommand)
    delete = _method_for(DeleteCommand)


TASK_MEMORY: Part[TaskMemory] = Part("execution memory")
"""The tasks of a Host, for its skills."""
