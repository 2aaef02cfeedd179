"""Tasks as they are listed."""

from __future__ import annotations

from typing import TypedDict

from pydantic import Field

from perstack.core.base import Fact, falsy
from perstack.core.job import PauseReason
from perstack.core.tasks.dependencies import Dependency
from perstack.core.tasks.evolve import NOT_WAITING, Changes
from perstack.core.tasks.state import TaskState, TaskStatus, due_at


class TaskSummary(Fact):
    """A task in a list. A cache, derivable from its facts."""

    task_id: str
    name: str
    agent_id: str = ""
    status: TaskStatus
    version: int
    pause_reason: PauseReason | None = None
    pause_message: str | None = None
    resume_at: int | None = None
    due_at: int | None = None
    """When something is to be done about it without its agent: resume it, or take it for failed."""
    polls: bool = Field(default=False, exclude_if=falsy)
    """Whether a command is to be asked if it may go on."""
    depends_on: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    blocked_by: tuple[Dependency, ...] = Field(default=(), exclude_if=falsy)
    """Those of `depends_on` that are not completed, as they were when somebody looked; none in what is stored."""
    answered: bool = Field(default=False, exclude_if=falsy)
    error: str | None = None
    damaged: bool = Field(default=False, exclude_if=falsy)
    """Whether its log does not read: `error` says where, and the rest is what comes before that."""
    retry_count: int = 0
    checkpoints: int = 0
    checkpoint_due_at: int | None = None
    job_id: str | None = None
    created_at: int
    updated_at: int
    archived_at: int | None = None


class TaskPage(Fact):
    """Some tasks, the one written to last first, and the cursor that continues after them."""

    tasks: tuple[TaskSummary, ...]
    next: str | None = None


def summary_of(task: TaskState, *, damaged: bool = False) -> TaskSummary:
    """The task as it is listed."""
    return TaskSummary(
        task_id=task.task_id,
        name=task.name,
        agent_id=task.agent_id,
        status=task.status,
        version=task.version,
        pause_reason=task.pause_reason,
        pause_message=task.pause_message or (task.waiting_for.what if task.waiting_for else "") or None,
        resume_at=task.resume_at,
        due_at=due_at(task),
        polls=bool(task.status == "paused" and task.waiting_for and task.waiting_for.command),
        depends_on=task.depends_on,
        blocked_by=task.blocked_by,
        answered=task.answered,
        error=task.error,
        damaged=damaged,
        retry_count=task.retry_count,
        checkpoints=task.checkpoints,
        checkpoint_due_at=task.checkpoint_due_at,
        job_id=task.job_id,
        created_at=task.created_at,
        updated_at=task.updated_at,
        archived_at=task.archived_at,
    )


class _Blocked(TypedDict):
    blocked_by: tuple[Dependency, ...]
    due_at: None


def blocked(task: TaskSummary, by: tuple[Dependency, ...]) -> TaskSummary:
    """The same with the tasks that hold it up: nothing is due of it before they are completed."""
    return task.model_copy(update=_Blocked(blocked_by=by, due_at=None)) if by else task


def damaged_task(task_id: str, readable: TaskState | None, damage: str) -> TaskSummary:
    """A task whose log does not read, as it is listed: as far as it was readable, and failed."""
    known = readable or TaskState(task_id=task_id, name="")
    failed = NOT_WAITING | Changes(status="failed", error=damage, checkpoint_due_at=None)
    return summary_of(known.model_copy(update=failed), damaged=True)
