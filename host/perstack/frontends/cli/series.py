"""Driving iterations from a terminal, and the words in which they are told."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import assert_never

from perstack.core.iterations.events import FinishIteration, StoredSeriesEvent
from perstack.core.iterations.state import SeriesState, SeriesStatus
from perstack.frontends.cli.asking import answered_in_series
from perstack.frontends.cli.drive import EXIT_STATUS
from perstack.frontends.cli.next_steps import said
from perstack.frontends.cli.output import Output, Showing
from perstack.frontends.cli.terminal import err
from perstack.frontends.shared.following import after_series
from perstack.frontends.shared.stopping import INTERRUPTED
from perstack.frontends.shared.words import count, duration
from perstack.host import Host

SERIES_COLOURS: dict[SeriesStatus, str] = {
    "running": "cyan",
    "paused": "yellow",
    "completed": "green",
    "failed": "red",
}

_BARS = "▁▂▃▄▅▆▇█"


class SeriesLines:
    """Shows the facts of a series and the events of its Jobs."""

    def __init__(self, showing: Showing) -> None:
        self.on_event = Output(showing)
        self.series_id: str | None = None

    def on_fact(self, fact: StoredSeriesEvent, series: SeriesState, line: bytes) -> None:
        self.series_id = fact.series_id
        self.on_event.write(line)
        if isinstance(fact, FinishIteration):
            self.on_event.remark(_measured(series))

    async def approved(self, host: Host, series: SeriesState) -> SeriesState:
        """Where it stands when the person at the terminal, if there is one, has been asked what it waits for."""

        def resume(series_id: str) -> Awaitable[SeriesState]:
            return host.iterations.resume(series_id, on_event=self.on_event, on_fact=self.on_fact)

        return await answered_in_series(host, series, self.on_event, resume)

    async def state(self, host: Host) -> SeriesState | None:
        """Where the series stands whose facts were written; None if none were."""
        return await host.iterations.get(self.series_id) if self.series_id is not None else None


def say_series(series: SeriesState, lines: Output) -> int:
    """The best, and a line for a person: how it stands, and what to do next. Returns the exit status."""
    did = count(len(series.done), "iteration")
    best = series.best
    if best is not None:
        if series.status == "completed":
            lines.result(best.artefact)
        did += f", the best is {best.number} with {best.score:g}"
    steps = "; ".join(map(said, after_series(series)))
    text = {
        "completed": f"completed: {did}; {_why_completed(series)}; perstack report {series.id}",
        "failed": f"failed after {did}: {series.message}; {steps}"
        " (--definition current, if you have edited the Expert)",
        "paused": f"paused after {did}: {series.message}; {steps}",
        "running": f"is still running: {did}",
    }[series.status]
    if series.status == "failed" or (lines.form == "text" and series.status != "completed"):
        err(f"{series.expert_key} {text}")
    else:
        lines.remark(f"{series.expert_key} {text}")
    return _exit_status(series)


def _exit_status(series: SeriesState) -> int:
    match series.status:
        case "completed":
            return 0
        case "paused":
            return EXIT_STATUS[series.job_status] if series.job_status is not None else INTERRUPTED
        case "failed" | "running":
            return 1
        case _:
            assert_never(series.status)


def _why_completed(series: SeriesState) -> str:
    settings = series.settings
    if series.finish_reason == "targetReached":
        return "the target is reached"
    if settings.target is None:
        return "none is left"
    return f"none is left, and the target {settings.target:g} is not reached"


def _measured(series: SeriesState) -> str:
    last = series.iterations[-1]
    parts = [", ".join(f"{name} {value:g}" for name, value in last.metrics.items())]
    if last.failed:
        parts.append(f"{count(len(last.failed), 'case')} failed")
    if last.regressions:
        parts.append(count(len(last.regressions), "regression"))
    if series.best_iteration == last.number:
        parts.append("the best so far")
    took = duration(last.duration)
    return f"iteration {last.number} of {series.settings.max_iterations}: {', '.join(parts)} ({took})"


def chart(scores: Sequence[float]) -> str:
    """The scores as a row of bars, the lowest of them lowest."""
    low, high = min(scores), max(scores)
    if high == low:
        return _BARS[len(_BARS) // 2] * len(scores)
    # halved, so that the difference of two huge numbers is still a number
    span = high / 2 - low / 2
    return "".join(_BARS[round((score / 2 - low / 2) / span * (len(_BARS) - 1))] for score in scores)
