"""A series of iterations: its state, and what is to be done next. Everything follows from its facts.

    evolve_series(series, fact) -> series        pending_series(series) -> what is to be done, or None

An iteration runs the Expert, then the evaluator. The series ends when the best score reaches the target, or when no
iteration is left. Times are milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from pydantic import Field

from perstack.core.base import Fact, falsy
from perstack.core.definitions import Iterate
from perstack.core.iteration_events import (
    Case,
    FailSeries,
    FinishArtefact,
    FinishIteration,
    FinishReason,
    FinishSeries,
    PauseSeries,
    ResumeSeries,
    StartIteration,
    StartSeries,
    StoredSeriesEvent,
)
from perstack.core.job import JobStatus, PauseReason
from perstack.core.recorded import SeriesDefinition
from perstack.core.usage import NO_USAGE, Usage
from perstack.errors import UsageError
from perstack.next_steps import Give

SeriesStatus = Literal["running", "paused", "completed", "failed"]


class Iteration(Fact):
    """One run of the Expert, and what was measured of it."""

    number: int
    job_id: str
    artefact: str | None = None
    """The Expert's result; None until its Job is completed."""
    metrics: dict[str, float] = Field(default_factory=dict[str, float])
    score: float | None = None
    """What is compared; None until it has been measured."""
    analysis: str = ""
    cases: tuple[Case, ...] = Field(default=(), exclude_if=falsy)
    regressions: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    """Cases that passed when they were reported last, and fail now."""
    duration: int = 0
    """Of the Job and the evaluator together, each in the process that came to its end."""
    usage: Usage = NO_USAGE
    started_at: int
    finished_at: int | None = None

    @property
    def failed(self) -> tuple[str, ...]:
        """The cases that fail."""
        return tuple(case.name for case in self.cases if not case.passed)


class SeriesState(Fact):
    """Where a series stands."""

    id: str
    expert_key: str
    user_input: str
    """The query that it was started with."""
    settings: Iterate
    definition: SeriesDefinition | None = None
    """What the Expert is run with, but for secrets; None if the log does not say."""
    status: SeriesStatus = "running"
    iterations: tuple[Iteration, ...] = ()
    best_iteration: int | None = None
    """The number of the best; of equals the first."""
    current_artefact: str | None = None
    """What the Expert has made last."""
    pause_reason: PauseReason | None = None
    job_status: JobStatus | None = None
    """How the Job stands that a paused series waits for."""
    job_id: str | None = Field(default=None, exclude_if=falsy)
    """That Job, if there is one."""
    resume_at: int | None = None
    """From when on a paused series may be resumed."""
    message: str | None = None
    """Why it is paused, or what went wrong."""
    finish_reason: FinishReason | None = None
    spoilt: int = Field(default=0, exclude_if=falsy)
    """How often the evaluator's answer to the iteration in hand was of no use."""
    started_at: int
    updated_at: int
    finished_at: int | None = None

    @property
    def done(self) -> tuple[Iteration, ...]:
        """The iterations that have been measured."""
        return tuple(one for one in self.iterations if one.score is not None)

    @property
    def in_hand(self) -> Iteration | None:
        """The iteration that has begun and is not measured yet."""
        last = self.iterations[-1] if self.iterations else None
        return last if last is not None and last.score is None else None

    @property
    def best(self) -> Iteration | None:
        return None if self.best_iteration is None else self.iterations[self.best_iteration - 1]

    @property
    def has_reached_target(self) -> bool:
        return self.best is not None and reaches(self.settings, self.best.score)


class SeriesSummary(Fact):
    """A series in a list. A cache, derivable from its facts."""

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
    damaged: bool = Field(default=False, exclude_if=falsy)
    """Whether its log does not read: `message` says where, and the rest is what comes before that."""
    usage: Usage = NO_USAGE
    started_at: int
    updated_at: int
    finished_at: int | None = None


@dataclass(frozen=True, slots=True)
class BeginIteration:
    """Decide on the next Job."""

    number: int


@dataclass(frozen=True, slots=True)
class RunExpert:
    """Run the Expert as this Job, or go on with it if it has begun."""

    number: int
    job_id: str
    query: str


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Measure what it has made."""

    number: int
    artefact: str
    attempt: int
    """From 0: how often the evaluator's answer to this iteration was of no use."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing is left to be done."""

    reason: FinishReason


SeriesCommand = BeginIteration | RunExpert | Evaluate | Finish


def pending_series(series: SeriesState) -> SeriesCommand | None:
    """What is to be done next; None unless the series is running."""
    if series.status != "running":
        return None
    now = series.in_hand
    if now is None and series.has_reached_target:
        return Finish("targetReached")
    if now is None and len(series.iterations) >= series.settings.max_iterations:
        return Finish("iterationsUsed")
    if now is None:
        return BeginIteration(len(series.iterations) + 1)
    if now.artefact is None:
        return RunExpert(now.number, now.job_id, query_of(series))
    return Evaluate(now.number, now.artefact, series.spoilt)


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


