"""Where a task stands, and what that means for it. Times are milliseconds since 1970."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from perstack.core.answers import ANYTHING, APPROVAL, Asked
from perstack.core.base import Fact, JsonObject, falsy
from perstack.core.by import By
from perstack.core.ids import check_job_id
from perstack.core.job import PauseReason
from perstack.core.tasks.dependencies import Dependency
from perstack.core.tasks.events import (
    OnFailure,
    TaskConfig,
    WaitingFor,
)
from perstack.errors import UsageError

TaskStatus = Literal["created", "running", "paused", "completed", "failed"]


CANCELLED = "cancelled"
"""The error of a task that somebody gave up; `cancelled: why` if it was said why."""


_LONGEST_SHOWN = 500


class TaskState(Fact):
    """Where a task stands."""

    task_id: str
    name: str
    description: str = ""
    agent_id: str = ""
    status: TaskStatus = "created"
    version: int = 0
    """How many facts there are of it. Who expects another version than there is has not seen all of them."""
    config: TaskConfig = TaskConfig()
    state: JsonObject = Field(default_factory=dict[str, JsonValue])
    checkpoint_data: JsonObject | None = None
    """What the latest checkpoint, or the one gone back to, was given besides the state."""
    checkpoints: int = 0
    checkpoint_id: str | None = None
    """The checkpoint that the state goes on from."""
    pause_reason: PauseReason | None = None
    pause_message: str | None = None
    resume_at: int | None = None
    waiting_for: WaitingFor | None = None
    depends_on: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    """The tasks that it waits for."""
    blocked_by: tuple[Dependency, ...] = Field(default=(), exclude_if=falsy)
    """Those of them that are not completed, as they were when somebody looked; it is of no log."""
    token: str | None = None
    """Only in what `pause` returns: lets whoever has it signal that what the task waits for has come."""
    token_hash: str | None = None
    answered: bool = Field(default=False, exclude_if=falsy)
    """Whether what a paused task waits for has come: `input` has it."""
    input: JsonValue = None
    """What a person, or an event from outside, has said since its latest pause began: to an approval, true or false."""
    input_text: str = Field(default="", exclude_if=falsy)
    """What was said beside a yes or no."""
    input_by: By | None = None
    """Who has said it."""
    result: JsonValue = None
    error: str | None = None
    error_details: JsonObject | None = None
    """The whole error, if it was said as an object."""
    retry_count: int = 0
    job_id: str | None = None
    """The Job that works on it, if its agent is an Expert that was woken."""
    signals: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    """The ids of the latest events from outside, so that none is taken twice."""
    created_at: int = 0
    started_at: int | None = None
    updated_at: int = 0
    paused_at: int | None = None
    finished_at: int | None = None
    checkpointed_at: int | None = None
    checkpoint_due_at: int | None = None
    """When its agent, while it runs, should have made the next checkpoint."""
    archived_at: int | None = None


class TaskCheckpoint(Fact):
    """A place that a task can be resumed from."""

    id: str
    name: str | None = None
    timestamp: int
    version: int
    state: JsonObject
    checkpoint_data: JsonObject | None = None
    data: JsonObject | None = None
    """The same, by its old name."""


def check_task_id(task_id: str) -> str:
    """The id itself. Raises UsageError if it is none."""
    try:
        return check_job_id(task_id)
    except UsageError as error:
        raise UsageError(str(error).replace("job id", "task id")) from error


def outcome_of_failure(task: TaskState) -> OnFailure:
    """What the task's config makes of a failure now: it is retried only as often as it may be."""
    wish = task.config.on_failure
    return "fail" if wish == "retry" and task.retry_count >= task.config.max_retries else wish


def asked_of(task: TaskState) -> Asked:
    """What a paused task asks for."""
    return APPROVAL if task.pause_reason == "human_approval" else ANYTHING


def due_at(task: TaskState) -> int | None:
    """When something is to be done about it without its agent; None if nothing is."""
    if task.status == "paused":
        return None if task.blocked_by else _wait_ends(task)
    if task.status == "running" and task.config.timeout is not None:
        return task.updated_at + task.config.timeout
    return None


def _wait_ends(task: TaskState) -> int | None:
    """When a pause is over, but for other tasks."""
    if task.answered:
        return task.updated_at
    if task.pause_reason in ("scheduled_wait", "rate_limit") and task.resume_at is not None:
        return task.resume_at
    return task.paused_at if waits_for_tasks_alone(task) else None


def waits_for_tasks_alone(task: TaskState) -> bool:
    """Whether a paused task waits for other tasks, and for nothing else."""
    if not task.depends_on or task.waiting_for is not None or task.resume_at is not None:
        return False
    return task.pause_reason in ("external_dependency", "checkpoint", "rate_limit")


def dependency_of(task: TaskState) -> Dependency | None:
    """The task as one that another waits for; None if it is completed."""
    if task.status == "completed":
        return None
    error = task.error if task.status == "failed" else None
    return Dependency(
        task_id=task.task_id,
        status=task.status,
        archived=task.archived_at is not None,
        error=None if error is None else error[:_LONGEST_SHOWN],
    )
