"""Table of operations on tasks: one entry each, from which all doors are derived.

The typed methods of `perstack.tasks.memory`, the engine, the command line, HTTP with its OpenAPI description, the tools
of the MCP server and of an Expert are read from the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from dataclasses import Field as DataclassField
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from perstack.core.base.records import Record
from perstack.dataclass import dataclass
from perstack.oversight.needed_decisions import FREE, Decides, Mark, mark_in
from perstack.tasks import operations
from perstack.tasks.state import TaskCheckpoint, TaskState
from perstack.tasks.summaries import TaskPage
from perstack.tasks.task_decisions import answer_decision, delete_decision, early_resume_decision, retry_decision


def _identity(command: operations.TaskCommand[Record], result: Record) -> Record:
    return result


class Checkpoints(Record):
    """All checkpoints of a task, the oldest first."""

    checkpoints: tuple[TaskCheckpoint, ...]

    @classmethod
    def of(cls, command: operations.ListCheckpointsCommand, result: tuple[TaskCheckpoint, ...]) -> Checkpoints:
        return cls(checkpoints=result)


class Deleted(Record):
    """Result of a removal."""

    deleted: str

    @classmethod
    def of(cls, command: operations.DeleteCommand, result: None) -> Deleted:
        return cls(deleted=command.task_id)


Method = Literal["GET", "POST", "PUT", "DELETE"]


@dataclass(frozen=True, slots=True)
class Operation:
    """Operation as doors see it."""

    name: str
    command: type[operations.TaskCommand[Any]]  # Any: the result types differ
    method: Method  # HTTP method; GET for operations that only read
    path: str  # path below /v1/execution; `{taskId}` is an argument
    tool: str  # name among the tools of an Expert
    decides: Mark  # mark if the call itself is a decision for a person, whatever its arguments are
    result_type: type[Record] = TaskState  # model of the result as doors show it
    to_result: Callable[[Any, Any], Record] = _identity  # convert the command and its result to that model
    callers: frozenset[operations.Caller] = operations.EVERYONE

    @property
    def description(self) -> str:
        """Description of the operation in one or two sentences, for people and models."""
        return " ".join((self.command.__doc__ or "").partition("\n\n")[0].split())

    @property
    def is_read_only(self) -> bool:
        """True if the operation changes nothing."""
        return self.method == "GET"

    @property
    def is_creation(self) -> bool:
        """True if the operation creates something."""
        return self.method == "POST" and not self.path

    def arguments(self, caller: operations.Caller) -> tuple[Argument, ...]:
        """Return the arguments that a caller may give: positional ones first, then those given by name."""
        hints = get_type_hints(self.command, include_extras=True)
        ordered = sorted(
            fields(self.command),
            key=lambda command_field: (command_field.kw_only, command_field.name == _EXPECTED_VERSION),
        )
        arguments = (_argument(command_field, hints[command_field.name], caller) for command_field in ordered)
        return tuple(argument for argument in arguments if argument is not None)

    def marks(self, caller: operations.Caller) -> dict[str, Mark | None]:
        """Return the marks of the operation and of each argument that a caller may give; None without a mark."""
        arguments = self.arguments(caller)
        argument_marks = {argument.name: mark_in(get_args(argument.type)[1:]) for argument in arguments}
        return {self.name: self.decides, **argument_marks}


@dataclass(frozen=True, slots=True)
class Argument:
    """Argument of an operation, for one kind of caller."""

    name: str
    type: object  # type with its description, as pydantic reads it
    default: object  # `...` if it is required


def _argument(command_field: DataclassField[Any], hint: object, caller: operations.Caller) -> Argument | None:
    kind, *annotations = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if any(isinstance(mark, operations.OnlyFor) and caller not in mark.callers for mark in annotations):
        return None
    kind = next((mark.type for mark in annotations if isinstance(mark, operations.DoorType)), kind)
    own_annotations = tuple(
        mark for mark in annotations if not isinstance(mark, operations.OnlyFor | operations.DoorType)
    )
    argument_type: object = Annotated[(kind, *own_annotations)] if own_annotations else kind
    return Argument(
        command_field.name, argument_type, ... if command_field.default is MISSING else command_field.default
    )


_TASK_PATH = "/{taskId}"
_EXPECTED_VERSION = "expected_version"

OPERATIONS: tuple[Operation, ...] = (
    Operation("create", operations.CreateCommand, "POST", "", "createTask", FREE),
    Operation("list", operations.ListCommand, "GET", "", "listTasks", FREE, TaskPage),
    Operation("get", operations.GetCommand, "GET", _TASK_PATH, "getTask", FREE),
    Operation("start", operations.StartCommand, "POST", f"{_TASK_PATH}/start", "startTask", FREE),
    Operation("checkpoint", operations.CheckpointCommand, "PUT", f"{_TASK_PATH}/checkpoint", "checkpointTask", FREE),
    Operation(
        "checkpoints",
        operations.ListCheckpointsCommand,
        "GET",
        f"{_TASK_PATH}/checkpoints",
        "listCheckpoints",
        FREE,
        Checkpoints,
        Checkpoints.of,
    ),
    Operation("pause", operations.PauseCommand, "POST", f"{_TASK_PATH}/pause", "pauseTask", FREE),
    Operation(
        "answer",
        operations.AnswerCommand,
        "POST",
        f"{_TASK_PATH}/answer",
        "answerTask",
        Decides(answer_decision),
        callers=operations.PROGRAMS,
    ),
    Operation(
        "resume", operations.ResumeCommand, "POST", f"{_TASK_PATH}/resume", "resumeTask", Decides(early_resume_decision)
    ),
    Operation("complete", operations.CompleteCommand, "POST", f"{_TASK_PATH}/complete", "completeTask", FREE),
    Operation("fail", operations.FailCommand, "POST", f"{_TASK_PATH}/fail", "failTask", FREE),
    Operation("retry", operations.RetryCommand, "POST", f"{_TASK_PATH}/retry", "retryTask", Decides(retry_decision)),
    Operation("cancel", operations.CancelCommand, "POST", f"{_TASK_PATH}/cancel", "cancelTask", FREE),
    Operation("archive", operations.ArchiveCommand, "POST", f"{_TASK_PATH}/archive", "archiveTask", FREE),
    Operation(
        "delete",
        operations.DeleteCommand,
        "DELETE",
        _TASK_PATH,
        "deleteTask",
        Decides(delete_decision),
        Deleted,
        Deleted.of,
    ),
)
