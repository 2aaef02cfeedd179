"""Events of a task, which make up its log. Times are milliseconds since 1970."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue, TypeAdapter

from perstack.core.base.ids import By
from perstack.core.base.records import EventParser, JsonObject, Record, falsy
from perstack.core.base.text import argv_of
from perstack.core.definitions.job_status import PauseReason

OnFailure = Literal["pause", "fail", "retry"]


class TaskConfig(Record):
    """Settings for the treatment of a task."""

    max_retries: int = Field(default=3, ge=0)
    timeout: int | None = Field(default=None, ge=1)  # milliseconds without a write, then a running task fails
    on_failure: OnFailure = "fail"
    checkpoint_interval: int | None = Field(default=None, ge=1)  # milliseconds; overdue ones are only reported


class WaitingFor(Record):
    """External event that must occur before a task can continue."""

    what: str = ""
    command: Annotated[tuple[str, ...], BeforeValidator(argv_of)] = ()
    """Command to ask: exit status 0 means yes, and a JSON value on stdout becomes the task's input. A single text is a
    line for `sh`."""


class TaskEvent(Record):
    """Fields that all events of a task have."""

    task_id: str
    timestamp: int


class CreateTask(TaskEvent):
    """A task was created."""

    type: Literal["createTask"] = "createTask"
    name: str
    description: str = ""
    agent_id: str = ""
    state: JsonObject
    config: TaskConfig


class StartTask(TaskEvent):
    """The task's agent has begun."""

    type: Literal["startTask"] = "startTask"


class CheckpointTask(TaskEvent):
    """The agent saved its progress. Without a state, the previous one holds."""

    type: Literal["checkpointTask"] = "checkpointTask"
    name: str | None = None
    state: JsonObject | None = None
    data: JsonObject | None = None


class PauseTask(TaskEvent):
    """The task waits."""

    type: Literal["pauseTask"] = "pauseTask"
    reason: PauseReason
    message: str | None = None
    resume_at: int | None = None
    waiting_for: WaitingFor | None = None
    depends_on: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    token_hash: str | None = None


class AnswerTask(TaskEvent):
    """A person or an external event has answered a waiting task."""

    type: Literal["answerTask"] = "answerTask"
    input: JsonValue = None
    input_text: str = Field(default="", exclude_if=falsy)  # text in addition to a yes or no
    signal: str | None = None  # id of the external event; None for an answer by a person
    by: By | None = None  # person who answered; None in logs of earlier versions


class ResumeTask(TaskEvent):
    """The task continues."""

    type: Literal["resumeTask"] = "resumeTask"
    checkpoint_id: str | None = None  # checkpoint whose `state` and `data` are restored; None to keep the current ones
    state: JsonObject | None = None  # new state; None keeps the present one
    data: JsonObject | None = None
    input: JsonValue = None
    input_text: str = Field(default="", exclude_if=falsy)  # text in addition to a yes or no
    by: By | None = None  # person who gave `input`; None without one


class CompleteTask(TaskEvent):
    """The task is done."""

    type: Literal["completeTask"] = "completeTask"
    result: JsonValue = None
    state: JsonObject | None = None


class FailTask(TaskEvent):
    """An error occurred; `outcome` is the action that the task's config selects."""

    type: Literal["failTask"] = "failTask"
    error: str
    details: JsonObject | None = None
    outcome: OnFailure


class RetryTask(TaskEvent):
    """A failed task is retried from its last state."""

    type: Literal["retryTask"] = "retryTask"


class CancelTask(TaskEvent):
    """The task was given up."""

    type: Literal["cancelTask"] = "cancelTask"
    message: str | None = None


class WakeTask(TaskEvent):
    """A Job of its agent works on the task from now on."""

    type: Literal["wakeTask"] = "wakeTask"
    job_id: str


class ArchiveTask(TaskEvent):
    """The task is listed only on request from now on."""

    type: Literal["archiveTask"] = "archiveTask"


StoredTaskEvent = (
    CreateTask
    | StartTask
    | CheckpointTask
    | PauseTask
    | AnswerTask
    | ResumeTask
    | CompleteTask
    | FailTask
    | RetryTask
    | CancelTask
    | WakeTask
    | ArchiveTask
)

parse_task_event = EventParser[StoredTaskEvent](
    lambda: TypeAdapter(Annotated[StoredTaskEvent, Field(discriminator="type")])
)
