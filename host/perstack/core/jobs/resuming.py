"""Whether a stopped Run may be resumed, why it goes on, and with what."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import assert_never

from perstack.core.context import ContextPolicy, turned
from perstack.core.definitions import Expert, Limits
from perstack.core.events import ResumeReason, Settlement
from perstack.core.job import Job, JobSummary
from perstack.core.overrides import Overrides
from perstack.core.runs.state import Run, call_key, is_unsettled
from perstack.core.sandbox import SandboxPolicy
from perstack.dataclass import dataclass
from perstack.errors import Conflict, UsageError
from perstack.next_steps import Answer, Continue, Start


@dataclass(frozen=True, slots=True)
class UnsettledCall:
    """A call with a side effect that began and has no result."""

    key: str
    """What `--settle` takes; the call's own id will do where it is unique."""
    call_id: str
    run_id: str
    expert_key: str
    tool_name: str
    args: str
    """The arguments as JSON, shortened."""


def unsettled_calls(runs: Iterable[Run]) -> tuple[UnsettledCall, ...]:
    """The calls of Runs that began, may have had a side effect, and have no result."""
    return tuple(
        UnsettledCall(
            key=call_key(run, call),
            call_id=call.decided.id,
            run_id=run.id,
            expert_key=run.start.expert_key,
            tool_name=call.decided.tool_name,
            args=_shortened(json.dumps(call.part.args, ensure_ascii=False)),
        )
        for run in runs
        for call in run.calls.values()
        if is_unsettled(call)
    )


def _shortened(text: str, longest: int = 200) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def resumption(
    job: Job,
    run: Run,
    asked: Overrides,
    *,
    max_steps: int | None,
    signal: str | None,
    calls: Sequence[UnsettledCall],
    settled: Mapping[str, Settlement],
) -> tuple[ResumeReason, Limits | None]:
    """Why a Job's Coordinator goes on, and with which limits, if with others; `calls` are those that are not settled.

    Raises UsageError, with what to do instead, if it cannot, and Conflict if it has taken the signal already.
    """
    check_signal(job, signal)
    reason = _reason(job.id, run)
    if not run.may_be_redefined:
        _check_same_model(run, asked, job.id)
    _check_same_runtime(run, asked, job.id)
    _check_settled(calls, settled)
    return reason, new_limits(run, asked, max_steps)


def _reason(job_id: str, run: Run) -> ResumeReason:
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
        case "stoppedByBudget":
            return "budget"
        case "stoppedByError":
            return "error"
        case "queued":
            return "queued"
        case _:
            assert_never(run.status)


def _check_settled(calls: Sequence[UnsettledCall], settled: Mapping[str, Settlement]) -> None:
    """Raises UsageError for a settlement of a call that is not open."""
    known = {name for call in calls for name in (call.key, call.call_id)}
    for name in settled:
        if name not in known:
            names = ", ".join(call.key for call in calls) or "none"
            raise UsageError(f"settle {name}: no such open call; there are: {names}")


def check_signal(job: Job, signal: str | None) -> None:
    """Raises Conflict if a Job has taken this event from outside already."""
    if signal is not None and signal in job.signals:
        raise Conflict(f"Job {job.id} has received the event {signal} already")


def check_not_closed(job: Job | JobSummary) -> None:
    """Raises UsageError for a Job that was closed for good."""
    if job.closed is not None:
        raise UsageError(f"Job {job.id} was closed for good by {job.closed.by}", next_steps=(Start(),))


def check_same_expert(base: Run, expert: Expert, job_id: str) -> None:
    """Raises UsageError if a Job would go on with another Expert."""
    if base.start.expert_key != expert.key:
        raise UsageError(
            f"Job {job_id} is {base.start.expert_key}'s, and its context is never shared: begin a Job for {expert.key}"
        )


def _check_same_model(run: Run, asked: Overrides, job_id: str) -> None:
    """Raises UsageError if a Run would go on with another model."""
    start = run.start
    for word, value, used in (("provider", asked.provider, start.provider), ("model", asked.model, start.model)):
        if value is not None and value != used:
            raise UsageError(
                f"{word} {value}: a Run is resumed on what it was started with, {used};"
                f" another {word} needs a new query",
                next_steps=(Continue(job_id, start.expert_key),),
            )


def _check_same_runtime(run: Run, asked: Overrides, job_id: str) -> None:
    """Raises UsageError if programs of a Run would run elsewhere than they did."""
    start = run.start
    used = (start.sandbox or SandboxPolicy()).runtime
    if asked.runtime is not None and asked.runtime != used:
        raise UsageError(
            f"runtime {asked.runtime}: a Run is resumed in what it was started in, {used}; another runtime needs a new"
            " query",
            next_steps=(Continue(job_id, start.expert_key),),
        )


def new_limits(run: Run, asked: Overrides, max_steps: int | None = None) -> Limits | None:
    """The Run's limits with those that were given anew; None if none was."""
    given = {
        "max_steps": asked.max_steps if max_steps is None else max_steps,
        "max_retries": asked.max_retries,
        "timeout": asked.timeout,
    }
    new: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    if given["max_steps"] == 0:
        new["max_steps"] = None  # no limit
    budget = asked.budget_over(run.limits.budget)
    if budget != run.limits.budget:
        new["budget"] = budget
    if asked.compaction is not None:
        new["context"] = turned(run.limits.context or ContextPolicy(), asked.compaction)
    return run.limits.model_copy(update=new) if new else None


def limits_of_delegate(run: Run, asked: Overrides) -> Limits | None:
    """A delegate's limits as they are when the Run that waits for it is resumed; None if they are as before."""
    if asked.compaction is None:
        return None
    context = turned(run.limits.context or ContextPolicy(), asked.compaction)
    return None if context == run.limits.context else run.limits.model_copy(update={"context": context})
