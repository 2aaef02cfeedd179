"""State of a task, its allowed operations and transitions. Times are milliseconds since 1970."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from pydantic import Field, JsonValue

from perstack.core.base.ids import By, check_job_id
from perstack.core.base.records import JsonObject, Record, falsy
from perstack.core.definitions.job_status import PauseReason
from perstack.core.jobs.answer_reading import ANYTHING, APPROVAL, AcceptedAnswers
from perstack.errors import NotAllowed, UsageError
from perstack.feature_logs.transitions import Transition, transition
from perstack.next_steps import Resume
from perstack.tasks.events import OnFailure, TaskConfig, WaitingFor

# Dependencies between tasks. A task's log names the tasks that it waits for; their status is in their own logs. Nothing
# is written to a task when another one ends: readers read both, so that no crash can leave a task behind.

MAX_DEPENDENCIES = 100


class Dependency(Record):
    """A task that is not completed and that another one waits for."""

    task_id: str
    status: Literal["created", "running", "paused", "failed", "deleted", "damaged"]
    archived: bool = Field(default=False, exclude_if=falsy)
    error: str | None = None
    circle: tuple[str, ...] = Field(default=(), exclude_if=falsy)  # path back to the waiting task, if there is one

    @property
    def is_stuck(self) -> bool:
        """True if only a person's action can lead to its completion."""
        return self.status in ("failed", "deleted", "damaged") or bool(self.circle)

    def in_words(self) -> str:
        """Return text such as `b (failed: the disk is full)`."""
        status = f"{self.status}, archived" if self.archived else self.status
        cycle_note = f", in a circle: {' -> '.join(self.circle)}" if self.circle else ""
        return f"{self.task_id} ({status}{f': {self.error}' if self.error else ''}{cycle_note})"


def in_words(dependencies: Iterable[Dependency]) -> str:
    """Return text such as `waits for a (running), b (failed: the disk is full)`, stuck ones first; empty for none."""
    ordered = sorted(dependencies, key=lambda dependency: not dependency.is_stuck)
    return f"waits for {', '.join(item.in_words() for item in ordered)}" if ordered else ""


TaskStatus = Literal["created", "running", "paused", "completed", "failed"]


CANCELLED = "cancelled"  # error of a cancelled task; `cancelled: why` with a reason


_MAX_ERROR_CHARS = 500


class TaskState(Record):
    """State of a task."""

    task_id: str
    name: str
    description: str = ""
    agent_id: str = ""
    status: TaskStatus = "created"
    version: int = 0  # number of its events
    config: TaskConfig = TaskConfig()
    state: JsonObject = Field(default_factory=dict[str, JsonValue])
    checkpoint_data: JsonObject | None = None  # data of the latest checkpoint, or of the one that the task returned to
    checkpoints: int = 0
    checkpoint_id: str | None = None  # checkpoint that the state continues from
    pause_reason: PauseReason | None = None
    pause_message: str | None = None
    resume_at: int | None = None
    waiting_for: WaitingFor | None = None
    depends_on: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    blocked_by: tuple[Dependency, ...] = Field(
        default=(), exclude_if=falsy
    )  # read from the logs of these tasks, not from this log
    token: str | None = None  # allows its holder to signal the awaited event; only in the result of `pause`
    token_hash: str | None = None
    answered: bool = Field(default=False, exclude_if=falsy)  # True if a paused task's event has occurred
    input: JsonValue = None  # answer of a person or an event since the latest pause; a boolean for an approval
    input_text: str = Field(default="", exclude_if=falsy)  # text in addition to a yes or no
    input_by: By | None = None
    result: JsonValue = None
    error: str | None = None
    error_details: JsonObject | None = None
    retry_count: int = 0
    job_id: str | None = None  # Job that works on it, if its agent is an Expert that was started
    signals: tuple[str, ...] = Field(default=(), exclude_if=falsy)  # latest external event ids: none is applied twice
    created_at: int = 0
    started_at: int | None = None
    updated_at: int = 0
    paused_at: int | None = None
    finished_at: int | None = None
    checkpointed_at: int | None = None
    checkpoint_due_at: int | None = None
    """Time by which the agent of a running task should make the next checkpoint; None if not running or not
    configured."""
    archived_at: int | None = None


class TaskCheckpoint(Record):
    """A saved state from which a task can be resumed."""

    id: str
    name: str | None = None
    timestamp: int
    version: int
    state: JsonObject
    checkpoint_data: JsonObject | None = None
    data: JsonObject | None = None  # same as `checkpoint_data`, under its old name


def check_task_id(task_id: str) -> str:
    """Return the id. Raises UsageError if it is not a valid task id."""
    try:
        return check_job_id(task_id)
    except UsageError as error:
        raise UsageError(str(error).replace("job id", "task id")) from error


def outcome_of_failure(task: TaskState) -> OnFailure:
    """Return the action that the config selects for a failure; `retry` becomes `fail` once no retries are left."""
    configured = task.config.on_failure
    return "fail" if configured == "retry" and task.retry_count >= task.config.max_retries else configured


