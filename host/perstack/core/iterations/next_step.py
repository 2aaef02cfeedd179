"""What a series does next, and what its Expert is asked. Both follow from its state alone.

An iteration runs the Expert, then the evaluator. The series ends when the best score reaches the target, or when no
iteration is left.
"""

from __future__ import annotations

from collections.abc import Sequence

from perstack.core.definitions import Budget
from perstack.core.iterations.budget import UsedUp, share
from perstack.core.iterations.events import (
    FinishReason,
)
from perstack.core.iterations.scores import metrics_wanted
from perstack.core.iterations.state import Iteration, SeriesState
from perstack.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class BeginIteration:
    """Decide on the next Job."""

    number: int
    budget: Budget | None = None
    """What is left for it of what all Jobs may spend together."""


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


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing is left to be spent on another iteration."""

    used_up: UsedUp


SeriesCommand = BeginIteration | RunExpert | Evaluate | Finish | Pause


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
        left = share(series)
        return Pause(left) if isinstance(left, UsedUp) else BeginIteration(len(series.iterations) + 1, left)
    if now.artefact is None:
        return RunExpert(now.number, now.job_id, query_of(series))
    return Evaluate(now.number, now.artefact, series.invalid_answers)


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
