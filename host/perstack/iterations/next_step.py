"""Decide the next step of a series, from its state alone.

A series runs one Expert repeatedly until the evaluator's score reaches the target or no iteration is left. Each
iteration has two effects, which the engine performs: it runs the Expert as a Job (`RunExpert`) and then measures the
result (`Evaluate`). The engine appends an event for each outcome; `evolve_series` (evolve.py) computes the state from
the events, and `pending_series` here returns the next command. So a series resumes after a crash by reading its log.

Which event may follow in which state is the table TRANSITIONS in state.py. A new event needs a model there, an entry
in that table and in the union, and a case in evolve.py. Ids of Jobs follow from the series and the iteration, so that
a repeated step finds the Job that exists already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from perstack.core.base.usage import NANO_PER_DOLLAR, NO_AMOUNT, Amount, BudgetName, nano
from perstack.core.definitions.settings import Budget
from perstack.core.jobs.due import DUE, job_state, stop_reason
from perstack.core.jobs.summary import JobSummary
from perstack.dataclass import dataclass
from perstack.iterations.state import FailSeries, FinishReason, Iteration, PauseSeries, SeriesState, compared_metrics

# Budget of a series over all its Jobs. It is computed from the log before each Job begins. A Job gets the rest as its
# own budget and never exceeds it, so neither does the series.


@dataclass(frozen=True, slots=True)
class ExhaustedTotal:
    """A total of the series of which nothing is left for another Job."""

    budget: BudgetName
    message: str


def total_spent(series: SeriesState) -> Amount:
    """Return what finished Jobs have spent, including charges assumed because usage was not reported."""
    amounts = (
        Amount.of_usage(iteration.usage) + Amount.of_charge(iteration.assumed) for iteration in series.iterations
    )
    return sum(amounts, NO_AMOUNT)


def next_job_budget(series: SeriesState) -> Budget | ExhaustedTotal | None:
    """Return the budget of the next Job: the rest of the series' totals. None if the series has no total."""
    total, spent = series.settings, total_spent(series)
    if total.max_cost is None and total.max_tokens is None:
        return None
    dollars = None if total.max_cost is None else nano(total.max_cost) - spent.nano
    tokens = None if total.max_tokens is None else total.max_tokens - spent.tokens
    if dollars is not None and dollars <= 0:
        return ExhaustedTotal(
            "maxCost", f"${total.max_cost:g} for all iterations are used: ${spent.nano / NANO_PER_DOLLAR:g}"
        )
    if tokens is not None and tokens <= 0:
        return ExhaustedTotal("maxTokens", f"{total.max_tokens:,} tokens for all iterations are used: {spent.tokens:,}")
    return Budget(max_cost=None if dollars is None else dollars / NANO_PER_DOLLAR, max_tokens=tokens)


@dataclass(frozen=True, slots=True)
class BeginIteration:
    """Command to append the start of the next iteration."""

    number: int
    budget: Budget | None = None  # remaining budget of the series for this Job; None without one


@dataclass(frozen=True, slots=True)
class RunExpert:
    """Command to run the Expert as this Job, or to continue the Job if it has begun."""

    number: int
    job_id: str
    query: str


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Command to measure the Expert's result."""

    number: int
    artefact: str
    attempt: int  # number of the evaluator's unusable answers in this iteration so far


@dataclass(frozen=True, slots=True)
class Finish:
    """Command to finish the series."""

    reason: FinishReason


@dataclass(frozen=True, slots=True)
class PauseIterations:
    """Command to pause the series, because its budget is used up."""

    exhausted_total: ExhaustedTotal


SeriesCommand = BeginIteration | RunExpert | Evaluate | Finish | PauseIterations


def pending_series(series: SeriesState) -> SeriesCommand | None:
    """Return the next command; None unless the series is running."""
    if series.status != "running":
        return None
    current = series.current_iteration
    if current is None and series.has_reached_target:
        return Finish("targetReached")
    if current is None and len(series.iterations) >= series.settings.max_iterations:
        return Finish("iterationsUsed")
    if current is None:
        budget = next_job_budget(series)
        return (
            PauseIterations(budget)
            if isinstance(budget, ExhaustedTotal)
            else BeginIteration(len(series.iterations) + 1, budget)
        )
    if current.artefact is None:
        return RunExpert(current.number, current.job_id, expert_query(series))
    return Evaluate(current.number, current.artefact, series.invalid_answers)


_MAX_LISTED_CASES = 100


def expert_query(series: SeriesState) -> str:
    """Return the current iteration's query: the series' own, from the second iteration on with aim and results."""
    measured, settings = series.done, series.settings
    if not measured:
        return series.user_input
    earlier = measured if settings.accumulate else measured[-1:]
    best = series.best
    parts = [series.user_input, _aim_text(series)]
    parts += [_measurement_text(iteration) for iteration in earlier]
    if best is not None and best.number != measured[-1].number:
        parts.append(f"The best so far is iteration {best.number}, with {best.score:g}. Its result:\n{best.artefact}")
    parts.append(f"The result of iteration {measured[-1].number}, the last:\n{measured[-1].artefact}")
    return "\n\n".join(parts)


