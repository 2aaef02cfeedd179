"""Decide whether a stopped Run may be resumed, by a person or a worker, for which reason, and with which limits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, assert_never

from perstack.core.base.ids import number_of_run
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.job_status import ACTIVE
from perstack.core.definitions.sandbox import SandboxPolicy
from perstack.core.definitions.settings import ContextPolicy, Limits, Overrides, apply_compaction
from perstack.core.jobs.summary import JobSummary
from perstack.dataclass import dataclass
from perstack.errors import Conflict, UsageError
from perstack.next_steps import Continue, GiveAnswer, Start

if TYPE_CHECKING:
    from perstack.core.jobs.job import Job
    from perstack.core.runs.events.lifecycle import ResumeReason
    from perstack.core.runs.facts import Settlement
    from perstack.core.runs.state import Run


@dataclass(frozen=True, slots=True)
class UnsettledCall:
    """A call that started, may have had a side effect, and has no result."""

    key: str  # key for `--settle`, which also accepts the call id if it is unique
    call_id: str
    run_id: str
    expert_key: str
    tool_name: str
    args: str  # arguments as JSON, never shortened, because a person decides by them


def unsettled_calls(runs: Iterable[Run]) -> tuple[UnsettledCall, ...]:
    """Return the calls of Runs that started, may have had a side effect, and have no result."""
    from perstack.core.runs.state import call_key, is_unsettled

    return tuple(
        UnsettledCall(
            key=call_key(run, call),
            call_id=call.decided.id,
            run_id=run.id,
            expert_key=run.start.expert_key,
            tool_name=call.decided.tool_name,
            args=json.dumps(call.part.args, ensure_ascii=False),
        )
        for run in runs
        for call in run.calls.values()
        if is_unsettled(call)
    )


def resumption(
    job: Job,
    run: Run,
    overrides: Overrides,
    *,
    max_steps: int | None,
    signal: str | None,
    calls: Sequence[UnsettledCall],
    settled: Mapping[str, Settlement],
) -> tuple[ResumeReason, Limits | None]:
    """Return why a Job is resumed, and its limits if they change. Raises UsageError; Conflict for a known signal."""
    check_signal(job, signal)
    reason = _reason(job.id, run)
    if not run.may_be_redefined:
        _check_same_model(run, overrides, job.id)
    _check_same_runtime(run, overrides, job.id)
    _check_settled(calls, settled)
    return reason, new_limits(run, overrides, max_steps)


def _reason(job_id: str, run: Run) -> ResumeReason:
    """Return why a Run may be resumed. Raises UsageError if it is completed or waits for an answer."""
    match run.status:
        case "completed":
            step = Continue(job_id, run.start.expert_key)
            raise UsageError(f"Job {job_id} is completed: there is nothing to resume", next_steps=(step,))
        case "stoppedByInteractiveTool":
            raise UsageError(f"Job {job_id} waits for an answer", next_steps=(GiveAnswer(job_id),))
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
    keys = {name for unsettled_call in calls for name in (unsettled_call.key, unsettled_call.call_id)}
    for name in settled:
        if name not in keys:
            names = ", ".join(unsettled_call.key for unsettled_call in calls) or "none"
            raise UsageError(f"settle {name}: there is no such open call; open calls: {names}")


def check_signal(job: Job, signal: str | None) -> None:
    """Raise Conflict if the Job has accepted this event from outside before."""
    if signal is not None and signal in job.signals:
        raise Conflict(f"Job {job.id} has already received the event {signal}")


def check_not_closed(job: Job | JobSummary) -> None:
    """Raise UsageError if the Job was closed for good."""
    if job.closed is not None:
        raise UsageError(f"Job {job.id} was closed for good by {job.closed.by}", next_steps=(Start(),))


def check_same_expert(base_run: Run, expert: Expert, job_id: str) -> None:
    """Raise UsageError if the Job belongs to another Expert."""
    if base_run.start.expert_key != expert.key:
        raise UsageError(
            f"Job {job_id} belongs to Expert {base_run.start.expert_key}, and Experts never share a context:"
            f" start a new Job for {expert.key}"
        )


def _check_same_model(run: Run, overrides: Overrides, job_id: str) -> None:
    start = run.start
    for noun, value, recorded in (
        ("provider", overrides.provider, start.provider),
        ("model", overrides.model, start.model),
    ):
        if value is not None and value != recorded:
            raise UsageError(
                f"{noun} {value}: a Run is resumed with the {noun} that it was started with, {recorded};"
                f" another {noun} needs a new query",
                next_steps=(Continue(job_id, start.expert_key),),
            )


def _check_same_runtime(run: Run, overrides: Overrides, job_id: str) -> None:
    start = run.start
    recorded = (start.sandbox or SandboxPolicy()).runtime
    if overrides.runtime is not None and overrides.runtime != recorded:
        raise UsageError(
            f"runtime {overrides.runtime}: a Run is resumed in the runtime that it was started in, {recorded}; another"
            " runtime needs a new query",
            next_steps=(Continue(job_id, start.expert_key),),
        )


def new_limits(run: Run, overrides: Overrides, max_steps: int | None = None) -> Limits | None:
    """Return the Run's limits with the requested changes; None without changes."""
    requested = {name: getattr(overrides, name, None) for name in Limits.model_fields}
    if max_steps is not None:
        requested["max_steps"] = max_steps
    new: dict[str, object] = {name: value for name, value in requested.items() if value is not None}
    if requested["max_steps"] == 0:
        new["max_steps"] = None  # no limit
    budget = overrides.budget_over(run.limits.budget)
    if budget != run.limits.budget:
        new["budget"] = budget
    if overrides.compaction is not None:
        new["context"] = apply_compaction(run.limits.context or ContextPolicy(), overrides.compaction)
    return run.limits.model_copy(update=new) if new else None


def limits_of_delegate(run: Run, overrides: Overrides) -> Limits | None:
    """Return a delegate's limits for the resumption of its parent Run; None if unchanged."""
    if overrides.compaction is None:
        return None
    context = apply_compaction(run.limits.context or ContextPolicy(), overrides.compaction)
    return None if context == run.limits.context else run.limits.model_copy(update={"context": context})


# Delegates that other workers drive, which write their logs.


def is_awaited(run: Run, runs: Mapping[str, Run]) -> bool:
    """Return True if a delegate's result is awaited: all Runs above are active or queued, and still current."""
    while run.start.delegated_by is not None:
        delegation = run.start.delegated_by
        above = runs.get(delegation.run_id)
        if above is None or above.closed is not None or above.status not in (*ACTIVE, "queued"):
            return False
        call = above.calls.get(delegation.tool_call_id)
        if call is None or call.result is not None:
            return False
        run = above
    number = number_of_run(run.id)
    return not any(other.is_coordinator and number_of_run(other.id) > number for other in runs.values())


def has_separate_worker(run: Run) -> bool:
    """Return True if a delegate has, or is queued for, a separate worker."""
    return not run.is_coordinator and run.queued is not None and (run.status in ACTIVE or run.status == "queued")


def may_have_own_driver(run: Run, runs: Mapping[str, Run]) -> bool:
    """Return True if a delegate's own worker may have appended to its log since the Job's driver last appended."""
    return has_separate_worker(run) or (not run.is_coordinator and run.queued is not None and is_awaited(run, runs))
