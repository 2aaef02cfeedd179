"""A task that an agent pauses and resumes: its facts, its state, and which of them may follow which.

Everything that affects transitions is in `ALLOWED`, `evolve_task` and `outcome_of_failure`. Times are milliseconds
since 1970.
"""

from __future__ import annotations

from typing import Literal, assert_never

from pydantic import Field, JsonValue

from perstack.core.answers import ANYTHING, APPROVAL, Asked
from perstack.core.base import Fact, JsonObject, falsy
from perstack.core.by import By
from perstack.core.ids import check_job_id, event_id_of
from perstack.core.job import PauseReason
from perstack.core.task_dependencies import Dependency
from perstack.core.task_events import (
    AnswerTask,
    ArchiveTask,
    CancelTask,
    CheckpointTask,
    CompleteTask,
    CreateTask,
    FailTask,
    OnFailure,
    PauseTask,
    ResumeTask,
    RetryTask,
    StartTask,
    StoredTaskEvent,
    TaskConfig,
    WaitingFor,
    WakeTask,
)
from perstack.errors import NotAllowed, UsageError
from perstack.next_steps import Resume

TaskStatus = Literal["created", "running", "paused", "completed", "failed"]
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

CANCELLED = "cancelled"
"""The error of a task that somebody gave up; `cancelled: why` if it was said why."""

_MOST_SIGNALS = 100
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


def summary_of(task: TaskState) -> TaskSummary:
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
        retry_count=task.retry_count,
        checkpoints=task.checkpoints,
        checkpoint_due_at=task.checkpoint_due_at,
        job_id=task.job_id,
        created_at=task.created_at,
        updated_at=task.updated_at,
        archived_at=task.archived_at,
    )


def damaged_task(task_id: str, readable: TaskState | None, damage: str) -> TaskSummary:
    """A task whose log does not read, as it is listed: as far as it was readable, and failed."""
    known = summary_of(readable or TaskState(task_id=task_id, name=""))
    unset: dict[str, object] = {
        "pause_reason": None,
        "pause_message": None,
        "resume_at": None,
        "due_at": None,
        "polls": False,
    }
    unset |= {"answered": False, "checkpoint_due_at": None, "depends_on": ()}
    return known.model_copy(update={**unset, "status": "failed", "error": damage, "damaged": True})


def begin_task(event: CreateTask) -> TaskState:
    """The state after the first fact."""
    return TaskState(
        task_id=event.task_id,
        name=event.name,
        description=event.description,
        agent_id=event.agent_id,
        version=1,
        config=event.config,
        state=event.state,
        created_at=event.timestamp,
        updated_at=event.timestamp,
    )


def evolve_task(task: TaskState, event: StoredTaskEvent) -> TaskState:
    """The state after one more fact."""
    changes = _changes(task, event)
    runs, interval = changes.get("status", task.status) == "running", task.config.checkpoint_interval
    # whatever is written of a task that runs is a checkpoint, or that it has begun to run
    due = event.timestamp + interval if runs and interval is not None else None
    always = {"version": task.version + 1, "updated_at": event.timestamp, "checkpoint_due_at": due}
    return task.model_copy(update=changes | always)


_NOT_WAITING: dict[str, object] = {
    "pause_reason": None,
    "pause_message": None,
    "resume_at": None,
    "waiting_for": None,
    "depends_on": (),
    "answered": False,
    "paused_at": None,
    "error": None,
    "error_details": None,
    "finished_at": None,
}
_GOING_ON = {**_NOT_WAITING, "status": "running", "job_id": None}


def _changes(task: TaskState, event: StoredTaskEvent) -> dict[str, object]:
    match event:
        case CreateTask():
            raise ValueError(f"task {task.task_id} is created twice")
        case StartTask():
            return {**_GOING_ON, "started_at": event.timestamp}
        case CheckpointTask():
            return _checkpointed(task, event)
        case PauseTask():
            return _paused(event.reason, event.message, event)
        case AnswerTask() | ResumeTask():
            return _answered(task, event) if isinstance(event, AnswerTask) else _resumed(task, event)
        case CompleteTask() | FailTask() | CancelTask():
            return _ended(task, event)
        case RetryTask():
            return {**_GOING_ON, "retry_count": task.retry_count + 1}
        case WakeTask():
            return {"job_id": event.job_id}
        case ArchiveTask():
            return {"archived_at": event.timestamp}
    assert_never(event)


def _checkpointed(task: TaskState, event: CheckpointTask) -> dict[str, object]:
    return {
        "state": task.state if event.state is None else event.state,
        "checkpoint_data": event.data,
        "checkpoints": task.checkpoints + 1,
        "checkpoint_id": event_id_of(task.task_id, task.version + 1),
        "checkpointed_at": event.timestamp,
    }


def _paused(reason: PauseReason, message: str | None, event: PauseTask | FailTask) -> dict[str, object]:
    waits = event if isinstance(event, PauseTask) else None
    return {
        **_NOT_WAITING,
        "status": "paused",
        # what the pause before was told answers nothing that is asked now
        "input": None,
        "input_text": "",
        "input_by": None,
        "pause_reason": reason,
        "pause_message": message,
        "paused_at": event.timestamp,
        "resume_at": waits.resume_at if waits else None,
        "waiting_for": waits.waiting_for if waits else None,
        "depends_on": waits.depends_on if waits else (),
        "token_hash": waits.token_hash if waits else None,
    }


def _answered(task: TaskState, event: AnswerTask) -> dict[str, object]:
    signals = (*task.signals, event.signal)[-_MOST_SIGNALS:] if event.signal else task.signals
    return {"answered": True, "signals": signals, **_told(event)}


def _told(event: AnswerTask | ResumeTask) -> dict[str, object]:
    return {"input": event.input, "input_text": event.input_text, "input_by": event.by}


def _resumed(task: TaskState, event: ResumeTask) -> dict[str, object]:
    changes: dict[str, object] = {**_GOING_ON, "started_at": task.started_at or event.timestamp}
    if event.input is not None:
        changes |= _told(event)
    if event.state is not None:
        changes["state"] = event.state
    if event.checkpoint_id is not None:
        changes |= {"checkpoint_id": event.checkpoint_id, "checkpoint_data": event.data}
    return changes


def _ended(task: TaskState, event: CompleteTask | FailTask | CancelTask) -> dict[str, object]:
    end = {**_NOT_WAITING, "finished_at": event.timestamp}
    error = {"error": event.error, "error_details": event.details} if isinstance(event, FailTask) else {}
    match event:
        case CompleteTask():
            state = task.state if event.state is None else event.state
            return {**end, "status": "completed", "result": event.result, "state": state}
        case CancelTask():
            said = f"{CANCELLED}: {event.message}" if event.message else CANCELLED
            return {**end, "status": "failed", "error": said}
        case FailTask(outcome="fail"):
            return {**end, "status": "failed", **error}
        case FailTask(outcome="pause"):
            return {**_paused("human_input", event.error, event), **error}
        case FailTask():
            return {**_GOING_ON, **error, "retry_count": task.retry_count + 1}
        case _:
            assert_never(event)
