"""Where a series of iterations stands. Times are milliseconds since 1970, durations too are milliseconds."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from perstack.core.base import Fact, falsy
from perstack.core.definitions import Iterate
from perstack.core.iterations.events import (
    Case,
    FinishReason,
)
from perstack.core.iterations.scores import reaches
from perstack.core.job import JobStatus, PauseReason
from perstack.core.recorded import SeriesDefinition
from perstack.core.run_facts import BudgetName
from perstack.core.usage import NO_USAGE, Charge, Usage

SeriesStatus = Literal["running", "paused", "completed", "failed"]
Place = Literal["between", "working", "measuring", "paused", "completed", "failed"]
"""Where a series stands. One that is running is between two iterations, or its Expert works, or what it has made is
measured."""


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
    assumed: Charge | None = Field(default=None, exclude_if=falsy)
    """With a budget: what counts besides, because nobody said what was used."""
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
    approval_id: str | None = Field(default=None, exclude_if=falsy)
    """The call of it that waits for a person's approval."""
    exceeded: BudgetName | None = Field(default=None, exclude_if=falsy)
    """Which total it has used up."""
    resume_at: int | None = None
    """From when on a paused series may be resumed."""
    message: str | None = None
    """Why it is paused, or what went wrong."""
    finish_reason: FinishReason | None = None
    invalid_answers: int = Field(default=0, exclude_if=falsy, validation_alias="spoilt", serialization_alias="spoilt")
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
    def place(self) -> Place:
        """Where it stands."""
        if self.status != "running":
            return self.status
        now = self.in_hand
        return "between" if now is None else "working" if now.artefact is None else "measuring"

    @property
    def best(self) -> Iteration | None:
        return None if self.best_iteration is None else self.iterations[self.best_iteration - 1]

    @property
    def has_reached_target(self) -> bool:
        return self.best is not None and reaches(self.settings, self.best.score)
