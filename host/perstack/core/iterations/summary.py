"""Series as they are listed."""

from __future__ import annotations

from pydantic import Field

from perstack.core.base import Fact, falsy
from perstack.core.iterations.evolve import STOPPED, Changes
from perstack.core.iterations.state import SeriesState, SeriesStatus
from perstack.core.job import PauseReason
from perstack.core.usage import NO_USAGE, Usage


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


def summary_of_series(series: SeriesState, *, damaged: bool = False) -> SeriesSummary:
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
        damaged=damaged,
        usage=sum((one.usage for one in series.iterations), NO_USAGE),
        started_at=series.started_at,
        updated_at=series.updated_at,
        finished_at=series.finished_at,
    )


def damaged_series(series_id: str, readable: SeriesState | None, damage: str) -> SeriesSummary:
    """A series whose log does not read, as it is listed: as far as it was readable, and failed."""
    if readable is not None:
        failed = STOPPED | Changes(status="failed", message=damage)
        return summary_of_series(readable.model_copy(update=failed), damaged=True)
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
