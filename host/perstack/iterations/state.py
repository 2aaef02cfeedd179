"""Measurements, events, state (times and durations in milliseconds) and transitions of a series of iterations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from typing import Annotated, Literal, cast, get_args

from pydantic import Field, TypeAdapter, ValidationError

from perstack.core.base.records import EventParser, Record, falsy, first_problem
from perstack.core.base.usage import NO_USAGE, BudgetName, Charge, Usage
from perstack.core.definitions.experts import Iterate
from perstack.core.definitions.job_status import JobStatus, PauseReason
from perstack.core.definitions.recorded_definition import SeriesDefinition
from perstack.core.definitions.settings import Budget
from perstack.dataclass import dataclass
from perstack.errors import UsageError
from perstack.feature_logs.transitions import Transition, transition

# Measurements: the JSON object with numbers that an evaluator answers. Numbers may also be at its top:
#     {"metrics": {"score": 0.8}, "analysis": "…", "cases": [{"name": "adds", "passed": true}]}


class Case(Record):
    """Result of one test case, as the evaluator reports it."""

    name: str
    passed: bool


@dataclass(frozen=True, slots=True)
class Measurement:
    """Metrics, analysis and cases that an evaluator reported."""

    metrics: dict[str, float]
    analysis: str = ""
    cases: tuple[Case, ...] = ()


class _Details(Record):
    analysis: str = ""
    cases: tuple[Case, ...] = ()


def measurement_in(text: str) -> Measurement:
    """Return the measurement in an output: in the whole, its last line, or between its braces. Raises ValueError."""
    lines = text.strip().splitlines()
    if not lines:
        raise ValueError("it is empty, and should be a JSON object with metrics")
    for part in (text, lines[-1], text[text.find("{") : text.rfind("}") + 1]):
        try:
            value = json.loads(part)
        except (ValueError, RecursionError):
            continue
        return measurement_of(value)
    raise ValueError(f"it is not JSON: {_shorten(lines[-1])}")


def measurement_of(answer: object) -> Measurement:
    """Return the measurement in a value. Raises ValueError whose message names the fault."""
    if not isinstance(answer, Mapping):
        raise ValueError(f"it should be a JSON object, and is {_shorten(repr(answer))}")
    fields = cast("Mapping[str, object]", answer)
    reported = fields.get("metrics", {})
    if not isinstance(reported, Mapping):
        raise ValueError(f"`metrics` should be an object of numbers, and is {_shorten(repr(reported))}")
    metrics = {name: number for name, value in fields.items() if (number := _number(value)) is not None}
    for name, value in cast("Mapping[str, object]", reported).items():
        number = _number(value)
        if number is None:
            raise ValueError(f"metric `{name}` should be a number, and is {_shorten(repr(value))}")
        metrics[name] = number
    try:
        details = _Details.model_validate({name: fields[name] for name in ("analysis", "cases") if fields.get(name)})
    except ValidationError as error:
        path, message = first_problem(error)
        raise ValueError(f"`{path}`: {message}") from error
    return Measurement(metrics, details.analysis, details.cases)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if isfinite(number) else None


def _shorten(text: str) -> str:
    return text if len(text) <= 200 else text[:199] + "…"


# Events and states.

FinishReason = Literal["targetReached", "iterationsUsed"]


class SeriesEvent(Record):
    """Fields that all events of a series have."""

    series_id: str
    timestamp: int


class StartSeries(SeriesEvent):
    """A series was started: an Expert is run until its result is good enough."""

    type: Literal["startSeries"] = "startSeries"
    expert_key: str
    query: str
    iterate: Iterate
    definition: SeriesDefinition | None = None  # definition of the Expert, without secrets; None in older logs


class StartIteration(SeriesEvent):
    """An iteration began; its Job runs next."""

    type: Literal["startIteration"] = "startIteration"
    number: int
    job_id: str
    budget: Budget | None = Field(default=None, exclude_if=falsy)  # remaining budget of the series; None without one


class FinishArtefact(SeriesEvent):
    """The Expert's Job is completed."""

    type: Literal["finishArtefact"] = "finishArtefact"
    number: int
    artefact: str
    duration: int
    usage: Usage = NO_USAGE
    assumed: Charge | None = Field(default=None, exclude_if=falsy)  # charge for unreported usage; None without a budget


