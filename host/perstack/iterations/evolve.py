"""Fold the events of a series of iterations into its state, and summarize it for lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, assert_never

from pydantic import Field

from perstack.core.base.records import IllegalEvent, Record, falsy, fields_of
from perstack.core.base.usage import NO_USAGE, BudgetName, Usage, sum_charges
from perstack.core.definitions.experts import Iterate
from perstack.core.definitions.job_status import JobStatus, PauseReason
from perstack.core.definitions.recorded_definition import SeriesDefinition
from perstack.errors import UsageError
from perstack.feature_logs.transitions import check_follows
from perstack.iterations.state import (
    TRANSITIONS,
    Case,
    FailSeries,
    FinishArtefact,
    FinishIteration,
    FinishReason,
    FinishSeries,
    Iteration,
    PauseSeries,
    ResumeSeries,
    SeriesState,
    SeriesStatus,
    StartIteration,
    StartSeries,
    StoredSeriesEvent,
    is_better_score,
    score_of,
)
from perstack.next_steps import SetOption


def begin_series(start_series: StartSeries) -> SeriesState:
    """Return the state after the first event."""
    return SeriesState(
        id=start_series.series_id,
        expert_key=start_series.expert_key,
        user_input=start_series.query,
        settings=start_series.iterate,
        definition=start_series.definition,
        started_at=start_series.timestamp,
        updated_at=start_series.timestamp,
    )


def evolve_series(series: SeriesState | None, event: StoredSeriesEvent) -> SeriesState:
    """Return the state after one more event (None before the first). Raises IllegalEvent if it cannot follow."""
    if series is None:
        if isinstance(event, StartSeries):
            return begin_series(event)
        raise IllegalEvent("the first event is not startSeries")
    check_follows(TRANSITIONS, event.type, f"series {series.id}", series.place)
    return series.model_copy(update=_changes(series, event) | SeriesChanges(updated_at=event.timestamp))


def paused_by_crash(series: SeriesState) -> SeriesState:
    """Return a running series whose process has died as paused, so that it can be resumed."""
    return series.model_copy(
        update=SeriesChanges(status="paused", pause_reason="checkpoint", message="its process ended")
    )


class SeriesChanges(TypedDict, total=False):
    """Fields of a series that an event changes."""

    settings: Iterate
    definition: SeriesDefinition | None
    status: SeriesStatus
    iterations: tuple[Iteration, ...]
    best_iteration: int | None
    current_artefact: str | None
    pause_reason: PauseReason | None
    job_status: JobStatus | None
    job_id: str | None
    approval_id: str | None
    exceeded: BudgetName | None
    resume_at: int | None
    message: str | None
    finish_reason: FinishReason | None
    invalid_answers: int
    updated_at: int
    finished_at: int | None


STOPPED = SeriesChanges(
    pause_reason=None,
    job_status=None,
    job_id=None,
    approval_id=None,
    exceeded=None,
    resume_at=None,
    message=None,
    finish_reason=None,
    finished_at=None,
)


def _changes(series: SeriesState, event: StoredSeriesEvent) -> SeriesChanges:
    match event:
        case StartSeries():
            raise IllegalEvent("a second startSeries")
        case StartIteration():
            if event.number != len(series.iterations) + 1:
                raise IllegalEvent(f"startIteration {event.number} is not the next of {len(series.iterations)}")
            iteration = Iteration(number=event.number, job_id=event.job_id, started_at=event.timestamp)
            return SeriesChanges(iterations=(*series.iterations, iteration), invalid_answers=0)
        case FinishArtefact():
            iteration = _with_artefact(_current_iteration(series, event), event)
            return SeriesChanges(iterations=(*series.iterations[:-1], iteration), current_artefact=event.artefact)
        case FinishIteration():
            return _with_score(series, event)
        case PauseSeries():
            return STOPPED | SeriesChanges(
                status="paused",
                pause_reason=event.reason,
                message=event.message,
                job_status=event.job_status,
                job_id=event.job_id,
                approval_id=event.approval_id,
                exceeded=event.exceeded,
                resume_at=event.resume_at,
            )
        case FailSeries():
            return STOPPED | _failure_changes(series, event)
        case ResumeSeries():
            definition = event.definition or series.definition
            return (
                STOPPED
                | _extend_series(series, event.more, event.target, event.max_cost, event.max_tokens)
                | SeriesChanges(status="running", definition=definition)
            )
        case FinishSeries():
            return STOPPED | SeriesChanges(status="completed", finish_reason=event.reason, finished_at=event.timestamp)
    assert_never(event)


def _current_iteration(series: SeriesState, event: FinishArtefact | FinishIteration) -> Iteration:
    current = series.iterations[-1]
    if event.number != current.number:
        raise IllegalEvent(f"{event.type} is about iteration {event.number}, but {current.number} is current")
    return current


def _with_artefact(current: Iteration, finish_artefact: FinishArtefact) -> Iteration:
    return Iteration(
        number=current.number,
        job_id=current.job_id,
        artefact=finish_artefact.artefact,
        duration=finish_artefact.duration,
        usage=finish_artefact.usage,
        assumed=finish_artefact.assumed,
        started_at=current.started_at,
    )


def _failure_changes(series: SeriesState, fail_series: FailSeries) -> SeriesChanges:
    changes = SeriesChanges(
        status="failed", message=fail_series.error, invalid_answers=series.invalid_answers + fail_series.invalid_answer
    )
    if series.iterations and (fail_series.usage != NO_USAGE or fail_series.assumed is not None):
        current = series.iterations[-1]
        update = {
            "usage": current.usage + fail_series.usage,
            "assumed": sum_charges(current.assumed, fail_series.assumed),
        }
        changes["iterations"] = (*series.iterations[:-1], current.model_copy(update=update))
    return changes


def _with_score(series: SeriesState, finish_iteration: FinishIteration) -> SeriesChanges:
    current = _current_iteration(series, finish_iteration)
    score = score_of(series.settings, finish_iteration.metrics)
    measured_iteration = Iteration(
        number=current.number,
        job_id=current.job_id,
        artefact=current.artefact,
        metrics=finish_iteration.metrics,
        score=score,
        analysis=finish_iteration.analysis,
        cases=finish_iteration.cases,
        regressions=regressions_in(series.done, finish_iteration.cases),
        duration=current.duration + finish_iteration.duration,
        usage=current.usage + finish_iteration.usage,
        assumed=sum_charges(current.assumed, finish_iteration.assumed),
        started_at=current.started_at,
        finished_at=finish_iteration.timestamp,
    )
    best = series.best
    is_best = best is None or (best.score is not None and is_better_score(series.settings, score, best.score))
    return SeriesChanges(
        iterations=(*series.iterations[:-1], measured_iteration),
        best_iteration=measured_iteration.number if is_best else series.best_iteration,
    )


def regressions_in(earlier_iterations: Sequence[Iteration], cases: Sequence[Case]) -> tuple[str, ...]:
    """Return the cases that fail now and passed when last reported."""
    passed = {case.name: case.passed for iteration in earlier_iterations for case in iteration.cases}
    return tuple(case.name for case in cases if not case.passed and passed.get(case.name, False))


class _Limits(TypedDict):
    max_iterations: int
    target: float | None
    max_cost: float | None
    max_tokens: int | None


def with_limits(
    settings: Iterate,
    max_iterations: int,
    target: float | None,
    max_cost: float | None = None,
    max_tokens: int | None = None,
) -> Iterate:
    """Return the settings with a maximum of iterations, and with the given target and totals; None keeps a value."""
    return settings.model_copy(
        update=_Limits(
            max_iterations=max_iterations,
            target=settings.target if target is None else target,
            max_cost=settings.max_cost if max_cost is None else max_cost,
            max_tokens=settings.max_tokens if max_tokens is None else max_tokens,
        )
    )


def _extend_series(
    series: SeriesState, more: int, target: float | None, max_cost: float | None = None, max_tokens: int | None = None
) -> SeriesChanges:
    max_iterations = series.settings.max_iterations + more
    return SeriesChanges(settings=with_limits(series.settings, max_iterations, target, max_cost, max_tokens))


def check_resumable(series: SeriesState, more: int, target: float | None) -> None:
    """Raise UsageError, naming the missing argument, if resuming a completed series would have nothing to do."""
    if series.status != "completed":
        return
    extended_series = series.model_copy(update=_extend_series(series, more, target))
    if extended_series.has_reached_target:
        message = f"{series.id} has reached its target, {extended_series.settings.target:g}"
        raise UsageError(message, next_steps=(SetOption("target"),))
    if len(extended_series.iterations) >= extended_series.settings.max_iterations:
        message = f"{series.id} has used its {extended_series.settings.max_iterations} iterations"
        raise UsageError(message, next_steps=(SetOption("max_iterations"),))


class SeriesSummary(Record):
    """Series in a list: a cache that can be derived from its events."""

    id: str
    status: SeriesStatus
    expert_key: str
    user_input: str
    done: int
    max_iterations: int
    metric: str | tuple[str, ...]
    target: float | None = None
    best_iteration: int | None = None
    best_score: float | None = None
    pause_reason: PauseReason | None = None
    resume_at: int | None = None
    message: str | None = None
    damaged: bool = Field(default=False, exclude_if=falsy)  # True if its log cannot be read: `message` says where
    usage: Usage = NO_USAGE
    started_at: int
    updated_at: int
    finished_at: int | None = None


def summary_of_series(series: SeriesState, *, damaged: bool = False) -> SeriesSummary:
    best = series.best
    return SeriesSummary(
        **fields_of(series, SeriesSummary),
        done=len(series.done),
        max_iterations=series.settings.max_iterations,
        metric=series.settings.metric,
        target=series.settings.target,
        best_score=best.score if best else None,
        damaged=damaged,
        usage=sum((iteration.usage for iteration in series.iterations), NO_USAGE),
    )


def damaged_series(series_id: str, series: SeriesState | None, damage: str) -> SeriesSummary:
    """Return the summary of a series with an unreadable log: its last readable state, as failed."""
    if series is not None:
        changes = STOPPED | SeriesChanges(status="failed", message=damage)
        return summary_of_series(series.model_copy(update=changes), damaged=True)
    return SeriesSummary(
        id=series_id,
        status="failed",
        expert_key="",
        user_input="",
        done=0,
        max_iterations=0,
        metric="",
        message=damage,
        damaged=True,
        started_at=0,
        updated_at=0,
    )
