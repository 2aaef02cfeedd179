"""What may be done next with what is stopped or has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, assert_never

from perstack.core.job import JobStatus, JobSummary
from perstack.core.run_facts import BudgetName
from perstack.next_steps import Answer, Continue, Option, Resume

if TYPE_CHECKING:
    from perstack.core.iterations.state import SeriesState  # a Job alone needs none of it

AfterJob: TypeAlias = Answer | Continue | Resume

_OF_BUDGET: dict[BudgetName, Option] = {
    "maxCost": "max_cost",
    "maxTokens": "max_tokens",
    "maxTime": "max_time",
    "maxToolCalls": "max_tool_calls",
}


def after_job(job: JobSummary) -> AfterJob | None:
    """How a Job continues; None while it runs, and for one that was closed for good."""
    if job.closed is not None:
        return None
    if job.status == "stoppedByInteractiveTool" and job.asking is not None and job.asking.call_digest:
        return Answer(job.asking.id, is_approval=True)  # an approval names its question
    if job.exceeded_budget is not None:
        return Resume(job.id, needs=_OF_BUDGET[job.exceeded_budget])
    return _after(job.id, job.status, job.expert_key)


def after_series(series: SeriesState) -> tuple[Answer | Resume, ...]:
    """How paused or failed iterations go on, all of it in this order; nothing for others."""
    if series.status not in ("paused", "failed"):
        return ()
    job = None if series.job_id is None or series.job_status is None else _after(series.job_id, series.job_status)
    if series.approval_id is not None:
        job = Answer(series.approval_id, is_approval=True)
    if series.exceeded is not None:
        return (Resume(series.id, "series", "total_tokens" if series.exceeded == "maxTokens" else "total_cost"),)
    first = (job,) if isinstance(job, Answer) else ()
    needs = job.needs if isinstance(job, Resume) else None
    return (*first, Resume(series.id, "series", needs))


def _after(job_id: str, status: JobStatus, expert_key: str | None = None) -> AfterJob | None:
    match status:
        case "running" | "queued":
            return None
        case "completed":
            return Continue(job_id, expert_key)
        case "stoppedByInteractiveTool":
            return Answer(job_id)
        case "stoppedByMaxSteps":
            return Resume(job_id, needs="max_steps")
        case "stoppedByBudget":
            return Resume(job_id, needs="max_cost")
        case "stoppedByInterrupt" | "stoppedByError":
            return Resume(job_id)
        case _:
            assert_never(status)
