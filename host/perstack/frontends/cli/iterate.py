"""`perstack iterate`."""

from __future__ import annotations

import sys
from math import isfinite

import click

from perstack.core.iterations.state import SeriesState
from perstack.errors import UsageError
from perstack.frontends.cli.drive import until_done
from perstack.frontends.cli.given import given_query
from perstack.frontends.cli.options import Setup, driving_options, total_options
from perstack.frontends.cli.output import Showing, showing_options
from perstack.frontends.cli.series import SeriesLines, say_series
from perstack.frontends.shared.stopping import INTERRUPTED


@click.command("iterate")
@click.argument("expert")
@click.argument("query", required=False)
@click.option("--max-iterations", type=click.IntRange(min=1), metavar="N", help="Most iterations.")
@click.option("--target", type=float, metavar="X", help="Good enough, in place of what perstack.toml says.")
@total_options
@click.option("--id", "series_id", metavar="ID", help="What to call these iterations: up to 100 of A-Z a-z 0-9 _ -")
@showing_options
@driving_options
def iterate_command(
    expert: str,
    query: str | None,
    max_iterations: int | None,
    target: float | None,
    total_cost: float | None,
    total_tokens: int | None,
    series_id: str | None,
    showing: Showing,
    setup: Setup,
) -> None:
    """Run EXPERT on QUERY, measure its result, and run it again with that, until it is good enough.

    In a pipe, events are JSON, one a line. QUERY `-`, or none, is read from stdin.
    """
    check_target(target)
    said = given_query(query)
    host = setup.host()
    lines = SeriesLines(showing)

    async def work() -> SeriesState:
        begun = await host.iterations.begin(
            expert,
            said,
            series_id=series_id,
            max_iterations=max_iterations,
            target=target,
            max_cost=total_cost,
            max_tokens=total_tokens,
            on_event=lines.on_event,
            on_fact=lines.on_fact,
        )
        return await lines.approved(host, begun)

    series = until_done(host, work, lambda: lines.state(host), lines.on_event)
    sys.exit(INTERRUPTED if series is None else say_series(series, lines.on_event))


def check_target(target: float | None) -> None:
    """Raises UsageError for `nan` and `inf`, which click takes for numbers."""
    if target is not None and not isfinite(target):
        raise UsageError(f"--target {target}: use a finite number")
