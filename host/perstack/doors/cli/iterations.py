"""`perstack report`."""

from __future__ import annotations

import asyncio
import json

import click

from perstack.core.iterations.state import Iteration, SeriesState
from perstack.core.iterations.summary import summary_of_series
from perstack.errors import NotFound, UsageError
from perstack.frontends.cli.options import PlaceOptions, place_options
from perstack.frontends.cli.series import SERIES_COLOURS, chart
from perstack.frontends.cli.terminal import Screen, data, out, table
from perstack.frontends.shared.words import cost, count, duration


@click.command("report")
@click.argument("series_id", metavar="ID")
@click.option("--iteration", type=click.IntRange(min=1), metavar="N", help="This iteration, in place of the best.")
@click.option("--json", "as_json", is_flag=True, help="All of it as one JSON object.")
@place_options
def report_command(
    series_id: str, iteration: int | None, as_json: bool, config: str | None, workspace: str | None, storage: str | None
) -> None:
    """Show the best result of the iterations ID, how it was measured, and how the others did."""
    place = PlaceOptions(config, workspace, storage)

    async def look() -> SeriesState:
        async with place.reader() as host:
            return await host.iterations.get(await host.jobs.find(series_id, ("iterations",)))

    series = asyncio.run(look())
    shown = _chosen(series, iteration)
    if as_json:
        data(json.dumps(_document(series, shown), ensure_ascii=False))
        return
    _print(Screen.of_stdout(), series, shown)


def _chosen(series: SeriesState, number: int | None) -> Iteration:
    if number is not None and number > len(series.iterations):
        raise NotFound(f"{series.id} has {count(len(series.iterations), 'iteration')}, and no {number}")
    found = series.best if number is None else series.iterations[number - 1]
    if found is None:
        stands = f"it is {series.status}" + (f": {series.message}" if series.message else "")
        raise UsageError(f"{series.id} has no iteration that was measured; {stands}")
    return found


def _document(series: SeriesState, shown: Iteration) -> dict[str, object]:
    summary: dict[str, object] = json.loads(summary_of_series(series).to_json())
    scores = [{"number": one.number, "score": one.score, "metrics": one.metrics} for one in series.done]
    return {**summary, "scores": scores, "iteration": json.loads(shown.to_json())}


def _print(screen: Screen, series: SeriesState, shown: Iteration) -> None:
    status = screen.paint(series.status, fg=SERIES_COLOURS[series.status], bold=True)
    out(screen.paint(series.id, bold=True), f"  {series.expert_key}  ", status)
    _row(screen, "query", series.user_input)
    if series.message:
        _row(screen, "why", series.message)
    scores = [one.score for one in series.done if one.score is not None]
    if scores:
        _row(screen, "chart", f"{chart(scores)}  {scores[0]:g} → {scores[-1]:g}")
    out()
    table(
        screen,
        ("iteration", "score", "failed", "regressions", "tokens", "cost", "took"),
        _rows(series),
        right=(1, 2, 3, 4, 5, 6),
    )
    out()
    best = " (the best)" if shown.number == series.best_iteration else ""
    out(screen.paint(f"iteration {shown.number}{best}", bold=True))
    _row(screen, "Job", shown.job_id)
    _row(screen, "metrics", ", ".join(f"{name} {value:g}" for name, value in shown.metrics.items()) or "none yet")
    for name, cases in (("failed", shown.failed), ("regressed", shown.regressions)):
        if cases:
            _row(screen, name, ", ".join(cases))
    if shown.analysis:
        out("\n", shown.analysis)
    if shown.artefact is not None:
        out("\n", shown.artefact)


def _rows(series: SeriesState) -> list[tuple[str, ...]]:
    return [
        (
            f"{one.number}{' *' if one.number == series.best_iteration else ''}",
            "-" if one.score is None else f"{one.score:g}",
            str(len(one.failed)),
            str(len(one.regressions)),
            f"{one.usage.total_tokens:,}",
            cost(one.usage, one.usage.unpriced_tokens).removeprefix("cost ") or "-",
            duration(one.duration),
        )
        for one in series.iterations
    ]


def _row(screen: Screen, name: str, text: str) -> None:
    out("  ", screen.paint(f"{name:<9}", dim=True), "  ", screen.fit(text, 13))
