"""The facts of a task: what its log is made of. Times are milliseconds since 1970."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue, TypeAdapter

from perstack.core.base import Fact, JsonObject, falsy
from perstack.core.by import By
from perstack.core.job import PauseReason
from perstack.core.shell import argv_of

OnFailure = Literal["pause", "fail", "retry"]


class TaskConfig(Fact):
    """How a task is treated."""

    max_retries: int = Field(default=3, ge=0)
    timeout: int | None = Field(default=None, ge=1)
    """Milliseconds that a running task may be silent (every write counts); then it is taken for failed."""
    on_failure: OnFailure = "fail"
    checkpoint_interval: int | None = Field(default=None, ge=1)
    """Milliseconds after which its agent should have made the next checkpoint: it is late then, and nothing else."""


class WaitingFor(Fact):
    """What is outside, and must come before a task can go on."""

    what: str = ""
    command: Annotated[tuple[str, ...], BeforeValidator(argv_of)] = ()
    """Asks whether it has come: exit status 0 says yes, and a JSON value on stdout is the task's input then.

    A line of text is one for `sh`.
    """


class TaskEvent(Fact):
    """What all facts of a task have."""

    task_id: str
    timestamp: int


class CreateTask(TaskEvent):
    """There is a task."""

    type: Literal["createTask"] = "createTask"
    name: str
    description: str = ""
    agent_id: str = ""
    state: JsonObject
    config: TaskConfig


class StartTask(TaskEvent):
    """Its agent has begun."""

    type: Literal["startTask"] = "startTask"


class CheckpointTask(TaskEvent):
    """How far it is. Without a state, the one before holds."""

    type: Literal["checkpointTask"] = "checkpointTask"
    name: str | None = None
    state: JsonObject | None = None
    data: JsonObject | None = None


class PauseTask(TaskEvent):
    """It waits."""

    type: Literal["pauseTask"] = "pauseTask"
    reason: PauseReason
    message: str | None = None
    resume_at: int | None = None
    waiting_for: WaitingFor | None = None
    depends_on: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    """The tasks that it waits for."""
    token_hash: str | None = None


class AnswerTask(TaskEvent):
    """What it waits for has come, from a person or from outside."""

    type: Literal["answerTask"] = "answerTask"
    input: JsonValue = None
    input_text: str = Field(default="", exclude_if=falsy)
    """What was said beside a yes or no."""
    signal: str | None = None
    """The id of the event that brought it."""
    by: By | None = None
    """Who answered; a log of an earlier version does not say."""


class ResumeTask(TaskEvent):
    """It goes on."""

    type: Literal["resumeTask"] = "resumeTask"
    checkpoint_id: str | None = None
    """If it goes back to this checkpoint, whose state and data are below."""
    state: JsonObject | None = None
    """None: the state that it had."""
    data: JsonObject | None = None
    input: JsonValue = None
    input_text: str = Field(default="", exclude_if=falsy)
    """What was said beside a yes or no."""
    by: By | None = None
    """Who answered, if it has an input."""


class CompleteTask(TaskEvent):
    """It is done."""

    type: Literal["completeTask"] = "completeTask"
    result: JsonValue = None
    state: JsonObject | None = None


class FailTask(TaskEvent):
    """Something went wrong; `outcome` is what its config makes of that."""

    type: Literal["failTask"] = "failTask"
    error: str
    details: JsonObject | None = None
    """The whole of it, if it was said as an object."""
    outcome: OnFailure


class RetryTask(TaskEvent):
    """It is tried again from where it stood."""

    type: Literal["retryTask"] = "retryTask"


class CancelTask(TaskEvent):
    """Somebody gave it up."""

    type: Literal["cancelTask"] = "cancelTask"
    message: str | None = None


class WakeTask(TaskEvent):
    """A Job of its agent works on it from now on."""

    type: Literal["wakeTask"] = "wakeTask"
    job_id: str


class ArchiveTask(TaskEvent):
    """It is not listed any more unless it is asked for."""

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

_stored: TypeAdapter[StoredTaskEvent] | None = None


def parse_task_event(payload: bytes) -> StoredTaskEvent:
    """A fact from its JSON. Raises pydantic's ValidationError if it is none."""
    global _stored
    if _stored is None:
        _stored = TypeAdapter(Annotated[StoredTaskEvent, Field(discriminator="type")])
    return _stored.validate_json(payload)