def metrics_wanted(settings: Iterate) -> tuple[str, ...]:
    """The names of what is compared."""
    return (settings.metric,) if isinstance(settings.metric, str) else settings.metric


def score_of(settings: Iterate, metrics: Mapping[str, float]) -> float:
    """What is compared: of several metrics the worst. Raises UsageError for one that is not there."""
    missing = [name for name in metrics_wanted(settings) if name not in metrics]
    if missing:
        there = ", ".join(metrics) or "none"
        raise UsageError(f"no metric {', '.join(map(repr, missing))}; there are: {there}")
    worst = min if settings.direction == "higher" else max
    return worst(metrics[name] for name in metrics_wanted(settings))


def is_better(settings: Iterate, score: float, than: float) -> bool:
    """Whether one score is better than another, and not merely as good."""
    return score > than if settings.direction == "higher" else score < than


def reaches(settings: Iterate, score: float | None) -> bool:
    """Whether a score is good enough; none is where there is no target."""
    if settings.target is None or score is None:
        return False
    return score == settings.target or is_better(settings, score, settings.target)


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


def summary_of_series(series: SeriesState) -> SeriesSummary:
    """The series as it is listed."""
    best = series.best
    return SeriesSummary(
        id=series.id,
        status=series.status,
        expert_key=series.expert_key,
        user_input=series.user_input,
        done=len(series.done),
        max_iterations=series.settings.max_iterations,
        metric=series.settings.metric,
        target=series.settings.target,
        best_iteration=series.best_iteration,
        best_score=best.score if best else None,
        pause_reason=series.pause_reason,
        resume_at=series.resume_at,
        message=series.message,
        usage=sum((one.usage for one in series.iterations), NO_USAGE),
        started_at=series.started_at,
        updated_at=series.updated_at,
        finished_at=series.finished_at,
    )


def damaged_series(series_id: str, readable: SeriesState | None, damage: str) -> SeriesSummary:
    """A series whose log does not read, as it is listed: as far as it was readable, and failed."""
    known = SeriesSummary(
        id=series_id,
        status="failed",
        expert_key="",
        user_input="",
        done=0,
        max_iterations=0,
        metric="",
        started_at=0,
        updated_at=0,
    )
    if readable is not None:
        known = summary_of_series(readable)
    unset = {"pause_reason": None, "resume_at": None, "finished_at": None}
    return known.model_copy(update={**unset, "status": "failed", "message": damage, "damaged": True})


_MOST_CASES = 100
"""Names of cases that one query tells of."""


def query_of(series: SeriesState) -> str:
    """What the Expert is asked in the iteration in hand: the first time the query alone."""
    done, settings = series.done, series.settings
    if not done:
        return series.user_input
    told = done if settings.accumulate else done[-1:]
    best = series.best
    parts = [series.user_input, _aim(series)]
    parts += [_account(one) for one in told]
    if best is not None and best.number != done[-1].number:
        parts.append(f"The best so far is iteration {best.number}, with {best.score:g}. Its result:\n{best.artefact}")
    parts.append(f"The result of iteration {done[-1].number}, the last:\n{done[-1].artefact}")
    return "\n\n".join(parts)


def _aim(series: SeriesState) -> str:
    settings = series.settings
    names = metrics_wanted(settings)
    what = names[0] if len(names) == 1 else f"the worst of {', '.join(names)}"
    aim = f"as {'high' if settings.direction == 'higher' else 'low'} as can be"
    if settings.target is not None:
        aim = f"at {'least' if settings.direction == 'higher' else 'most'} {settings.target:g}"
    return (
        f"This is iteration {len(series.done) + 1} of at most {settings.max_iterations}. The aim: {what} {aim}."
        " What was made before was measured; improve on it."
    )


def _account(one: Iteration) -> str:
    """What is to be told of an iteration, but its artefact."""
    lines = [f"Iteration {one.number}: {', '.join(f'{name} {value:g}' for name, value in one.metrics.items())}"]
    if one.failed:
        lines.append(f"Cases that fail: {_names(one.failed)}")
    if one.regressions:
        lines.append(f"Of these passed before: {_names(one.regressions)}")
    if one.analysis:
        lines.append(f"Analysis: {one.analysis}")
    return "\n".join(lines)


def _names(names: Sequence[str]) -> str:
    more = len(names) - _MOST_CASES
    return ", ".join(names[:_MOST_CASES]) + (f" and {more} more" if more > 0 else "")
