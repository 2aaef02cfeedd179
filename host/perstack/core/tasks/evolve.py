"""How a fact changes a task."""

from __future__ import annotations

from typing import assert_never

from perstack.core.ids import event_id_of
from perstack.core.job import PauseReason
from perstack.core.tasks.events import (
    AnswerTask,
    ArchiveTask,
    CancelTask,
    CheckpointTask,
    CompleteTask,
    CreateTask,
    FailTask,
    PauseTask,
    ResumeTask,
    RetryTask,
    StartTask,
    StoredTaskEvent,
    WakeTask,
)
from perstack.core.tasks.state import CANCELLED, TaskState

_MOST_SIGNALS = 100


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
