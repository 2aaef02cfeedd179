"""`perstack cost`."""

from __future__ import annotations

import asyncio
import json

import click

from perstack.core.job import JobSummary
from perstack.core.spending import By, Spent, spent_by
from perstack.frontends.cli.moments import moment
from perstack.frontends.cli.options import PlaceOptions, place_options
from perstack.frontends.cli.terminal import Screen, data, out, table
from perstack.frontends.shared.words import cost, local_time

_BY: dict[str, By] = {"expert": "expert", "model": "model", "day": "day", "label": "label"}


@click.command("cost")
@click.option(
    "--by", type=click.Choice(tuple(_BY)), default="expert", show_default=True, help="What is added up for each."
)
@click.option("--since", metavar="WHEN", help="Only Runs begun since: a date, 2026-11-30, or a time ago: 7d, 24h, 30m.")
@click.option("--json", "as_json", is_flag=True, help="All of it as one JSON object.")
@place_options
def cost_command(
    by: str, since: str | None, as_json: bool, config: str | None, workspace: str | None, storage: str | None
) -> None:
    """Add up what all Jobs have spent.

    A cost is that of the tokens whose price was known when they were used. Where none was known it is `unknown`, and
    where some were not it is what was spent at least.
    """
    start = 0 if since is None else moment(since)
    place = PlaceOptions(config, workspace, storage)

    async def look() -> list[JobSummary]:
        async with place.reader() as host:
            found: list[JobSummary] = []
            after: str | None = None
            while True:
                page = await host.jobs(limit=100, after=after)
                found.extend(page.jobs)
                after = page.next
                if after is None:
                    return found

    rows, total = spent_by(asyncio.run(look()), _BY[by], since=start, day_of=lambda at: f"{local_time(at):%Y-%m-%d}")
    if as_json:
        shown = {"by": by, "since": start, "rows": [one.to_json() for one in rows], "total": total.to_json()}
        data(json.dumps(shown, ensure_ascii=False))
    elif not rows:
        out("nothing was spent" + ("" if since is None else f" since {local_time(start):%Y-%m-%d %H:%M}"))
    else:
        _print(by, rows, total)


def _print(by: str, rows: list[Spent], total: Spent) -> None:
    # the labels of one Job are several rows, and add up to more than the total
    cells = [
        (one.key, f"{one.runs:,}", f"{one.usage.input_tokens:,}", f"{one.usage.output_tokens:,}", _cost(one))
        for one in (*rows, total)
    ]
    table(Screen.of_stdout(), (by, "Runs", "sent", "generated", "cost"), cells, right=(1, 2, 3, 4))


def _cost(one: Spent) -> str:
    return cost(one.usage, one.unpriced_tokens) or "$0"
