"""The commands `perstack iterate`, `iterations` and `report`, and the driving of iterations."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Sequence
from math import isfinite
from typing import assert_never

import click

from perstack.core.base.text import count, duration
from perstack.core.base.usage import cost_text
from perstack.doors.cli.driving import drive_series_and_ask, open_attended_host, run_interruptible, status_of_output
from perstack.doors.cli.exit_statuses import EXIT_STATUS, TRY_LATER
from perstack.doors.cli.options import (
    GroupedCommand,
    HostOptions,
    driving_options,
    json_option,
    place_options,
    take_option,
    total_options,
)
from perstack.doors.cli.output import JobOutput, OutputOptions, output_options
from perstack.doors.cli.param_types import read_query
from perstack.doors.cli.terminal import print_err, print_out, table, write_json, write_json_line
from perstack.doors.shared.next_step_phrases import cli_phrase
from perstack.doors.shared.screen import Screen
from perstack.doors.shared.signals import INTERRUPTED
from perstack.doors.shared.status_phrases import next_steps_of_series
from perstack.doors.shared.text import age_text
from perstack.errors import NotFound, UsageError
from perstack.host import Host
from perstack.iterations.evolve import SeriesSummary, summary_of_series
from perstack.iterations.series_driver import SeriesPage
from perstack.iterations.state import FinishIteration, Iteration, SeriesState, SeriesStatus, StoredSeriesEvent
from perstack.system.clock import SYSTEM

# perstack iterations


@click.command("iterations")
@json_option("Print each summary as a line of JSON.")
@take_option(20, "Maximum number; the newest first.")
@place_options
def iterations_command(as_json: bool, take: int, options: HostOptions) -> None:
    """List series of iterations, the most recently written first."""
    page = options.look(lambda host: host.iterations.list(limit=take))
    if as_json:
        for summary in page.series:
            write_json_line(summary.to_json())
    elif not page.series:
        print_out("no iterations yet; start some with: perstack iterate EXPERT QUERY")
    else:
        _print_list(page)


def _print_list(page: SeriesPage) -> None:
    screen, now = Screen.of_stdout(), SYSTEM.now()
    rows = [
        (
            series_summary.id,
            "damaged" if series_summary.damaged else series_summary.status,
            series_summary.expert_key or "?",
            f"{series_summary.done}/{series_summary.max_iterations}",
            _best_score(series_summary),
            _age(series_summary.started_at, now),
            _age(series_summary.updated_at, now),
            series_summary.user_input if series_summary.message is None else series_summary.message,
        )
        for series_summary in page.series
    ]
    headings = ("id", "status", "Expert", "done", "best", "began", "when", "query")
    table(screen, headings, rows, right=(3,), drops=(5, 6, 3, 2, 4, 1))
    if page.next is not None:
        print_out(screen.styled("there are more: see them with --take N", dim=True))


def _age(moment: int, now: int) -> str:
    return age_text(moment, now) if moment else "?"


def _best_score(series_summary: SeriesSummary) -> str:
    if series_summary.best_score is None:
        return "-"
    names = (
        series_summary.metric
        if isinstance(series_summary.metric, str)
        else f"worst of {', '.join(series_summary.metric)}"
    )
    return f"{names} {series_summary.best_score:g}" + (
        f" of {series_summary.target:g}" if series_summary.target is not None else ""
    )


SERIES_COLOURS: dict[SeriesStatus, str] = {"running": "cyan", "paused": "yellow", "completed": "green", "failed": "red"}

_BARS = "▁▂▃▄▅▆▇█"


class SeriesOutput:
    """The output of driven iterations: their own events and those of their Jobs."""

    def __init__(self, output_options: OutputOptions) -> None:
        self.on_event = JobOutput(output_options)
        self.series_id: str | None = None

    def on_fact(self, fact: StoredSeriesEvent, series: SeriesState, line: bytes) -> None:
        """Show an event of the iterations, and the score of each measured iteration."""
        self.series_id = fact.series_id
        self.on_event.write(line)
        if isinstance(fact, FinishIteration):
            self.on_event.remark(_score_line(series))

    async def ask_open_questions(self, host: Host, series: SeriesState) -> SeriesState:
        """Ask the iterations' open questions at the terminal, if there is one, and return their state afterwards."""

        def resume(series_id: str) -> Awaitable[SeriesState]:
            return host.iterations.resume(series_id, on_event=self.on_event, on_fact=self.on_fact)

        return await drive_series_and_ask(host, series, self.on_event, resume)

    async def state(self, host: Host) -> SeriesState | None:
        """Return the state of the iterations whose events were shown; None if none were."""
        return await host.iterations.get(self.series_id) if self.series_id is not None else None


