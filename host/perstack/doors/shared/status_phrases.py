"""The status of Jobs and Runs as text, and the next step for one that has stopped or ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, assert_never

from perstack.core.base.text import count
from perstack.core.base.usage import BudgetName, cost_text
from perstack.core.definitions.job_status import TYPED_STATUS, JobStatus
from perstack.core.jobs.summary import JobSummary
from perstack.next_steps import Continue, GiveAnswer, NextStep, Option, Resume

if TYPE_CHECKING:
    from perstack.core.jobs.summary import RunSummary
    from perstack.iterations.state import SeriesState  # imported for types only: a Job alone does not need it


# Status as text.

STATUS_WORDS: dict[JobStatus, str] = {status: word.replace("-", " ") for word, status in TYPED_STATUS.items()}


def status_of(summary: JobSummary) -> str:
    """Return the Job's status as text; `closed` is added if a person closed it permanently."""
    word = STATUS_WORDS[summary.status]
    return word if summary.closed is None else f"{word}, closed"


def run_status_of(run_summary: RunSummary) -> str:
    """Return the Run's status as text, including waiting for delegates."""
    return "waits for delegates" if run_summary.status == "stoppedByDelegate" else STATUS_WORDS[run_summary.status]


def spending_line(summary: JobSummary) -> str:
    """Return `12 steps, 3,400 tokens, $0.0123`."""
    parts = (
        count(summary.total_steps, "step"),
        count(summary.usage.total_tokens, "token"),
        cost_text(summary.usage, summary.unpriced_tokens),
    )
    return ", ".join(part for part in parts if part)


def job_line(summary: JobSummary, phrase: Callable[[NextStep], str]) -> str:
    """Return a line with id, status, cost and the next step, worded by `phrase`."""
    step = next_step_of_job(summary)
    closer = "" if summary.closed is None else f" permanently by {summary.closed.by}"
    next_step = "" if step is None else f"; {phrase(step)}"
    return f"Job {summary.id}: {status_of(summary)}{closer}, {spending_line(summary)}{next_step}"


def models_of(summary: JobSummary) -> str:
    """Return the models of the Coordinator's Runs, the latest first; `?` if an older version recorded none."""
    coordinator_runs = [run_summary for run_summary in reversed(summary.runs) if run_summary.delegated_by is None]
    names = dict.fromkeys(
        name
        for run_summary in coordinator_runs
        for name in (*reversed(run_summary.by_model), run_summary.model)
        if name
    )
    return ", ".join(names) or "?"


AfterJob: TypeAlias = GiveAnswer | Continue | Resume

_LIMIT_OPTIONS: dict[BudgetName, Option] = {
    "maxCost": "max_cost",
    "maxTokens": "max_tokens",
    "maxTime": "max_time",
    "maxToolCalls": "max_tool_calls",
}


def next_step_of_job(summary: JobSummary) -> AfterJob | None:
    """Return how the Job continues; None while it runs, or if it was closed permanently."""
    if summary.closed is not None:
        return None
    if summary.status == "stoppedByInteractiveTool" and summary.asking is not None and summary.asking.call_digest:
        return GiveAnswer(summary.asking.id, is_approval=True)  # an approval is answered by its question's id
    if summary.exceeded_budget is not None:
        return Resume(summary.id, needs=_LIMIT_OPTIONS[summary.exceeded_budget])
    return _next_step(summary.id, summary.status, summary.expert_key)


def next_steps_of_series(series: SeriesState) -> tuple[GiveAnswer | Resume, ...]:
    """Return the steps that continue paused or failed iterations, in order; empty for others."""
    if series.status not in ("paused", "failed"):
        return ()
    give_answer = (
        None if series.job_id is None or series.job_status is None else _next_step(series.job_id, series.job_status)
    )
    if series.approval_id is not None:
        give_answer = GiveAnswer(series.approval_id, is_approval=True)
    if series.exceeded is not None:
        return (Resume(series.id, "series", "total_tokens" if series.exceeded == "maxTokens" else "total_cost"),)
    first = (give_answer,) if isinstance(give_answer, GiveAnswer) else ()
    needs = give_answer.needs if isinstance(give_answer, Resume) else None
    return (*first, Resume(series.id, "series", needs))


def _next_step(job_id: str, status: JobStatus, expert_key: str | None = None) -> AfterJob | None:
    match status:
        case "running" | "queued":
            return None
        case "completed":
            return Continue(job_id, expert_key)
        case "stoppedByInteractiveTool":
            return GiveAnswer(job_id)
        case "stoppedByMaxSteps":
            return Resume(job_id, needs="max_steps")
        case "stoppedByBudget":
            return Resume(job_id, needs="max_cost")
        case "stoppedByInterrupt" | "stoppedByError":
            return Resume(job_id)
        case _:
            assert_never(status)
