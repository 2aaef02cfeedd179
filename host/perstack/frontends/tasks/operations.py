"""Everything that can be done with tasks: what each operation takes and gives, and how it is done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from pydantic import AliasChoices, Field, JsonValue

from perstack.core.base import Fact, JsonObject
from perstack.core.job import PauseReason
from perstack.core.task_words import Config, FirstStatus, State, TaskIds, Text
from perstack.core.tasks import TaskCheckpoint, TaskPage, TaskState, TaskStatus
from perstack.frontends.shared.arguments import Arguments, read_arguments
from perstack.ports.tasks import TaskMemory

Method = Literal["GET", "POST", "PUT", "DELETE"]


class CreateArguments(Arguments):
    """Of `create`."""

    task_id: str = Field(description="A descriptive id that nothing else has: A-Z a-z 0-9 _ -")
    name: str | None = Field(default=None, description="For people; the id, if not given.")
    description: str = ""
    agent_id: str = Field(default="", description="Who works on it: an Expert's key, or any name.")
    state: JsonObject | None = Field(default=None, description="Where the work begins, as JSON.")
    checkpoint_data: JsonObject | None = Field(default=None, description="Keep this as a first checkpoint.")
    config: Config | None = None
    depends_on: TaskIds = Field(default=(), description="Wait until these tasks are completed, whatever `start` says.")
    status: FirstStatus | None = Field(default=None, description="`created` is the same as `start: false`.")
    start: bool | None = Field(default=None, description="Whether it runs from now on; true if nothing is said.")


class ListArguments(Arguments):
    """Of `list`."""

    status: TaskStatus | None = None
    reason: PauseReason | None = None
    agent_id: str | None = None
    older_than: int | None = Field(default=None, ge=0, description="Milliseconds since the last change, at least.")
    newer_than: int | None = Field(default=None, ge=0, description="Milliseconds since the last change, at most.")
    archived: bool = False
    limit: int = Field(default=100, ge=1, le=1000)
    after: str | None = Field(default=None, description="The `next` of the page before.")


class TaskArguments(Arguments):
    """Of operations on one task."""

    task_id: str = Field(description="The task.")


class ChangeArguments(TaskArguments):
    """Of operations that change one task."""

    expected_version: int | None = Field(default=None, description="Refuse if the task has another version by now.")


class CheckpointArguments(ChangeArguments):
    """Of `checkpoint`."""

    state: JsonObject | None = Field(default=None, description="The whole state; the one before holds if not given.")
    name: str | None = None
    checkpoint_data: JsonObject | None = Field(
        default=None,
        validation_alias=AliasChoices("checkpointData", "checkpoint_data", "data"),
        description="What else belongs to this place. `data` is an old name of it.",
    )


class PauseArguments(ChangeArguments):
    """Of `pause`."""

    reason: PauseReason | Text | None = Field(
        default=None, description="Other words are the message, and put the task aside: `checkpoint`."
    )
    message: str | None = Field(default=None, description="What is waited for, in words.")
    state: JsonObject | None = None
    checkpoint_data: JsonObject | None = Field(default=None, description="Keep this as a checkpoint first.")
    resume_at: int | None = Field(default=None, description="For scheduled_wait and rate_limit: ms since 1970.")
    waiting_for: str | None = Field(default=None, description="For external_dependency: what has to come.")
    depends_on: TaskIds = Field(default=(), description="Wait until these tasks are completed as well.")


class AnswerArguments(ChangeArguments):
    """Of `answer`."""

    value: JsonValue = Field(default=None, description="What has come: an approval, an input, an event's data.")


class ResumeArguments(ChangeArguments):
    """Of `resume`."""

    checkpoint: str | None = Field(default=None, description="Go back to this one, by id or name; none is lost.")
    state: JsonObject | None = Field(default=None, description="Takes the place of the state.")
    value: JsonValue = None


class CompleteArguments(ChangeArguments):
    """Of `complete`."""

    result: JsonValue = None
    state: JsonObject | None = None


class FailArguments(ChangeArguments):
    """Of `fail`."""

    error: Text | State = Field(description="What went wrong, in words, or an object with a `message`.")


class CancelArguments(ChangeArguments):
    """Of `cancel`."""

    message: str | None = None


class Checkpoints(Fact):
    """All checkpoints of a task, the oldest first."""

    checkpoints: tuple[TaskCheckpoint, ...]


class Deleted(Fact):
    """What is gone."""

    deleted: str


_A = TypeVar("_A", bound=Arguments)
Work = Callable[[TaskMemory, _A], Awaitable[Fact]]


@dataclass(frozen=True, slots=True)
class Operation(Generic[_A]):
    """One thing that can be done."""

    name: str
    method: Method
    path: str
    """Below /v1/execution; `{taskId}` is an argument."""
    summary: str
    arguments: type[_A]
    gives: type[Fact]
    work: Work[_A]

    async def __call__(self, memory: TaskMemory, given: JsonObject) -> Fact:
        """Do it. Raises PerstackError: UsageError for wrong arguments."""
        return await self.work(memory, read_arguments(self.arguments, given))


async def _create(memory: TaskMemory, args: CreateArguments) -> Fact:
    return await memory.create(
        args.task_id,
        name=args.name,
        description=args.description,
        agent_id=args.agent_id,
        state=args.state,
        checkpoint_data=args.checkpoint_data,
        config=args.config,
        depends_on=args.depends_on,
        status=args.status,
        start=True if args.start is None and args.status is None else args.start,
    )


async def _list(memory: TaskMemory, args: ListArguments) -> Fact:
    return await memory.list(
        status=args.status,
        reason=args.reason,
        agent_id=args.agent_id,
        older_than=args.older_than,
        newer_than=args.newer_than,
        archived=args.archived,
        limit=args.limit,
        after=args.after,
    )


async def _get(memory: TaskMemory, args: TaskArguments) -> Fact:
    return await memory.get(args.task_id)


async def _start(memory: TaskMemory, args: ChangeArguments) -> Fact:
    return await memory.start(args.task_id, expected_version=args.expected_version)


async def _checkpoint(memory: TaskMemory, args: CheckpointArguments) -> Fact:
    return await memory.checkpoint(
        args.task_id,
        args.state,
        name=args.name,
        checkpoint_data=args.checkpoint_data,
        expected_version=args.expected_version,
    )


async def _checkpoints(memory: TaskMemory, args: TaskArguments) -> Fact:
    return Checkpoints(checkpoints=await memory.list_checkpoints(args.task_id))


async def _pause(memory: TaskMemory, args: PauseArguments) -> Fact:
    return await memory.pause(
        args.task_id,
        args.reason,
        args.message,
        state=args.state,
        checkpoint_data=args.checkpoint_data,
        resume_at=args.resume_at,
        waiting_for=args.waiting_for,  # in words: a command to ask would run here, whoever gives it
        depends_on=args.depends_on,
        expected_version=args.expected_version,
    )


async def _answer(memory: TaskMemory, args: AnswerArguments) -> Fact:
    return await memory.answer(args.task_id, args.value, expected_version=args.expected_version)


async def _resume(memory: TaskMemory, args: ResumeArguments) -> Fact:
    return await memory.resume(
        args.task_id,
        checkpoint=args.checkpoint,
        state=args.state,
        value=args.value,
        expected_version=args.expected_version,
    )


async def _complete(memory: TaskMemory, args: CompleteArguments) -> Fact:
    return await memory.complete(args.task_id, args.result, state=args.state, expected_version=args.expected_version)


async def _fail(memory: TaskMemory, args: FailArguments) -> Fact:
    return await memory.fail(args.task_id, args.error, expected_version=args.expected_version)


async def _retry(memory: TaskMemory, args: ChangeArguments) -> Fact:
    return await memory.retry(args.task_id, expected_version=args.expected_version)


async def _cancel(memory: TaskMemory, args: CancelArguments) -> Fact:
    return await memory.cancel(args.task_id, args.message, expected_version=args.expected_version)


async def _archive(memory: TaskMemory, args: ChangeArguments) -> Fact:
    return await memory.archive(args.task_id, expected_version=args.expected_version)


async def _delete(memory: TaskMemory, args: ChangeArguments) -> Fact:
    await memory.delete(args.task_id, expected_version=args.expected_version)
    return Deleted(deleted=args.task_id)


OPERATIONS: tuple[Operation[Any], ...] = (  # Any: each has arguments of its own
    Operation("create", "POST", "", "Begin to keep a task.", CreateArguments, TaskState, _create),
    Operation("list", "GET", "", "List tasks, the one written to last first.", ListArguments, TaskPage, _list),
    Operation("get", "GET", "/{taskId}", "Tell where a task stands.", TaskArguments, TaskState, _get),
    Operation("start", "POST", "/{taskId}/start", "Its agent begins.", ChangeArguments, TaskState, _start),
    Operation(
        "checkpoint", "PUT", "/{taskId}/checkpoint", "Keep how far it is.", CheckpointArguments, TaskState, _checkpoint
    ),
    Operation(
        "checkpoints", "GET", "/{taskId}/checkpoints", "List its checkpoints.", TaskArguments, Checkpoints, _checkpoints
    ),
    Operation("pause", "POST", "/{taskId}/pause", "Let it wait, for a reason.", PauseArguments, TaskState, _pause),
    Operation(
        "answer",
        "POST",
        "/{taskId}/answer",
        "Say that what it waits for has come.",
        AnswerArguments,
        TaskState,
        _answer,
    ),
    Operation(
        "resume",
        "POST",
        "/{taskId}/resume",
        "Let it go on, from where it is or from a checkpoint.",
        ResumeArguments,
        TaskState,
        _resume,
    ),
    Operation(
        "complete", "POST", "/{taskId}/complete", "It is done, for good.", CompleteArguments, TaskState, _complete
    ),
    Operation(
        "fail",
        "POST",
        "/{taskId}/fail",
        "Something went wrong: it fails, pauses or is retried, as its config says.",
        FailArguments,
        TaskState,
        _fail,
    ),
    Operation("retry", "POST", "/{taskId}/retry", "Try a failed one again.", ChangeArguments, TaskState, _retry),
    Operation("cancel", "POST", "/{taskId}/cancel", "Give it up.", CancelArguments, TaskState, _cancel),
    Operation("archive", "POST", "/{taskId}/archive", "Leave it out of lists.", ChangeArguments, TaskState, _archive),
    Operation("delete", "DELETE", "/{taskId}", "Remove it for good.", ChangeArguments, Deleted, _delete),
)