def report_series(series: SeriesState, output: JobOutput) -> int:
    """Show the best result and a line with the outcome and next step, and return the exit status."""
    was_lost = output.lost is not None
    progress = count(len(series.done), "iteration")
    best_iteration = series.best
    if best_iteration is not None:
        if series.status == "completed":
            output.result(best_iteration.job_id, best_iteration.artefact)
        progress += f", the best is iteration {best_iteration.number} with {best_iteration.score:g}"
    step_texts = "; ".join(map(cli_phrase, next_steps_of_series(series)))
    pause_words = "is waiting" if series.job_status == "stoppedByInteractiveTool" else "paused"
    text = {
        "completed": f"completed: {progress}; {_completion_reason(series)}; perstack report {series.id}",
        "failed": f"failed after {progress}: {series.message}; {step_texts}"
        " (--definition current, if you have edited the Expert)",
        "paused": f"{pause_words} after {progress}: {series.message}; {step_texts}",
        "running": f"is still running: {progress}",
    }[series.status]
    if series.status == "failed" or (output.form == "text" and series.status != "completed"):
        print_err(f"{series.expert_key} {text}")
    else:
        output.remark(f"{series.expert_key} {text}")
    return status_of_output(output, _exit_status(series), f"perstack report {series.id}", was_lost=was_lost)


def _exit_status(series: SeriesState) -> int:
    match series.status:
        case "completed":
            return 0
        case "paused" if series.pause_reason == "rate_limit":
            return TRY_LATER
        case "paused":
            return EXIT_STATUS[series.job_status] if series.job_status is not None else INTERRUPTED
        case "failed" | "running":
            return 1
        case _:
            assert_never(series.status)


def _completion_reason(series: SeriesState) -> str:
    settings = series.settings
    if series.finish_reason == "targetReached":
        return "the target is reached"
    if settings.target is None:
        return "no iteration is left"
    return f"no iteration is left, and the target {settings.target:g} is not reached"


def _score_line(series: SeriesState) -> str:
    iteration = series.iterations[-1]
    parts = [", ".join(f"{name} {value:g}" for name, value in iteration.metrics.items())]
    if iteration.failed:
        parts.append(f"{count(len(iteration.failed), 'case')} failed")
    if iteration.regressions:
        parts.append(count(len(iteration.regressions), "regression"))
    if series.best_iteration == iteration.number:
        parts.append("the best so far")
    duration_text = duration(iteration.duration)
    return f"iteration {iteration.number} of {series.settings.max_iterations}: {', '.join(parts)} ({duration_text})"


