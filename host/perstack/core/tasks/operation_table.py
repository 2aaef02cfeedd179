"""Table of operations on tasks: one entry each, from which all doors are derived.

The typed methods of `perstack.ports.tasks`, the engine, the command line, HTTP with its OpenAPI description, the tools
of the MCP server and of an Expert read the table, and repeat nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from dataclasses import Field as DataclassField
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from perstack.core.base.records import Fact
from perstack.core.tasks import operations
from perstack.core.tasks.state import TaskCheckpoint, TaskState
from perstack.core.tasks.summaries import TaskPage
from perstack.dataclass import dataclass


def _identity(command: operations.TaskCommand[Fact], done: Fact) -> Fact:
    return done


class Checkpoints(Fact):
    """All checkpoints of a task, the oldest first."""

    checkpoints: tuple[TaskCheckpoint, ...]

    @classmethod
    def of(cls, command: operations.ListCheckpointsCommand, done: tuple[TaskCheckpoint, ...]) -> Checkpoints:
        """Return the checkpoints as one record."""
        return cls(checkpoints=done)


class Deleted(Fact):
    """Result of a removal."""

    deleted: str

    @classmethod
    def of(cls, command: operations.DeleteCommand, done: None) -> Deleted:
        """Return the deleted task's id as a record."""
        return cls(deleted=command.task_id)


Method = Literal["GET", "POST", "PUT", "DELETE"]


@dataclass(frozen=True, slots=True)
class Operation:
    """Operation as doors see it."""

    name: str
    command: type[operations.TaskCommand[Any]]  # Any: each operation has another result type
    method: Method  # HTTP method; GET for operations that only read
    path: str  # path below /v1/execution; `{taskId}` is an argument
    tool: str  # name among the tools of an Expert
    gives: type[Fact] = TaskState  # model of the result as doors show it
    shown: Callable[[Any, Any], Fact] = _identity  # convert the command and its result to that model
    callers: frozenset[operations.Caller] = operations.EVERYONE

    @property
    def description(self) -> str:
        """Description of the operation in one or two sentences, for people and models."""
        return " ".join((self.command.__doc__ or "").partition("\n\n")[0].split())

    @property
    def reads(self) -> bool:
        """True if the operation changes nothing."""
        return self.method == "GET"

    @property
    def makes(self) -> bool:
        """True if the operation creates something."""
        return self.method == "POST" and not self.path

    def arguments(self, caller: operations.Caller) -> tuple[Argument, ...]:
        """Return the arguments that a caller may give: positional ones first, then those given by name."""
        hints = get_type_hints(self.command, include_extras=True)
        ordered = sorted(fields(self.command), key=lambda one: (one.kw_only, one.name == _FENCE))
        found = (_argument(one, hints[one.name], caller) for one in ordered)
        return tuple(one for one in found if one is not None)


@dataclass(frozen=True, slots=True)
class Argument:
    """Argument of an operation, for one kind of caller."""

    name: str
    type: object  # type with its description, as pydantic reads it
    default: object  # `...` if it is required


def _argument(one: DataclassField[Any], hint: object, caller: operations.Caller) -> Argument | None:
    kind, *about = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if any(isinstance(mark, operations.OnlyFor) and caller not in mark.callers for mark in about):
        return None
    kind = next((mark.type for mark in about if isinstance(mark, operations.DoorType)), kind)
    plain = tuple(mark for mark in about if not isinstance(mark, operations.OnlyFor | operations.DoorType))
    typed: object = Annotated[(kind, *plain)] if plain else kind
    return Argument(one.name, typed, ... if one.default is MISSING else one.default)


_ONE = "/{taskId}"
_FENCE = "expected_version"

OPERATIONS: tuple[Operation, ...] = (
    Operation("create", operations.CreateCommand, "POST", "", "createTask"),
    Operation("list", operations.ListCommand, "GET", "", "listTasks", TaskPage),
    Operation("get", operations.GetCommand, "GET", _ONE, "getTask"),
    Operation("start", operations.StartCommand, "POST", f"{_ONE}/start", "startTask"),
    Operation("checkpoint", operations.CheckpointCommand, "PUT", f"{_ONE}/checkpoint", "checkpointTask"),
    Operation(
        "checkpoints",
        operations.ListCheckpointsCommand,
        "GET",
        f"{_ONE}/checkpoints",
        "listCheckpoints",
        Checkpoints,
        Checkpoints.of,
    ),
    Operation("pause", operations.PauseCommand, "POST", f"{_ONE}/pause", "pauseTask"),
    Operation("answer", operations.AnswerCommand, "POST", f"{_ONE}/answer", "answerTask", callers=operations.PROGRAMS),
    Operation("resume", operations.ResumeCommand, "POST", f"{_ONE}/resume", "resumeTask"),
    Operation("complete", operations.CompleteCommand, "POST", f"{_ONE}/complete", "completeTask"),
    Operation("fail", operations.FailCommand, "POST", f"{_ONE}/fail", "failTask"),
    Operation("retry", operations.RetryCommand, "POST", f"{_ONE}/retry", "retryTask"),
    Operation("cancel", operations.CancelCommand, "POST", f"{_ONE}/cancel", "cancelTask"),
    Operation("archive", operations.ArchiveCommand, "POST", f"{_ONE}/archive", "archiveTask"),
    Operation("delete", operations.DeleteCommand, "DELETE", _ONE, "deleteTask", Deleted, Deleted.of),
)
