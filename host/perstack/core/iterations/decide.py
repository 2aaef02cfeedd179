"""What is recorded of a series without any effect, and which Jobs it has: what a stop calls for, ids, questions.

What an effect has brought (an artifact, a measurement) is recorded by those who performed it.
"""

from __future__ import annotations

from typing import TypedDict

from perstack.core.definitions import Budget
from perstack.core.iterations.budget import UsedUp
from perstack.core.iterations.events import FailSeries, PauseSeries
from perstack.core.iterations.pending import Evaluate
from perstack.core.iterations.scores import metrics_wanted
from perstack.core.iterations.state import SeriesState
from perstack.core.job import JobSummary
from perstack.core.run_facts import BudgetName


class Stamp(TypedDict):
    """What every fact of a series has."""

    series_id: str
    timestamp: int


def job_of_iteration(series_id: str, number: int) -> str:
    """The Job of the Expert in an iteration."""
    return f"{series_id}-i{number}"


def job_of_evaluation(series_id: str, command: Evaluate) -> str:
    """The Job of the Expert that evaluates an iteration: another for each time that its answer was of no use."""
    return f"{series_id}-e{command.number}{f'-{command.attempt + 1}' if command.attempt else ''}"


def interrupted(stamp: Stamp) -> PauseSeries:
    """The pause of a series that is at work."""
    return PauseSeries(**stamp, reason="checkpoint", message="interrupted")


def used_up(what: UsedUp, stamp: Stamp) -> PauseSeries:
    """The pause of a series that has spent what it may."""
    return PauseSeries(
        **stamp, reason="checkpoint", message=what.words, job_status="stoppedByBudget", exceeded=what.budget
    )


def _exceeds(job: JobSummary, left: Budget | None) -> BudgetName | None:
    """Which total of the series has stopped a Job: it had no more than what was left of that."""
    if left is None or job.budget is None or job.status != "stoppedByBudget":
        return None
    if job.exceeded_budget == "maxCost" and left.max_cost == job.budget.max_cost:
        return "maxCost"
    return "maxTokens" if job.exceeded_budget == "maxTokens" and left.max_tokens == job.budget.max_tokens else None


def stopped(job: JobSummary, stamp: Stamp, left: Budget | None = None) -> PauseSeries | FailSeries:
    """What the end of a Job that is not completed makes of the series; `left` is what it could spend of the total."""
    if job.closed is not None:
        return FailSeries(**stamp, error=f"Job {job.id} was closed for good by {job.closed.by}")
    if job.status == "stoppedByError":
        return FailSeries(**stamp, error=f"Job {job.id} failed: {job.error}")
    return PauseSeries(
        **stamp,
        reason=job.pause_reason or "checkpoint",
        message=f"Job {job.id} {_waits(job)}",
        job_status=job.status,
        job_id=job.id,
        exceeded=_exceeds(job, left),
        approval_id=None if job.asking is None or not job.asking.call_digest else job.asking.id,
        resume_at=job.resume_at,
    )


def _waits(job: JobSummary) -> str:
    if job.status == "stoppedByInteractiveTool":
        return f"asks: {job.asks}"
    if job.status == "stoppedByMaxSteps":
        return "has reached its step limit"
    if job.status == "stoppedByBudget":
        return f"is stopped by its budget: {job.exceeded}"
    return "waits for the provider's rate limit" if job.pause_reason == "rate_limit" else "was interrupted"


def question_of(series: SeriesState, artefact: str) -> str:
    """What an Expert that evaluates is asked."""
    metrics = ", ".join(f'"{name}": NUMBER' for name in metrics_wanted(series.settings))
    return (
        "Judge the result below. Answer with one JSON object and nothing else: "
        f'{{"metrics": {{{metrics}}}, "analysis": "what to improve"}}; '
        'if you check it case by case, add "cases": [{"name": "…", "passed": true}].\n\n'
        f"It was made for this query:\n{series.user_input}\n\nThe result:\n{artefact}"
    )
