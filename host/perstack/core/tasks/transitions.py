"""What may be done with a task in each status."""

from __future__ import annotations

from typing import Literal

from perstack.core.tasks.state import TaskState, TaskStatus
from perstack.errors import NotAllowed
from perstack.next_steps import Resume

Operation = Literal[
    "start", "checkpoint", "pause", "answer", "resume", "complete", "fail", "retry", "cancel", "archive", "delete"
]


ALLOWED: dict[TaskStatus, tuple[Operation, ...]] = {
    "created": ("start", "cancel", "delete"),
    "running": ("checkpoint", "pause", "complete", "fail", "cancel", "delete"),
    "paused": ("answer", "resume", "fail", "cancel", "delete"),
    "completed": ("archive", "delete"),
    "failed": ("resume", "retry", "archive", "delete"),
}
"""What may be done with a task in each status. An archived one can only be deleted."""


def allowed(task: TaskState) -> tuple[Operation, ...]:
    """What may be done with it now."""
    return ("delete",) if task.archived_at is not None else ALLOWED[task.status]


def check_allowed(task: TaskState, operation: Operation) -> None:
    """Raises NotAllowed, which names what is."""
    if operation not in allowed(task):
        stands = "archived" if task.archived_at is not None else task.status
        final = " and final" if task.status == "completed" else ""
        may = allowed(task)
        raise NotAllowed(
            f"task {task.task_id} is {stands}{final}, so it cannot {_INFINITIVE[operation]};"
            f" allowed now: {', '.join(may)}",
            may,
        )


def exists_already(task: TaskState) -> NotAllowed:
    """Why a task is not created, and how to go on with it."""
    steps = (Resume(task.task_id, "task"),) if "resume" in allowed(task) else ()
    words = f"task {task.task_id} exists already, and is {task.status}: {_OFFERS[task.status]}, or choose another id"
    return NotAllowed(words, ALLOWED[task.status], next_steps=steps)


_OFFERS: dict[TaskStatus, str] = {
    "created": "start it",
    "running": "go on with it",
    "paused": "go on with it by resuming it",
    "failed": "go on with it by resuming it",
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
