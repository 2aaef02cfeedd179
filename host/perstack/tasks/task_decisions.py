"""Decide which calls about a task only a person may make: functions for the marks of `oversight.needed_decisions`.

The process that works on a task may save, cancel or complete it. Answers, ending a wait early, retries beyond the limit
and removals are decisions for a person.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol

from pydantic import JsonValue

from perstack.core.definitions.job_status import PauseReason
from perstack.dataclass import dataclass
from perstack.next_steps import Decide
from perstack.oversight.needed_decisions import NeededDecision
from perstack.tasks import events as task_events
from perstack.tasks.state import TaskState, allowed_operations, due_at, in_words

_FOR_A_PERSON: frozenset[PauseReason] = frozenset(("human_approval", "human_input"))


@dataclass(frozen=True, slots=True)
class TaskSubject:
    """Task of a call, with its events, and the time in milliseconds."""

    task: TaskState
    events: Sequence[task_events.StoredTaskEvent]
    now: int

    @property
    def description(self) -> str:
        """The task in a sentence, with what it waits for."""
        task = self.task
        asked = None if task.pause_message is None else json.dumps(task.pause_message, ensure_ascii=False)
        waits = ", ".join(filter(None, (task.pause_reason, asked, in_words(task.blocked_by))))
        return f"task {task.task_id} ({waits or task.status})"


class _WithValue(Protocol):
    @property
    def value(self) -> JsonValue: ...


def answer_decision(subject: TaskSubject, arguments: _WithValue) -> NeededDecision | None:
    """Return the decision to answer a task; None if it takes no answer. External events use their token instead."""
    return _build_answer_decision(subject, arguments.value) if "answer" in allowed_operations(subject.task) else None


def resume_value_decision(subject: TaskSubject, arguments: _WithValue) -> NeededDecision | None:
    """Return the decision to continue a task with a value in place of an answer."""
    return None if arguments.value is None else _build_answer_decision(subject, arguments.value)


def _build_answer_decision(subject: TaskSubject, value: JsonValue) -> NeededDecision:
    quoted_value = json.dumps(value, ensure_ascii=False)
    typed_value = value if isinstance(value, str) else quoted_value
    return NeededDecision(
        f"Answer {subject.description} with {quoted_value}",
        Decide("answer_task", subject.task.task_id, typed_value),
    )


def early_resume_decision(subject: TaskSubject, arguments: object) -> NeededDecision | None:
    """Return the decision to continue a task before what it waits for has come, or more often than it may."""
    task = subject.task
    if task.status == "paused":
        is_over = task.pause_reason == "checkpoint" and not task.blocked_by
        due = due_at(task)
        reason = None if is_over or (due is not None and due <= subject.now) else "without what it waits for"
    else:
        reason = _reason_after_failure(task, subject.events)
    if reason is None:
        return None
    return NeededDecision(f"Continue {subject.description} {reason}", Decide("resume_task", task.task_id))


def _reason_after_failure(task: TaskState, events: Sequence[task_events.StoredTaskEvent]) -> str | None:
    if task.status != "failed":
        return None
    if (question := open_question(events)) is not None:
        return f"although nobody answered before it failed: {json.dumps(question, ensure_ascii=False)}"
    if task.retry_count >= task.config.max_retries:
        return f"beyond its limit of {task.config.max_retries} retries"
    return None


def open_question(events: Sequence[task_events.StoredTaskEvent]) -> str | None:
    """Return the question that no person has answered, even if the task has failed since; None without one."""
    question: str | None = None
    for event in events:
        match event:
            case task_events.PauseTask():
                question = (event.message or event.reason) if event.reason in _FOR_A_PERSON else None
            case task_events.FailTask(outcome="pause"):
                question = event.error
            case task_events.AnswerTask() | task_events.ResumeTask():
                question = None
            case _:
                pass
    return question


def retry_decision(subject: TaskSubject, arguments: object) -> NeededDecision | None:
    """Return the decision to retry a task that failed while a person was asked."""
    question = open_question(subject.events) if subject.task.status == "failed" else None
    return None if question is None else early_resume_decision(subject, arguments)


def delete_decision(subject: TaskSubject, arguments: object) -> NeededDecision | None:
    return NeededDecision(
        f"Delete {subject.description} for good, with its {len(subject.events):,} events",
        Decide("delete_task", subject.task.task_id),
    )
