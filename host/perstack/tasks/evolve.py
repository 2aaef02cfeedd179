"""Fold the events of a task into its state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, assert_never

from pydantic import JsonValue

from perstack.core.base.ids import By, event_id_of
from perstack.core.base.records import IllegalEvent, JsonObject
from perstack.core.definitions.job_status import PauseReason
from perstack.feature_logs.transitions import check_follows
from perstack.tasks import events as task_events
from perstack.tasks.state import CANCELLED, TRANSITIONS, Dependency, TaskCheckpoint, TaskState, TaskStatus, place_of

_MAX_SIGNALS = 100


def begin_task(create_task: task_events.CreateTask) -> TaskState:
    """Return the state after the first event."""
    return TaskState(
        task_id=create_task.task_id,
        name=create_task.name,
        description=create_task.description,
        agent_id=create_task.agent_id,
        version=1,
        config=create_task.config,
        state=create_task.state,
        created_at=create_task.timestamp,
        updated_at=create_task.timestamp,
    )


def evolve_task(task: TaskState | None, event: task_events.StoredTaskEvent) -> TaskState:
    """Return the state after one more event (None before the first). Raises IllegalEvent if it cannot follow."""
    if task is None:
        if isinstance(event, task_events.CreateTask):
            return begin_task(event)
        raise IllegalEvent("the first event is not createTask")
    check_follows(TRANSITIONS, event.type, f"task {task.task_id}", place_of(task))
    changes = _changes(task, event)
    runs, interval = changes.get("status", task.status) == "running", task.config.checkpoint_interval
    changes["version"], changes["updated_at"] = task.version + 1, event.timestamp
    # every event of a running task is a checkpoint, or its start
    changes["checkpoint_due_at"] = event.timestamp + interval if runs and interval is not None else None
    return task.model_copy(update=changes)


def is_running_after(task: TaskState | None, events: Sequence[task_events.StoredTaskEvent]) -> bool:
    """Return whether the task runs after these events. Raises IllegalEvent if one cannot follow."""
    for event in events:
        task = evolve_task(task, event)
    return task is not None and task.status == "running"


class TaskChanges(TypedDict, total=False):
    """Fields of a task that an event changes."""

    status: TaskStatus
    version: int
    state: JsonObject
    checkpoint_data: JsonObject | None
    checkpoints: int
    checkpoint_id: str | None
    pause_reason: PauseReason | None
    pause_message: str | None
    resume_at: int | None
    waiting_for: task_events.WaitingFor | None
    depends_on: tuple[str, ...]
    blocked_by: tuple[Dependency, ...]
    token: str | None
    token_hash: str | None
    answered: bool
    input: JsonValue
    input_text: str
    input_by: By | None
    result: JsonValue
    error: str | None
    error_details: JsonObject | None
    retry_count: int
    job_id: str | None
    signals: tuple[str, ...]
    started_at: int | None
    updated_at: int
    paused_at: int | None
    finished_at: int | None
    checkpointed_at: int | None
    checkpoint_due_at: int | None
    archived_at: int | None


NOT_WAITING = TaskChanges(
    pause_reason=None,
    pause_message=None,
    resume_at=None,
    waiting_for=None,
    depends_on=(),
    answered=False,
    paused_at=None,
    error=None,
    error_details=None,
    finished_at=None,
)
_RUNNING = NOT_WAITING | TaskChanges(status="running", job_id=None)


def _changes(task: TaskState, event: task_events.StoredTaskEvent) -> TaskChanges:  # noqa: C901 - one case for each kind of event
    match event:
        case task_events.CreateTask():
            raise IllegalEvent("a second createTask")
        case task_events.StartTask():
            return _RUNNING | TaskChanges(started_at=event.timestamp)
        case task_events.CheckpointTask():
            return TaskChanges(
                state=task.state if event.state is None else event.state,
                checkpoint_data=event.data,
                checkpoints=task.checkpoints + 1,
                checkpoint_id=event_id_of(task.task_id, task.version + 1),
                checkpointed_at=event.timestamp,
            )
        case task_events.PauseTask():
            return _pause_changes(event.reason, event.message, event.timestamp) | TaskChanges(
                resume_at=event.resume_at,
                waiting_for=event.waiting_for,
                depends_on=event.depends_on,
                token_hash=event.token_hash,
            )
        case task_events.AnswerTask():
            signals = (*task.signals, event.signal)[-_MAX_SIGNALS:] if event.signal else task.signals
            return _answer_changes(event) | TaskChanges(answered=True, signals=signals)
        case task_events.ResumeTask():
            return _resume_changes(task, event)
        case task_events.CompleteTask():
            state = task.state if event.state is None else event.state
            return _end_changes("completed", event) | TaskChanges(result=event.result, state=state)
        case task_events.FailTask():
            return _failure_changes(task, event) | TaskChanges(error=event.error, error_details=event.details)
        case task_events.CancelTask():
            error = f"{CANCELLED}: {event.message}" if event.message else CANCELLED
            return _end_changes("failed", event) | TaskChanges(error=error)
        case task_events.RetryTask():
            return _RUNNING | TaskChanges(retry_count=task.retry_count + 1)
        case task_events.WakeTask():
            return TaskChanges(job_id=event.job_id)
        case task_events.ArchiveTask():
            return TaskChanges(archived_at=event.timestamp)
    assert_never(event)


def _pause_changes(reason: PauseReason, message: str | None, paused_at: int) -> TaskChanges:
    """Clear the input, because an answer to an earlier pause must not answer this one."""
    no_input = TaskChanges(input=None, input_text="", input_by=None, token_hash=None)
    pause = TaskChanges(status="paused", pause_reason=reason, pause_message=message, paused_at=paused_at)
    return NOT_WAITING | no_input | pause


def _answer_changes(event: task_events.AnswerTask | task_events.ResumeTask) -> TaskChanges:
    return TaskChanges(input=event.input, input_text=event.input_text, input_by=event.by)


def _resume_changes(task: TaskState, resume_task: task_events.ResumeTask) -> TaskChanges:
    changes = _RUNNING | TaskChanges(started_at=task.started_at or resume_task.timestamp)
    if resume_task.input is not None:
        changes |= _answer_changes(resume_task)
    if resume_task.state is not None:
        changes["state"] = resume_task.state
    if resume_task.checkpoint_id is not None:
        changes |= TaskChanges(checkpoint_id=resume_task.checkpoint_id, checkpoint_data=resume_task.data)
    return changes


def _end_changes(
    status: TaskStatus, event: task_events.CompleteTask | task_events.FailTask | task_events.CancelTask
) -> TaskChanges:
    return NOT_WAITING | TaskChanges(status=status, finished_at=event.timestamp)


def _failure_changes(task: TaskState, fail_task: task_events.FailTask) -> TaskChanges:
    match fail_task.outcome:
        case "fail":
            return _end_changes("failed", fail_task)
        case "pause":
            return _pause_changes("human_input", fail_task.error, fail_task.timestamp)
        case "retry":
            return _RUNNING | TaskChanges(retry_count=task.retry_count + 1)
    assert_never(fail_task.outcome)


def checkpoints_in(task_id: str, events: Sequence[task_events.StoredTaskEvent]) -> tuple[TaskCheckpoint, ...]:
    """Return the checkpoints among a task's events, each with the state of that time."""
    state: JsonObject = {}
    checkpoints: list[TaskCheckpoint] = []
    for version, event in enumerate(events, start=1):
        if (
            isinstance(
                event,
                task_events.CreateTask | task_events.CheckpointTask | task_events.ResumeTask | task_events.CompleteTask,
            )
            and event.state is not None
        ):
            state = event.state
        if isinstance(event, task_events.CheckpointTask):
            checkpoints.append(
                TaskCheckpoint(
                    id=event_id_of(task_id, version),
                    name=event.name,
                    timestamp=event.timestamp,
                    version=version,
                    state=state,
                    checkpoint_data=event.data,
                    data=event.data,
                )
            )
    return tuple(checkpoints)
