"""`perstack iterations`."""

from __future__ import annotations

import asyncio

import click

from perstack.core.iterations.summary import SeriesSummary
from perstack.engine.clock import SYSTEM
from perstack.engine.logs.series import SeriesPage
from perstack.frontends.cli.options import PlaceOptions, place_options
from perstack.frontends.cli.terminal import Screen, data, out, table
from perstack.frontends.shared.words import ago


@click.command("iterations")
@click.option("--json", "as_json", is_flag=True, help="Each one's whole summary as JSON, one a line.")
@click.option(
    "--take", type=click.IntRange(min=1), metavar="N", default=20, show_default=True, help="How many, the newest."
)
@place_options
def iterations_command(
    as_json: bool, take: int, config: str | None, workspace: str | None, storage: str | None
) -> None:
    """List what was iterated, the one written to last first."""
    place = PlaceOptions(config, workspace, storage)

    async def look() -> SeriesPage:
        async with place.reader() as host:
            return await host.iterations.list(limit=take)

    page = asyncio.run(look())
    if as_json:
        for one in page.series:
            data(one.to_json())
    elif not page.series:
        out("no iterations yet; start some with: perstack iterate EXPERT QUERY")
    else:
        _print(page)


def _print(page: SeriesPage) -> None:
    screen, now = Screen.of_stdout(), SYSTEM.now()
    rows = [
        (
            one.id,
            "damaged" if one.damaged else one.status,
            one.expert_key or "?",
            f"{one.done}/{one.max_iterations}",
            _best(one),
            _when(one.started_at, now),
            _when(one.updated_at, now),
            one.user_input if one.message is None else one.message,
        )
        for one in page.series
    ]
    headings = ("id", "status", "Expert", "done", "best", "began", "when", "query")
    table(screen, headings, rows, right=(3,), drops=(5, 6, 3, 2, 4, 1))
    if page.next is not None:
        out(screen.paint("there are more: see them with --take N", dim=True))


def _when(moment: int, now: int) -> str:
    return ago(moment, now) if moment else "?"


def _best(one: SeriesSummary) -> str:
    if one.best_score is None:
        return "-"
    names = one.metric if isinstance(one.metric, str) else f"worst of {', '.join(one.metric)}"
    return f"{names} {one.best_score:g}" + (f" of {one.target:g}" if one.target is not None else "")
