"""The facts of a series of iterations: what its log is made of. Times are milliseconds since 1970, durations too are
milliseconds.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from perstack.core.base import Fact, falsy
from perstack.core.definitions import Budget, Iterate
from perstack.core.job import JobStatus, PauseReason
from perstack.core.recorded import SeriesDefinition
from perstack.core.run_facts import BudgetName
from perstack.core.usage import NO_USAGE, Charge, Usage

FinishReason = Literal["targetReached", "iterationsUsed"]


class Case(Fact):
    """One case of a test, as the evaluator reports it."""

    name: str
    passed: bool


class SeriesEvent(Fact):
    """What all facts of a series have."""

    series_id: str
    timestamp: int


class StartSeries(SeriesEvent):
    """An Expert is to be run until what it makes is good enough."""

    type: Literal["startSeries"] = "startSeries"
    expert_key: str
    query: str
    iterate: Iterate
    definition: SeriesDefinition | None = None
    """What the Expert is run with, but for secrets; older logs do not have it."""


class StartIteration(SeriesEvent):
    """The Expert is about to be run as this Job."""

    type: Literal["startIteration"] = "startIteration"
    number: int
    job_id: str
    budget: Budget | None = Field(default=None, exclude_if=falsy)
    """What is left for it of what all Jobs may spend together."""


class FinishArtefact(SeriesEvent):
    """The Expert's Job is completed."""

    type: Literal["finishArtefact"] = "finishArtefact"
    number: int
    artefact: str
    duration: int
    usage: Usage = NO_USAGE
    assumed: Charge | None = Field(default=None, exclude_if=falsy)
    """With a budget: what counts besides, because nobody said what was used."""


class FinishIteration(SeriesEvent):
    """The evaluator has measured."""

    type: Literal["finishIteration"] = "finishIteration"
    number: int
    metrics: dict[str, float]
    analysis: str = Field(default="", exclude_if=falsy)
    cases: tuple[Case, ...] = Field(default=(), exclude_if=falsy)
    duration: int
    usage: Usage = NO_USAGE
    """What an Expert that evaluates has cost."""
    assumed: Charge | None = Field(default=None, exclude_if=falsy)
    """As in `finishArtefact`."""


class PauseSeries(SeriesEvent):
    """It stopped, and can go on."""

    type: Literal["pauseSeries"] = "pauseSeries"
    reason: PauseReason
    message: str
    job_status: JobStatus = "stoppedByInterrupt"
    """How the Job in hand stands."""
    job_id: str | None = Field(default=None, exclude_if=falsy)
    """That Job, the Expert's or an evaluator's, if it has to go on first."""
    approval_id: str | None = Field(default=None, exclude_if=falsy)
    """The question that a person has to answer, if that Job waits for an approval."""
    exceeded: BudgetName | None = Field(default=None, exclude_if=falsy)
    """Which total of the series is used up."""
    resume_at: int | None = None
    """From when on it may be resumed, if it waits for a provider's rate limit."""


class FailSeries(SeriesEvent):
    """Something went wrong; it can go on when that is put right."""

    type: Literal["failSeries"] = "failSeries"
    error: str
    invalid_answer: bool = Field(
        default=False, exclude_if=falsy, validation_alias="spoilt", serialization_alias="spoilt"
    )
    """Whether the evaluator has answered, and the answer is of no use: it has to be asked anew."""
    usage: Usage = Field(default=NO_USAGE, exclude_if=lambda value: value == NO_USAGE)
    """What that answer has cost, if an Expert gave it."""
    assumed: Charge | None = Field(default=None, exclude_if=falsy)
    """As in `finishArtefact`."""


class ResumeSeries(SeriesEvent):
    """It goes on, perhaps with more iterations, another target or more to spend."""

    type: Literal["resumeSeries"] = "resumeSeries"
    more: int = Field(default=0, exclude_if=falsy)
    """How many iterations are added."""
    target: float | None = None
    """None: the one that it had."""
    max_cost: float | None = Field(default=None, exclude_if=falsy)
    max_tokens: int | None = Field(default=None, exclude_if=falsy)
    """What all its Jobs may spend together; None: what it was."""
    definition: SeriesDefinition | None = None
    """What the Expert is run with from now on; None: what it was."""


class FinishSeries(SeriesEvent):
    """It is good enough, or no iteration is left."""

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

_stored: TypeAdapter[StoredSeriesEvent] | None = None


def parse_series_event(payload: bytes) -> StoredSeriesEvent:
    """A fact from its JSON. Raises pydantic's ValidationError if it is none."""
    global _stored
    if _stored is None:
        _stored = TypeAdapter(Annotated[StoredSeriesEvent, Field(discriminator="type")])
    return _stored.validate_json(payload)
