"""How a fact changes a series."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from perstack.core.definitions import Iterate
from perstack.core.iterations.events import (
    Case,
    FailSeries,
    FinishArtefact,
    FinishIteration,
    FinishSeries,
    PauseSeries,
    ResumeSeries,
    StartIteration,
    StartSeries,
    StoredSeriesEvent,
)
from perstack.core.iterations.scores import is_better, score_of
from perstack.core.iterations.state import Iteration, SeriesState
from perstack.errors import UsageError
from perstack.next_steps import Give


def begin_series(event: StartSeries) -> SeriesState:
    """The state after the first fact."""
    return SeriesState(
        id=event.series_id,
        expert_key=event.expert_key,
        user_input=event.query,
        settings=event.iterate,
        definition=event.definition,
        started_at=event.timestamp,
        updated_at=event.timestamp,
    )


def evolve_series(series: SeriesState, event: StoredSeriesEvent) -> SeriesState:
    """The state after one more fact."""
    return series.model_copy(update={**_changes(series, event), "updated_at": event.timestamp})


_STOPPED: dict[str, object] = {
    "pause_reason": None,
    "job_status": None,
    "job_id": None,
    "resume_at": None,
    "message": None,
    "finish_reason": None,
    "finished_at": None,
}


def _changes(series: SeriesState, event: StoredSeriesEvent) -> dict[str, object]:
    match event:
        case StartSeries():
            raise ValueError(f"series {series.id} is started twice")
        case StartIteration():
            begun = Iteration(number=event.number, job_id=event.job_id, started_at=event.timestamp)
            return {"iterations": (*series.iterations, begun), "spoilt": 0}
        case FinishArtefact():
            return {**_with_last(series, _made(series.iterations[-1], event)), "current_artefact": event.artefact}
        case FinishIteration():
            return _measured(series, event)
        case PauseSeries():
            return {**_STOPPED, "status": "paused", **_why(event)}
        case FailSeries():
            return {**_STOPPED, "status": "failed", "message": event.error, "spoilt": series.spoilt + event.spoilt}
        case ResumeSeries():
            settings = _extended(series.settings, event.more, event.target)
            definition = event.definition or series.definition
            return {**_STOPPED, "status": "running", "settings": settings, "definition": definition}
        case FinishSeries():
            ended = {"finish_reason": event.reason, "finished_at": event.timestamp}
            return {**_STOPPED, "status": "completed", **ended}
    assert_never(event)


def _why(event: PauseSeries) -> dict[str, object]:
    return {
        "pause_reason": event.reason,
        "message": event.message,
        "job_status": event.job_status,
        "job_id": event.job_id,
        "resume_at": event.resume_at,
    }


def _with_last(series: SeriesState, last: Iteration) -> dict[str, object]:
    return {"iterations": (*series.iterations[:-1], last)}


def _made(last: Iteration, event: FinishArtefact) -> Iteration:
    update = {"artefact": event.artefact, "duration": event.duration, "usage": event.usage}
    return last.model_copy(update=update)


def _measured(series: SeriesState, event: FinishIteration) -> dict[str, object]:
    last = series.iterations[-1]
    score = score_of(series.settings, event.metrics)
    measured = last.model_copy(
        update={
            "metrics": event.metrics,
            "score": score,
            "analysis": event.analysis,
            "cases": event.cases,
            "regressions": regressions_in(series.done, event.cases),
            "duration": last.duration + event.duration,
            "usage": last.usage + event.usage,
            "finished_at": event.timestamp,
        }
    )
    best = series.best
    is_best = best is None or (best.score is not None and is_better(series.settings, score, best.score))
    return {**_with_last(series, measured), "best_iteration": measured.number if is_best else series.best_iteration}


def _extended(settings: Iterate, more: int, target: float | None) -> Iterate:
    aim = settings.target if target is None else target
    return settings.model_copy(update={"max_iterations": settings.max_iterations + more, "target": aim})


def regressions_in(before: Sequence[Iteration], cases: Sequence[Case]) -> tuple[str, ...]:
    """The cases that fail, and passed when they were reported last."""
    passed = {case.name: case.passed for one in before for case in one.cases}
    return tuple(case.name for case in cases if not case.passed and passed.get(case.name, False))


def check_resumable(series: SeriesState, more: int, target: float | None) -> None:
    """Raises UsageError, which says what would have to be given, if a completed series had nothing left to be done."""
    if series.status != "completed":
        return
    after = series.model_copy(update={"settings": _extended(series.settings, more, target)})
    if after.has_reached_target:
        words = f"{series.id} has reached its target, {after.settings.target:g}"
        raise UsageError(words, next_steps=(Give("target"),))
    if len(after.iterations) >= after.settings.max_iterations:
        words = f"{series.id} has used its {after.settings.max_iterations} iterations"
        raise UsageError(words, next_steps=(Give("max_iterations"),))