class FinishIteration(SeriesEvent):
    """The evaluator has measured the result."""

    type: Literal["finishIteration"] = "finishIteration"
    number: int
    metrics: dict[str, float]
    analysis: str = Field(default="", exclude_if=falsy)
    cases: tuple[Case, ...] = Field(default=(), exclude_if=falsy)
    duration: int
    usage: Usage = NO_USAGE  # cost of an Expert that evaluates
    assumed: Charge | None = Field(default=None, exclude_if=falsy)  # charge for unreported usage; None without a budget


class PauseSeries(SeriesEvent):
    """The series stopped and can be resumed."""

    type: Literal["pauseSeries"] = "pauseSeries"
    reason: PauseReason
    message: str
    job_status: JobStatus = "stoppedByInterrupt"  # status of the current Job
    job_id: str | None = Field(default=None, exclude_if=falsy)  # Job that must continue first, an evaluator's too
    approval_id: str | None = Field(default=None, exclude_if=falsy)  # question to answer, if that Job waits for one
    exceeded: BudgetName | None = Field(default=None, exclude_if=falsy)  # total of the series that is used up
    resume_at: int | None = None  # earliest time to resume, if the pause is for a provider's rate limit


class FailSeries(SeriesEvent):
    """An error stopped the series; it can be resumed after a correction."""

    type: Literal["failSeries"] = "failSeries"
    error: str
    invalid_answer: bool = Field(  # True if the evaluator's answer was unusable and must be asked again
        default=False, exclude_if=falsy, validation_alias="spoilt", serialization_alias="spoilt"
    )
    usage: Usage = Field(default=NO_USAGE, exclude_if=lambda value: value == NO_USAGE)  # usage of an evaluating Expert
    assumed: Charge | None = Field(default=None, exclude_if=falsy)  # charge for unreported usage; None without a budget


class ResumeSeries(SeriesEvent):
    """The series was resumed, possibly with more iterations, another target or a higher budget."""

    type: Literal["resumeSeries"] = "resumeSeries"
    more: int = Field(default=0, exclude_if=falsy)
    target: float | None = None  # new target; None keeps the present one
    max_cost: float | None = Field(default=None, exclude_if=falsy)
    max_tokens: int | None = Field(default=None, exclude_if=falsy)  # totals for all Jobs of the series; None keeps them
    definition: SeriesDefinition | None = None  # new definition of the Expert; None keeps it


class FinishSeries(SeriesEvent):
    """The series is completed: the result is good enough, or no iteration is left."""

    type: Literal["finishSeries"] = "finishSeries"
    reason: FinishReason


StoredSeriesEvent = (
    StartSeries
    | StartIteration
    | FinishArtefact
    | FinishIteration
    | PauseSeries
    | FailSeries
    | ResumeSeries
    | FinishSeries
)

parse_series_event = EventParser[StoredSeriesEvent](
    lambda: TypeAdapter(Annotated[StoredSeriesEvent, Field(discriminator="type")])
)


# Scores: which metrics are compared, and which score is better.


def compared_metrics(settings: Iterate) -> tuple[str, ...]:
    return (settings.metric,) if isinstance(settings.metric, str) else settings.metric


def score_of(settings: Iterate, metrics: Mapping[str, float]) -> float:
    """Return the compared score: the worst of the metrics. Raises UsageError for a missing metric."""
    missing = [name for name in compared_metrics(settings) if name not in metrics]
    if missing:
        names = ", ".join(metrics) or "none"
        raise UsageError(f"no metric {', '.join(map(repr, missing))}; available: {names}")
    worst = min if settings.direction == "higher" else max
    return worst(metrics[name] for name in compared_metrics(settings))


def is_better_score(settings: Iterate, score: float, other: float) -> bool:
    """Return whether one score is strictly better than another."""
    return score > other if settings.direction == "higher" else score < other