def accepted_answers(task: TaskState) -> AcceptedAnswers:
    """Return the form that the answer to a paused task must have."""
    return APPROVAL if task.pause_reason == "human_approval" else ANYTHING


def due_at(task: TaskState) -> int | None:
    """Return when a task needs attention without its agent, in milliseconds since 1970; None if never."""
    if task.status == "paused":
        return None if task.blocked_by else _wait_end(task)
    if task.status == "running" and task.config.timeout is not None:
        return task.updated_at + task.config.timeout
    return None


def _wait_end(task: TaskState) -> int | None:
    """Return the end of a pause, without regard to dependencies; None if unknown."""
    if task.answered:
        return task.updated_at
    if task.pause_reason in ("scheduled_wait", "rate_limit") and task.resume_at is not None:
        return task.resume_at
    return task.paused_at if waits_only_for_tasks(task) else None


def waits_only_for_tasks(task: TaskState) -> bool:
    """Return whether a paused task waits only for other tasks."""
    if not task.depends_on or task.waiting_for is not None or task.resume_at is not None:
        return False
    return task.pause_reason in ("external_dependency", "checkpoint", "rate_limit")


def dependency_of(task: TaskState) -> Dependency | None:
    """Return the task as a dependency of another one; None if it is completed."""
    if task.status == "completed":
        return None
    error = task.error if task.status == "failed" else None
    return Dependency(
        task_id=task.task_id,
        status=task.status,
        archived=task.archived_at is not None,
        error=None if error is None else error[:_MAX_ERROR_CHARS],
    )


# Which event may follow in which state, and which operations are allowed there: one table for both.

Place = TaskStatus | Literal["archived"]  # `archived` replaces the status of an archived task

Operation = Literal[
    "start", "checkpoint", "pause", "answer", "resume", "complete", "fail", "retry", "cancel", "archive", "delete"
]

TRANSITIONS: dict[str, Transition[Place]] = {
    "startTask": transition("created", to=("running",)),
    "checkpointTask": transition("created", "running"),
    "pauseTask": transition("created", "running", to=("paused",)),
    "answerTask": transition("paused"),
    "resumeTask": transition("paused", "failed", to=("running",)),
    "completeTask": transition("running", to=("completed",)),
    "failTask": transition("running", "paused", to=("failed", "paused", "running")),
    "retryTask": transition("failed", to=("running",)),
    "cancelTask": transition("created", "running", "paused", to=("failed",)),
    "wakeTask": transition("running"),
    "archiveTask": transition("completed", "failed", to=("archived",)),
}

_CREATION_OPERATIONS: tuple[Operation, ...] = ("checkpoint", "pause")  # operations that only `create` performs


def _operations_at(place: Place) -> tuple[Operation, ...]:
    operations: tuple[Operation, ...] = get_args(Operation)
    return tuple(
        operation
        for operation in operations
        if operation == "delete"
        or (
            place in TRANSITIONS[f"{operation}Task"].states
            and not (place == "created" and operation in _CREATION_OPERATIONS)
        )
    )


ALLOWED: dict[TaskStatus, tuple[Operation, ...]] = {status: _operations_at(status) for status in get_args(TaskStatus)}


def place_of(task: TaskState) -> Place:
    """Return the state in terms of `TRANSITIONS`."""
    return task.status if task.archived_at is None else "archived"


def allowed_operations(task: TaskState) -> tuple[Operation, ...]:
    """Return the operations that are allowed now."""
    return _operations_at(place_of(task))


def check_allowed(task: TaskState, operation: Operation) -> None:
    """Raise NotAllowed, naming the allowed operations, unless this one is allowed."""
    operations = allowed_operations(task)
    if operation not in operations:
        final = " and final" if task.status == "completed" else ""
        raise NotAllowed(
            f"task {task.task_id} is {place_of(task)}{final}, so it cannot {_INFINITIVE[operation]};"
            f" allowed now: {', '.join(operations)}",
            operations,
        )


def already_exists_error(task: TaskState) -> NotAllowed:
    """Return the error for creating a task that exists, saying how to continue it."""
    steps = (Resume(task.task_id, "task"),) if "resume" in allowed_operations(task) else ()
    message = f"task {task.task_id} exists already, and is {task.status}: {_OFFERS[task.status]}, or choose another id"
    return NotAllowed(message, ALLOWED[task.status], next_steps=steps)


_OFFERS: dict[TaskStatus, str] = {
    "created": "start it",
    "running": "continue it",
    "paused": "continue it by resuming it",
    "failed": "continue it by resuming it",
    "completed": "it is final",
}


_INFINITIVE: dict[Operation, str] = {
    "start": "be started",
    "checkpoint": "make a checkpoint",
    "pause": "be paused",
    "answer": "be answered",
    "resume": "be resumed",
    "complete": "be completed",
    "fail": "fail",
    "retry": "be retried",
    "cancel": "be cancelled",
    "archive": "be archived",
    "delete": "be deleted",
}