def _aim_text(series: SeriesState) -> str:
    settings = series.settings
    names = compared_metrics(settings)
    metric = names[0] if len(names) == 1 else f"the worst of {', '.join(names)}"
    aim = f"as {'high' if settings.direction == 'higher' else 'low'} as can be"
    if settings.target is not None:
        aim = f"at {'least' if settings.direction == 'higher' else 'most'} {settings.target:g}"
    return (
        f"This is iteration {len(series.done) + 1} of at most {settings.max_iterations}. The aim: {metric} {aim}."
        " What was made before was measured; improve on it."
    )


def _measurement_text(iteration: Iteration) -> str:
    lines = [
        f"Iteration {iteration.number}: {', '.join(f'{name} {value:g}' for name, value in iteration.metrics.items())}"
    ]
    if iteration.failed:
        lines.append(f"Cases that fail: {_list_names(iteration.failed)}")
    if iteration.regressions:
        lines.append(f"Of these passed before: {_list_names(iteration.regressions)}")
    if iteration.analysis:
        lines.append(f"Analysis: {iteration.analysis}")
    return "\n".join(lines)


def _list_names(names: Sequence[str]) -> str:
    more = len(names) - _MAX_LISTED_CASES
    return ", ".join(names[:_MAX_LISTED_CASES]) + (f" and {more} more" if more > 0 else "")


# Events that need no effect, ids of Jobs, and the evaluator's query. Events about effects (a result, a measurement) are
# appended by the engine that performed them.


class SeriesStamp(TypedDict):
    """Fields that every event of a series has."""

    series_id: str
    timestamp: int


def job_of_iteration(series_id: str, number: int) -> str:
    """Return the id of the Expert's Job in an iteration."""
    return f"{series_id}-i{number}"


def job_of_evaluation(series_id: str, command: Evaluate) -> str:
    """Return the id of the evaluating Expert's Job, another for each attempt after an unusable answer."""
    return f"{series_id}-e{command.number}{f'-{command.attempt + 1}' if command.attempt else ''}"


def interrupt_event(stamp: SeriesStamp) -> PauseSeries:
    return PauseSeries(**stamp, reason="checkpoint", message="interrupted")


def budget_pause(exhausted_total: ExhaustedTotal, stamp: SeriesStamp) -> PauseSeries:
    """Return the pause of a series whose budget is used up."""
    return PauseSeries(
        **stamp,
        reason="checkpoint",
        message=exhausted_total.message,
        job_status="stoppedByBudget",
        exceeded=exhausted_total.budget,
    )


def _exceeded_total(summary: JobSummary, remaining: Budget | None) -> BudgetName | None:
    """Return the total of the series that stopped a Job: the total whose remainder was the Job's limit, or None."""
    if remaining is None or summary.budget is None or summary.status != "stoppedByBudget":
        return None
    if summary.exceeded_budget == "maxCost" and remaining.max_cost == summary.budget.max_cost:
        return "maxCost"
    return (
        "maxTokens"
        if summary.exceeded_budget == "maxTokens" and remaining.max_tokens == summary.budget.max_tokens
        else None
    )


def stop_event(
    summary: JobSummary, stamp: SeriesStamp, remaining: Budget | None = None
) -> PauseSeries | FailSeries | None:
    """Return the event for a Job that stopped early, or None; `remaining`: the series' budget when it began."""
    next_action, message = (
        DUE[job_state(summary, stamp["timestamp"])]["series"],
        f"Job {summary.id} {stop_reason(summary)}",
    )
    if next_action == "finish":
        return None
    if next_action == "fail":
        return FailSeries(**stamp, error=message)
    return PauseSeries(
        **stamp,
        reason=summary.pause_reason or "checkpoint",
        message=message,
        job_status=summary.status,
        job_id=summary.id,
        exceeded=_exceeded_total(summary, remaining),
        approval_id=None if summary.asking is None or not summary.asking.call_digest else summary.asking.id,
        resume_at=summary.resume_at,
    )


def evaluation_query(series: SeriesState, artefact: str) -> str:
    """Return the query for an Expert that evaluates."""
    metrics = ", ".join(f'"{name}": NUMBER' for name in compared_metrics(series.settings))
    return (
        "Judge the result below. Answer with one JSON object and nothing else: "
        f'{{"metrics": {{{metrics}}}, "analysis": "what to improve"}}; '
        'if you check it case by case, add "cases": [{"name": "…", "passed": true}].\n\n'
        f"It was made for this query:\n{series.user_input}\n\nThe result:\n{artefact}"
    )
