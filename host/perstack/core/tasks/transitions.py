"""Which fact may follow where a task stands, and what may be done with it there. The one table of both."""

from __future__ import annotations

from typing import Literal, get_args

from perstack.core.tasks.state import TaskState, TaskStatus
from perstack.core.transitions import Transition, transition
from perstack.errors import NotAllowed
from perstack.next_steps import Resume

Place = TaskStatus | Literal["archived"]
"""Where a task stands: an archived one is done with, whatever its status."""

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
"""By the type of the event. `createTask` is not in it: it makes the task."""

_OF_CREATION: tuple[Operation, ...] = ("checkpoint", "pause")
"""What `create` does with a task that is not started yet, and nobody else."""


def _operations_at(place: Place) -> tuple[Operation, ...]:
    operations: tuple[Operation, ...] = get_args(Operation)
    return tuple(
        one
        for one in operations
        if one == "delete"
        or (place in TRANSITIONS[f"{one}Task"].places and not (place == "created" and one in _OF_CREATION))
    )


ALLOWED: dict[TaskStatus, tuple[Operation, ...]] = {one: _operations_at(one) for one in get_args(TaskStatus)}
"""What may be done with a task in each status. An archived one can only be deleted."""


def place_of(task: TaskState) -> Place:
    """Where it stands."""
    return task.status if task.archived_at is None else "archived"


def allowed(task: TaskState) -> tuple[Operation, ...]:
    """What may be done with it now."""
    return _operations_at(place_of(task))


def check_allowed(task: TaskState, operation: Operation) -> None:
    """Raises NotAllowed, which names what is."""
    may = allowed(task)
    if operation not in may:
        final = " and final" if task.status == "completed" else ""
        raise NotAllowed(
            f"task {task.task_id} is {place_of(task)}{final}, so it cannot {_INFINITIVE[operation]};"
            f" allowed now: {', '.join(may)}",
            may,
        )


def exists_already(task: TaskState) -> NotAllowed:
    """Why a task is not created, and how to continue it."""
    steps = (Resume(task.task_id, "task"),) if "resume" in allowed(task) else ()
    words = f"task {task.task_id} exists already, and is {task.status}: {_OFFERS[task.status]}, or choose another id"
    return NotAllowed(words, ALLOWED[task.status], next_steps=steps)


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