def is_target_reached(settings: Iterate, score: float | None) -> bool:
    """Return whether a score reaches the target; False without a target."""
    if settings.target is None or score is None:
        return False
    return score == settings.target or is_better_score(settings, score, settings.target)


SeriesStatus = Literal["running", "paused", "completed", "failed"]
Place = Literal["between", "working", "measuring", "paused", "completed", "failed"]


class Iteration(Record):
    """Run of the Expert in a series, with its measurement."""

    number: int
    job_id: str
    artefact: str | None = None  # None until the Job is completed
    metrics: dict[str, float] = Field(default_factory=dict[str, float])
    score: float | None = None  # None until measured
    analysis: str = ""
    cases: tuple[Case, ...] = Field(default=(), exclude_if=falsy)
    regressions: tuple[str, ...] = Field(default=(), exclude_if=falsy)  # cases that fail and passed when last reported
    duration: int = 0  # milliseconds of the Job and the evaluator together, each in the process that finished it
    usage: Usage = NO_USAGE
    assumed: Charge | None = Field(default=None, exclude_if=falsy)  # charge for unreported usage; None without a budget
    started_at: int
    finished_at: int | None = None

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the failing cases."""
        return tuple(case.name for case in self.cases if not case.passed)


class SeriesState(Record):
    """State of a series."""

    id: str
    expert_key: str
    user_input: str
    settings: Iterate
    definition: SeriesDefinition | None = None  # definition of the Expert, without secrets; None in older logs
    status: SeriesStatus = "running"
    iterations: tuple[Iteration, ...] = ()
    best_iteration: int | None = None  # number of the best iteration; of equal ones the first
    current_artefact: str | None = None
    pause_reason: PauseReason | None = None
    job_status: JobStatus | None = None  # status of the Job that a paused series waits for
    job_id: str | None = Field(default=None, exclude_if=falsy)  # id of that Job; None without one
    approval_id: str | None = Field(default=None, exclude_if=falsy)  # id of its call that waits for a person's approval
    exceeded: BudgetName | None = Field(default=None, exclude_if=falsy)
    resume_at: int | None = None  # earliest time to resume a paused series
    message: str | None = None
    finish_reason: FinishReason | None = None
    invalid_answers: int = Field(default=0, exclude_if=falsy, validation_alias="spoilt", serialization_alias="spoilt")
    started_at: int
    updated_at: int
    finished_at: int | None = None

    @property
    def done(self) -> tuple[Iteration, ...]:
        """The iterations that are measured."""
        return tuple(iteration for iteration in self.iterations if iteration.score is not None)

    @property
    def current_iteration(self) -> Iteration | None:
        """The iteration that has begun and is not measured; None between two iterations."""
        last = self.iterations[-1] if self.iterations else None
        return last if last is not None and last.score is None else None

    @property
    def place(self) -> Place:
        """The state in terms of `TRANSITIONS`."""
        if self.status != "running":
            return self.status
        now = self.current_iteration
        return "between" if now is None else "working" if now.artefact is None else "measuring"

    @property
    def best(self) -> Iteration | None:
        """The best iteration so far; None before the first measurement."""
        return None if self.best_iteration is None else self.iterations[self.best_iteration - 1]

    @property
    def has_reached_target(self) -> bool:
        return self.best is not None and is_target_reached(self.settings, self.best.score)


# Which event may follow in which state. `evolve_series` and the docs use this one table.

_RUNNING: tuple[Place, ...] = ("between", "working", "measuring")
_ANY: tuple[Place, ...] = get_args(Place)

TRANSITIONS: dict[str, Transition[Place]] = {
    "startIteration": transition("between", to=("working",)),
    "finishArtefact": transition("working", to=("measuring",)),
    "finishIteration": transition("measuring", to=("between",)),
    "pauseSeries": transition(*_RUNNING, to=("paused",)),
    "failSeries": transition(*_RUNNING, to=("failed",)),
    # a series whose process has died still has the status running
    "resumeSeries": transition(*_ANY, to=_RUNNING),
    "finishSeries": transition("between", to=("completed",)),
}
