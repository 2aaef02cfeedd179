"""What of the metrics is compared, and which score is better."""

from __future__ import annotations

from collections.abc import Mapping

from perstack.core.definitions import Iterate
from perstack.errors import UsageError


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
