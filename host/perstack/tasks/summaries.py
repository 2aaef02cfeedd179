"""Summaries of tasks for lists."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypedDict

from pydantic import Field

from perstack.core.base.records import Record, falsy, fields_of
from perstack.core.definitions.job_status import PauseReason
from perstack.errors import NotAllowed
from perstack.tasks.evolve import NOT_WAITING, TaskChanges
from perstack.tasks.state import Dependency, TaskState, TaskStatus, due_at

# Summaries as JSON objects, so that a scan over ten thousand tasks needs no parsing into models.

Row = dict[str, object]


def by_id(rows: Sequence[Row]) -> dict[str, Row]:
    return {str(row.get("taskId")): row for row in rows}


def depends_on(row: Row) -> Sequence[str]:
    """Return the ids of tasks that a task waits for."""
    task_ids = row.get("dependsOn")
    return task_ids if isinstance(task_ids, list | tuple) else ()  # pyright: ignore[reportUnknownVariableType]


def is_completed(row: Row | None) -> bool:
    return row is not None and row.get("status") == "completed"


def find_possibly_due(rows: Sequence[Row], now: int) -> list[Row]:
    """Return the tasks that may be due at `now`, without those that wait for another task."""
    rows_by_id: Mapping[str, Row] = by_id(rows)
    blocked_rows = {
        id(row) for row in rows if any(not is_completed(rows_by_id.get(task_id)) for task_id in depends_on(row))
    }
    return [row for row in rows if id(row) not in blocked_rows and _may_be_due(row, now)]


def _may_be_due(row: Row, now: int) -> bool:
    if row.get("archivedAt") is not None:
        return False
    due = row.get("dueAt")
    is_due = isinstance(due, int) and due <= now
    has_job = row.get("status") == "running" and row.get("jobId") is not None
    return bool(row.get("damaged")) or is_due or bool(row.get("polls")) or has_job


def check_not_needed(task_id: str, rows: Collection[Row]) -> None:
    """Raise NotAllowed if one of these tasks waits for this one."""
    waiting = sorted(str(row["taskId"]) for row in rows if task_id in depends_on(row))
    if waiting:
        raise NotAllowed(
            f"task {task_id} cannot be deleted, since {list_briefly(waiting)} waits for it: "
            f"resume or delete {waiting[0]} first"
        )


def list_briefly(ids: Sequence[str]) -> str:
    """Return `task a` or `tasks a, b, c, …`."""
    return f"{'task' if len(ids) == 1 else 'tasks'} {', '.join(ids[:3])}{', …' if len(ids) > 3 else ''}"


class TaskSummary(Record):
    """A task in a list: a cache that its log can rebuild."""

    task_id: str
    name: str
    agent_id: str = ""
    status: TaskStatus
    version: int
    pause_reason: PauseReason | None = None
    pause_message: str | None = None
    resume_at: int | None = None
    due_at: int | None = None  # time to resume or fail it without its agent, in milliseconds since 1970
    polls: bool = Field(default=False, exclude_if=falsy)  # True: a command is asked whether it may continue
    depends_on: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    blocked_by: tuple[Dependency, ...] = Field(
        default=(), exclude_if=falsy
    )  # not stored: read from the logs of these tasks
    answered: bool = Field(default=False, exclude_if=falsy)
    error: str | None = None
    damaged: bool = Field(default=False, exclude_if=falsy)  # True if its log cannot be read: `error` says where
    retry_count: int = 0
    checkpoints: int = 0
    checkpoint_due_at: int | None = None
    job_id: str | None = None
    created_at: int
    updated_at: int
    archived_at: int | None = None


class TaskPage(Record):
    """A page of tasks, the latest change first, and the cursor of the next page."""

    tasks: tuple[TaskSummary, ...]
    next: str | None = None


def summary_of(task: TaskState, *, damaged: bool = False) -> TaskSummary:
    pause_message = task.pause_message or (task.waiting_for.what if task.waiting_for else "") or None
    return TaskSummary(
        **fields_of(task, TaskSummary, pause_message=pause_message),
        due_at=due_at(task),
        polls=bool(task.status == "paused" and task.waiting_for and task.waiting_for.command),
        damaged=damaged,
    )


class _Blocked(TypedDict):
    blocked_by: tuple[Dependency, ...]
    due_at: None


def with_dependencies(task_summary: TaskSummary, dependencies: tuple[Dependency, ...]) -> TaskSummary:
    """Return the summary with its unfinished dependencies; nothing is due until they are completed."""
    return (
        task_summary.model_copy(update=_Blocked(blocked_by=dependencies, due_at=None)) if dependencies else task_summary
    )


def damaged_task(task_id: str, task: TaskState | None, damage: str) -> TaskSummary:
    """Return the summary of a task with an unreadable log: its last readable state, as failed."""
    state = task or TaskState(task_id=task_id, name="")
    changes = NOT_WAITING | TaskChanges(status="failed", error=damage, checkpoint_due_at=None)
    return summary_of(state.model_copy(update=changes), damaged=True)