def chart(scores: Sequence[float]) -> str:
    """Return the scores as a row of bars, the lowest score lowest."""
    low, high = min(scores), max(scores)
    if high == low:
        return _BARS[len(_BARS) // 2] * len(scores)
    # halved, so that the difference of two huge numbers does not overflow
    span = high / 2 - low / 2
    return "".join(_BARS[round((score / 2 - low / 2) / span * (len(_BARS) - 1))] for score in scores)


# perstack iterate


@click.command("iterate", cls=GroupedCommand)
@click.argument("expert")
@click.argument("query", required=False)
@click.option("--max-iterations", type=click.IntRange(min=1), metavar="N", help="Maximum iterations.")
@click.option("--target", type=float, metavar="X", help="The target score; overrides perstack.toml.")
@total_options
@click.option(
    "--id", "series_id", metavar="ID", help=("The id of the iterations: up to 100 characters of A-Z a-z 0-9 _ -")
)
@output_options
@driving_options
def iterate_command(
    expert: str,
    query: str | None,
    max_iterations: int | None,
    target: float | None,
    total_cost: float | None,
    total_tokens: int | None,
    series_id: str | None,
    output_options: OutputOptions,
    options: HostOptions,
) -> None:
    """Run EXPERT on QUERY repeatedly, with the measurements of its results, until one is good enough.

    In a pipe, print events as lines of JSON. QUERY `-`, or no QUERY, reads from stdin.
    """
    check_target(target)
    query_text = read_query(query)
    host = open_attended_host(options, output_options)
    lines = SeriesOutput(output_options)

    async def begin_series() -> SeriesState:
        series = await host.iterations.begin(
            expert,
            query_text,
            series_id=series_id,
            max_iterations=max_iterations,
            target=target,
            max_cost=total_cost,
            max_tokens=total_tokens,
            on_event=lines.on_event,
            on_fact=lines.on_fact,
        )
        return await lines.ask_open_questions(host, series)

    series = run_interruptible(host, begin_series, lambda: lines.state(host), lines.on_event)
    sys.exit(INTERRUPTED if series is None else report_series(series, lines.on_event))


def check_target(target: float | None) -> None:
    """Raise UsageError for `nan` and `inf`, which click accepts as numbers."""
    if target is not None and not isfinite(target):
        raise UsageError(f"--target {target}: use a finite number")


# perstack report


@click.command("report")
@click.argument("series_id", metavar="ID")
@click.option("--iteration", type=click.IntRange(min=1), metavar="N", help=("Show this iteration instead of the best."))
@json_option("Print a JSON object.")
@place_options
def report_command(series_id: str, iteration: int | None, as_json: bool, options: HostOptions) -> None:
    """Show the best result of the iterations ID, its measurement, and the scores of the other iterations."""

    async def look(host: Host) -> SeriesState:
        return await host.iterations.get(await host.jobs.complete_id(series_id, ("iterations",)))

    series = options.look(look)
    chosen = _select_iteration(series, iteration)
    if as_json:
        write_json(_document(series, chosen))
        return
    _print(Screen.of_stdout(), series, chosen)


def _select_iteration(series: SeriesState, number: int | None) -> Iteration:
    if number is not None and number > len(series.iterations):
        raise NotFound(f"{series.id} has {count(len(series.iterations), 'iteration')}: there is no iteration {number}")
    iteration = series.best if number is None else series.iterations[number - 1]
    if iteration is None:
        reason = f"it is {series.status}" + (f": {series.message}" if series.message else "")
        raise UsageError(f"{series.id} has no measured iteration; {reason}")
    return iteration


def _document(series: SeriesState, iteration: Iteration) -> dict[str, object]:
    summary: dict[str, object] = json.loads(summary_of_series(series).to_json())
    scores = [{"number": done.number, "score": done.score, "metrics": done.metrics} for done in series.done]
    return {**summary, "scores": scores, "iteration": json.loads(iteration.to_json())}


def _print(screen: Screen, series: SeriesState, iteration: Iteration) -> None:
    status = screen.styled(series.status, fg=SERIES_COLOURS[series.status], bold=True)
    print_out(screen.styled(series.id, bold=True), f"  {series.expert_key}  ", status)
    _row(screen, "query", series.user_input)
    if series.message:
        _row(screen, "why", series.message)
    scores = [done.score for done in series.done if done.score is not None]
    if scores:
        _row(screen, "chart", f"{chart(scores)}  {scores[0]:g} → {scores[-1]:g}")
    print_out()
    table(
        screen,
        ("iteration", "score", "failed", "regressions", "tokens", "cost", "took"),
        _rows(series),
        right=(1, 2, 3, 4, 5, 6),
    )
    print_out()
    best = " (the best)" if iteration.number == series.best_iteration else ""
    print_out(screen.styled(f"iteration {iteration.number}{best}", bold=True))
    _row(screen, "Job", iteration.job_id)
    _row(screen, "metrics", ", ".join(f"{name} {value:g}" for name, value in iteration.metrics.items()) or "none yet")
    for name, cases in (("failed", iteration.failed), ("regressed", iteration.regressions)):
        if cases:
            _row(screen, name, ", ".join(cases))
    if iteration.analysis:
        print_out("\n", iteration.analysis)
    if iteration.artefact is not None:
        print_out("\n", iteration.artefact)


def _rows(series: SeriesState) -> list[tuple[str, ...]]:
    return [
        (
            f"{iteration.number}{' *' if iteration.number == series.best_iteration else ''}",
            "-" if iteration.score is None else f"{iteration.score:g}",
            str(len(iteration.failed)),
            str(len(iteration.regressions)),
            f"{iteration.usage.total_tokens:,}",
            cost_text(iteration.usage, iteration.usage.unpriced_tokens).removeprefix("cost ") or "-",
            duration(iteration.duration),
        )
        for iteration in series.iterations
    ]


def _row(screen: Screen, name: str, text: str) -> None:
    print_out("  ", screen.styled(f"{name:<9}", dim=True), "  ", screen.fit(text, 13))
