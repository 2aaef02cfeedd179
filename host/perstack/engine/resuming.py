"""Whether a stopped Run may be resumed, why it goes on, and with what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from perstack.config.settings import Overrides
from perstack.core.definitions import Expert, Limits
from perstack.core.events import ResumeReason, Settlement
from perstack.core.job import Job
from perstack.core.runs.state import Run
from perstack.engine.read import UnsettledCall
from perstack.errors import Conflict, UsageError
from perstack.next_steps import Answer, Continue


def resume_reason(job_id: str, run: Run) -> ResumeReason:
    """Why a Run goes on. Raises UsageError, with what to do instead, if it cannot."""
    match run.status:
        case "completed":
            step = Continue(job_id, run.start.expert_key)
            raise UsageError(f"Job {job_id} is completed", next_steps=(step,))
        case "stoppedByInteractiveTool":
            raise UsageError(f"Job {job_id} waits for an answer", next_steps=(Answer(job_id),))
        case "running" | "stoppedByDelegate":
            return "crash"
        case "stoppedByInterrupt":
            return "interrupt"
        case "stoppedByMaxSteps":
            return "maxSteps"
        case "stoppedByError":
            return "error"
        case _:
            assert_never(run.status)


def check_settled(calls: tuple[UnsettledCall, ...], settled: Mapping[str, Settlement]) -> None:
    """Raises UsageError for a settlement of a call that is not open."""
    known = {name for call in calls for name in (call.key, call.call_id)}
    for name in settled:
        if name not in known:
            names = ", ".join(call.key for call in calls) or "none"
            raise UsageError(f"settle {name}: no such open call; there are: {names}")


def check_signal(job: Job, signal: str | None) -> None:
    """Raises Conflict if a Job has taken this event from outside already."""
    if signal is not None and signal in job.signals:
        raise Conflict(f"Job {job.id} has taken the event {signal} already")


def check_same_expert(base: Run, expert: Expert, job_id: str) -> None:
    """Raises UsageError if a Job would go on with another Expert."""
    if base.start.expert_key != expert.key:
        raise UsageError(
            f"Job {job_id} is {base.start.expert_key}'s; context is never shared with another Expert ({expert.key})"
        )


def check_same_model(run: Run, asked: Overrides, job_id: str) -> None:
    """Raises UsageError if a Run would go on with another model."""
    start = run.start
    for word, value, used in (("provider", asked.provider, start.provider), ("model", asked.model, start.model)):
        if value is not None and value != used:
            raise UsageError(
                f"{word} {value}: a Run is resumed on what it was started with, {used};"
                f" another {word} needs a new query",
                next_steps=(Continue(job_id, start.expert_key),),
            )


def new_limits(run: Run, asked: Overrides, max_steps: int | None = None) -> Limits | None:
    """The Run's limits with those that were given anew; None if none was."""
    given: dict[str, int | None] = {
        "max_steps": asked.max_steps if max_steps is None else max_steps,
        "max_retries": asked.max_retries,
        "timeout": asked.timeout,
    }
    new = {name: value for name, value in given.items() if value is not None}
    if new.get("max_steps") == 0:
        return run.limits.model_copy(update={**new, "max_steps": None})
    return run.limits.model_copy(update=new) if new else None
