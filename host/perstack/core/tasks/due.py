"""What is to be done about a task without its agent: it is resumed, taken for failed, or its Job continues.

next_step(task, known, now) -> what has to be looked at first, what is to be done, or None
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from pydantic import JsonValue

from perstack.core.job import JobSummary
from perstack.core.tasks.events import AnswerTask, CompleteTask, FailTask, PauseTask, ResumeTask, StoredTaskEvent
from perstack.core.tasks.evolve import runs_after
from perstack.core.tasks.operations import failure
from perstack.core.tasks.state import TaskState, due_at
from perstack.dataclass import dataclass

_STILLBORN = 30_000
"""Milliseconds after which a Job that has not begun never will."""

LABEL = "task"
"""The label of a task's Job that has the task's id."""
EXPERT_LABEL = "expert"
"""That has its Expert, so that workers with labels can be there for it."""

Action = Literal["resumed", "worked", "timedOut", "failed", "deleted"]


@dataclass(frozen=True, slots=True)
class PollResult:
    """What a command says that was asked whether what a task waits for has come."""

    has_come: bool
    value: JsonValue = None


@dataclass(frozen=True, slots=True)
class Known:
    """What was looked at for the decision."""

    is_expert: bool
    """Whether the task's agent is an Expert that can be run here."""
    poll: PollResult | None = None
    jobs: Mapping[str, JobSummary | None] = field(default_factory=dict[str, JobSummary | None])
    """None: it has no Run."""


@dataclass(frozen=True, slots=True)
class AskCommand:
    """Ask whether what the task waits for has come."""

    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LookAtJob:
    """See how a Job of the task stands."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Work:
    """The Job continues that the task has: its process has died."""

    job_id: str


@dataclass(frozen=True, slots=True)
class GoOn:
    """Append these, at the version that was decided on."""

    events: tuple[StoredTaskEvent, ...]
    did: Action
    job_id: str | None = None
    """The Job that continues, if one works on the task after that; None: a new one."""

    def needs_job(self, task: TaskState, known: Known) -> bool:
        """Whether a Job works on the task after that: one of its Expert's, if it runs."""
        return known.is_expert and runs_after(task, self.events)


Step = AskCommand | LookAtJob | Work | GoOn


def next_step(task: TaskState, known: Known, now: int) -> Step | None:
    """What is to be done, or has to be known first; None if nothing is."""
    if task.status == "paused":
        return _resumed(task, known, now)
    return _attended(task, known, now) if task.status == "running" else None


def _resumed(task: TaskState, known: Known, now: int) -> Step | None:
    """A paused task continues, if what it waits for has come."""
    if task.blocked_by:
        return None
    due, events = due_at(task), list[StoredTaskEvent]()
    if due is None or due > now:
        command = task.waiting_for.command if task.waiting_for is not None else ()
        if command and known.poll is None:
            return AskCommand(command)
        if known.poll is None or not known.poll.has_come:
            return None
        events.append(AnswerTask(task_id=task.task_id, timestamp=now, input=known.poll.value))
    job_id = task.job_id if task.pause_reason == "rate_limit" else None
    if job_id is not None and job_id not in known.jobs:
        return LookAtJob(job_id)
    job = known.jobs.get(job_id or "")
    if job is not None and job.closed is not None:
        return GoOn((failure(task, _closed(job), now),), "worked")
    paused_job = job_id if job is not None and job.pause_reason == "rate_limit" else None
    return GoOn((*events, ResumeTask(task_id=task.task_id, timestamp=now)), "resumed", paused_job)


def _attended(task: TaskState, known: Known, now: int) -> Step | None:
    """A running task whose process has died continues, and one that was silent for too long has failed."""
    if task.job_id is None or not known.is_expert:
        due = due_at(task)
        if due is None or due > now:
            return None
        words = f"timed out: nothing was heard of it for {task.config.timeout} ms"
        return GoOn((failure(task, words, now),), "timedOut")
    if task.job_id not in known.jobs:
        return LookAtJob(task.job_id)
    job = known.jobs[task.job_id]
    if job is None:  # it is about to begin, or the process that was to begin it has died
        return GoOn((), "resumed") if now - task.updated_at > _STILLBORN else None
    is_interrupted = job.closed is None and job.status == "stoppedByInterrupt" and job.pause_reason != "rate_limit"
    if is_interrupted and job.queued is None:  # one that was submitted is its workers', or a person has stopped it
        return Work(job.id)
    return settled(task, job, now)


def settled(task: TaskState, job: JobSummary, now: int) -> GoOn | None:
    """What a Job's end means for its task, unless its Expert has said so itself."""
    if task.status != "running" or task.job_id != job.id:
        return None
    event = _told_by(task, job, now)
    return None if event is None else GoOn((event,), "worked")


def _told_by(task: TaskState, job: JobSummary, now: int) -> CompleteTask | FailTask | PauseTask | None:
    if job.status == "completed":
        return CompleteTask(task_id=task.task_id, timestamp=now, result=job.text)
    if job.closed is not None:
        return failure(task, _closed(job), now)
    if job.status == "stoppedByError":
        return failure(task, job.error or "the Job failed", now)
    if job.status == "stoppedByMaxSteps":
        words = f"Job {job.id} has reached its step limit"
        return PauseTask(task_id=task.task_id, timestamp=now, reason="checkpoint", message=words)
    if job.status == "stoppedByBudget":
        words = f"Job {job.id} is stopped by its budget: {job.exceeded}"
        return PauseTask(task_id=task.task_id, timestamp=now, reason="checkpoint", message=words)
    if job.pause_reason == "rate_limit" and job.queued is None:
        return PauseTask(task_id=task.task_id, timestamp=now, reason="rate_limit", resume_at=job.resume_at)
    return None


def _closed(job: JobSummary) -> str:
    by = "" if job.closed is None else f" by {job.closed.by}"
    return f"Job {job.id} was closed for good{by}"


def query_for(task: TaskState) -> str:
    """What an Expert is told that goes on with a task."""
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
