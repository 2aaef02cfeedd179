"""What a worker says of itself, for people and for programs. Nothing in it is secret."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Literal

from pydantic import JsonValue

from perstack.core.iterations.state import SeriesState
from perstack.core.job import JobSummary, RunSummary
from perstack.core.plain import one_line
from perstack.core.secret_text import masked_error
from perstack.core.serving import Again, Came, Done, Served
from perstack.dataclass import dataclass
from perstack.engine.workers.outcome import Outcome
from perstack.ports.dispatcher import Claim, Order

_LONGEST = 500
"""Characters of an error."""

Level = Literal["info", "warning", "error"]
Kind = Literal[
    "ready",
    "taken",
    "ended",
    "again",
    "refused",
    "lost",
    "poison",
    "failed",
    "looked-after",
    "unreachable",
    "reachable",
    "draining",
    "stopped",
    "strange",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """One thing that happened to a worker."""

    event: Kind
    text: str
    """A line for a person, without the Job's id."""
    level: Level = "info"
    job: str | None = None
    facts: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """The same for programs."""


_WHY_AGAIN: dict[Came, tuple[Kind, Level, str]] = {
    "stopped": ("again", "info", "waits, and is queued for later"),
    "left": ("again", "info", "left for another worker"),
    "busy": ("again", "info", "queued again"),
    "unreachable": ("again", "warning", "queued again"),
    "missing": ("refused", "warning", "waits for another worker"),
    "newer": ("refused", "warning", "waits for a worker of a newer version"),
    "unable": ("refused", "warning", "cannot be driven here, and waits for another worker"),
}

Tell = Callable[[News], None]


def error_text(error: BaseException | str) -> str:
    """An error as a worker says it: one line, and nothing secret."""
    text = one_line(masked_error(str(error))) or type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def news_of_taken(claim: Claim, served: Served) -> News:
    """That a Job, or iterations, are driven from now on."""
    over = " over from a worker that fell silent" if claim.is_taken_over else ""
    run = _run_of(claim.order, served)
    expert = served.expert_key if run is None else run.expert_key
    facts: dict[str, JsonValue] = {"expert": expert}
    of = _of_run(claim.order, facts)
    if claim.is_taken_over:
        facts["takeovers"] = claim.order.takeovers
    kind = "iterations of " if isinstance(served, SeriesState) else ""
    return News(event="taken", job=served.id, text=f"{of}taken{over} ({kind}{expert})", facts=facts)


def news_of(order: Order, outcome: Outcome, after: Done | Again) -> News:
    """What came of an order."""
    event, level, text = _said(order, outcome, isinstance(after, Again))
    facts: dict[str, JsonValue] = {"came": outcome.came}
    text = _of_run(order, facts) + text
    served, run = outcome.served, _run_of(order, outcome.served)
    if served is not None:
        facts |= {"status": served.status, "expert": served.expert_key}
        if not isinstance(served, SeriesState):
            facts["steps"] = served.total_steps
    if run is not None:
        facts |= {"status": run.status, "expert": run.expert_key, "steps": run.steps}
    if outcome.seconds is not None:
        facts["seconds"] = round(outcome.seconds, 3)
        text = f"{text} after {outcome.seconds:.1f} s"
    error = _wrong(served) or outcome.error
    if error is not None:
        facts["error"] = error_text(error)
        text = f"{text}: {facts['error']}"
    return News(event=event, job=order.job_id, text=text, level=level, facts=facts)


def _run_of(order: Order, served: Served | None) -> RunSummary | None:
    """The delegate that an order is for, as far as the Job's summary knows it."""
    runs = served.runs if isinstance(served, JobSummary) else ()
    return next((run for run in runs if run.id == order.run_id), None)


def _of_run(order: Order, facts: dict[str, JsonValue]) -> str:
    """What precedes the words about a delegate that is driven apart from its Job."""
    if order.run_id is None:
        return ""
    facts["run"] = order.run_id
    return f"delegate {order.run_id} "


def _wrong(served: Served | None) -> str | None:
    """What a Job, or iterations, failed by."""
    if isinstance(served, SeriesState):
        return served.message if served.status == "failed" else None
    return None if served is None else served.error


def _said(order: Order, outcome: Outcome, is_again: bool) -> tuple[Kind, Level, str]:
    served = outcome.served
    if outcome.is_poison:
        return "poison", "error", f"stopped: {order.takeovers} workers in a row ended or fell silent"
    if outcome.came == "lost":
        return "lost", "warning", "another worker has taken it over"
    if is_again and outcome.came in _WHY_AGAIN:
        return _WHY_AGAIN[outcome.came]
    if outcome.came == "deleted":
        return "ended", "warning", "its order is removed" if outcome.seconds is None else "stopped"
    if served is None:
        return "ended", "error", "cannot be driven by anybody"
    run = _run_of(order, served)
    if run is not None:
        return "ended", "warning" if run.status == "stoppedByError" else "info", run.status
    status = "cancelled" if outcome.came == "cancelled" else f"{served.status}"
    return "ended", "warning" if _wrong(served) else "info", status
