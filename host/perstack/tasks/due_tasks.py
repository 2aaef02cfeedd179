"""Decide what to do about a task while its agent does nothing: resume it, fail it, or continue its Job.

next_step(task, context, now) -> a command to run or a Job to load first, a step to perform, or None
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from pydantic import JsonValue

from perstack.core.jobs.due import DUE, NeedJob, job_state, stop_reason
from perstack.core.jobs.summary import JobSummary
from perstack.dataclass import dataclass
from perstack.tasks import events as task_events
from perstack.tasks.evolve import is_running_after
from perstack.tasks.operations import failure
from perstack.tasks.state import TaskState, due_at

LABEL = "task"  # label of a task's Job; its value is the task's id
EXPERT_LABEL = "expert"  # label with the Job's Expert, so that workers can select Jobs by labels

Action = Literal["resumed", "worked", "timedOut", "failed", "deleted"]


@dataclass(frozen=True, slots=True)
class PollResult:
    """Outcome of the command that says whether a task may continue."""

    has_come: bool
    value: JsonValue = None


@dataclass(frozen=True, slots=True)
class TaskContext:
    """Observations that a decision needs."""

    is_expert: bool  # True if the task's agent is an Expert that can run here
    poll: PollResult | None = None
    jobs: Mapping[str, JobSummary | None] = field(default_factory=dict[str, JobSummary | None])  # None: it has no Run


@dataclass(frozen=True, slots=True)
class AskCommand:
    """Request to run a command that says whether the task may continue."""

    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ContinueTask:
    """Step to continue the task's Job, whose process has died."""

    job_id: str


@dataclass(frozen=True, slots=True)
class AppendTaskEvents:
    """Step to append events at the version that was decided on."""

    events: tuple[task_events.StoredTaskEvent, ...]
    did: Action
    job_id: str | None = None  # Job to continue if the task needs one then; None for a new Job

    def needs_job(self, task: TaskState, context: TaskContext) -> bool:
        """Return whether one of the Expert's Jobs works on the task after the events."""
        return context.is_expert and is_running_after(task, self.events)


Step = AskCommand | NeedJob | ContinueTask | AppendTaskEvents


def next_step(task: TaskState, context: TaskContext, now: int) -> Step | None:
    """Return the next step, or what the decision needs first; None if there is nothing to do."""
    if task.status == "paused":
        return _resume_step(task, context, now)
    return _check_running(task, context, now) if task.status == "running" else None


def _resume_step(task: TaskState, context: TaskContext, now: int) -> Step | None:
    if task.blocked_by:
        return None
    due, events = due_at(task), list[task_events.StoredTaskEvent]()
    if due is None or due > now:
        command = task.waiting_for.command if task.waiting_for is not None else ()
        if command and context.poll is None:
            return AskCommand(command)
        if context.poll is None or not context.poll.has_come:
            return None
        events.append(task_events.AnswerTask(task_id=task.task_id, timestamp=now, input=context.poll.value))
    job_id = task.job_id if task.pause_reason == "rate_limit" else None
    if job_id is not None and job_id not in context.jobs:
        return NeedJob(job_id)
    summary = context.jobs.get(job_id or "")
    todo = DUE[job_state(summary, now, by_workers=False)]["limitedTask"]
    if summary is not None and todo == "fail":
        return AppendTaskEvents((failure(task, f"Job {summary.id} {stop_reason(summary)}", now),), "worked")
    resume = task_events.ResumeTask(task_id=task.task_id, timestamp=now)
    return AppendTaskEvents((*events, resume), "resumed", job_id if todo == "continue" else None)


def _check_running(task: TaskState, context: TaskContext, now: int) -> Step | None:
    """Continue a running task whose process has died; fail a task that was silent for too long."""
    if task.job_id is None or not context.is_expert:
        due = due_at(task)
        if due is None or due > now:
            return None
        message = f"timed out: nothing was heard of it for {task.config.timeout} ms"
        return AppendTaskEvents((failure(task, message, now),), "timedOut")
    if task.job_id not in context.jobs:
        return NeedJob(task.job_id)
    summary = context.jobs[task.job_id]
    # a duration: by a time, a machine whose clock is behind would replace a Job that begins now, and both would run
    match DUE[job_state(summary, now, missing_ms=now - task.updated_at)]["task"]:
        case "replace":
            return AppendTaskEvents((), "resumed")
        case "continue":
            return ContinueTask(task.job_id)
        case _:
            return None if summary is None else settle_task(task, summary, now)


def settle_task(task: TaskState, summary: JobSummary, now: int) -> AppendTaskEvents | None:
    """Return the step for the end of a task's Job, unless its Expert has changed the task itself."""
    if task.status != "running" or task.job_id != summary.id:
        return None
    complete_task: task_events.StoredTaskEvent
    message = f"Job {summary.id} {stop_reason(summary)}"
    match DUE[job_state(summary, now)]["task"]:
        case "finish":
            complete_task = task_events.CompleteTask(task_id=task.task_id, timestamp=now, result=summary.text)
        case "fail":
            complete_task = failure(
                task, message if summary.closed is not None else summary.error or "the Job failed", now
            )
        case "pause":
            is_limit = summary.pause_reason == "rate_limit"
            complete_task = task_events.PauseTask(
                task_id=task.task_id,
                timestamp=now,
                reason="rate_limit" if is_limit else "checkpoint",
                message=None if is_limit else message,
                resume_at=summary.resume_at if is_limit else None,
            )
        case _:
            return None
    return AppendTaskEvents((complete_task,), "worked")


def query_for(task: TaskState) -> str:
    """Return the query for an Expert that continues a task."""
    parts = [f"Continue task {task.task_id}: {task.name}."]
    if task.description:
        parts.append(task.description)
    parts.append(f"Its state is:\n{_json(task.state)}")
    if task.checkpoint_data is not None:
        parts.append(f"With its latest checkpoint was kept:\n{_json(task.checkpoint_data)}")
    if task.input is not None:
        parts.append(f"What it was waiting for has come:\n{_json(task.input)}")
    if task.input_text:
        parts.append(f"With it was said:\n{task.input_text}")
    if task.config.checkpoint_interval is not None:
        parts.append(f"Make a checkpoint of it at least every {max(1, task.config.checkpoint_interval // 1000)} s.")
    if task.error is not None:
        parts.append(f"It failed the last time: {task.error}")
    return "\n\n".join(parts)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)
