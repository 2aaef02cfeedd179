"""`perstack prune`."""

from __future__ import annotations

import asyncio

import click

from perstack.core.job import JobSummary
from perstack.core.job_choice import JobChoice, not_retained, removable
from perstack.core.labels import parse_labels
from perstack.core.statuses import TYPED_STATUS
from perstack.engine.clock import SYSTEM
from perstack.engine.pages import pages
from perstack.errors import UsageError
from perstack.frontends.cli.delete import remove
from perstack.frontends.cli.job_choice import kind_options
from perstack.frontends.cli.jobs import show_jobs
from perstack.frontends.cli.options import PlaceOptions, place_options
from perstack.frontends.cli.spans import read_span
from perstack.frontends.cli.terminal import Screen, data, out

_PAGE = 500


@click.command("prune")
@click.option("--older-than", metavar="TIME", help="Only Jobs not written to for so long, such as 30d.")
@click.option(
    "--keep-last", type=click.IntRange(min=0), metavar="N", help="Keep the newest N of each Expert, among all its Jobs."
)
@kind_options
@click.option("--include-waiting", is_flag=True, help="Also those that wait for an answer.")
@click.option("--dry-run", is_flag=True, help="Show which these are, and delete nothing.")
@click.option("--yes", is_flag=True, help="Delete them without asking.")
@click.option(
    "--json", "as_json", is_flag=True, help="As `delete` has it; with --dry-run each Job's summary, one a line."
)
@place_options
def prune_command(
    older_than: str | None,
    keep_last: int | None,
    status: tuple[str, ...],
    expert: tuple[str, ...],
    label: tuple[str, ...],
    include_waiting: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    config: str | None,
    workspace: str | None,
    storage: str | None,
) -> None:
    """Remove all Jobs for good that all of these conditions fit; if none is given, those that `[retention]` names.

    A Job that is running is never removed, nor one whose logs are damaged. On a terminal you are asked first; elsewhere
    --yes is needed.
    """
    span, now = read_span(older_than, "--older-than"), SYSTEM.now()
    before = None if span is None else now - span
    choice = JobChoice.of((TYPED_STATUS[one] for one in status), expert, parse_labels(label), before=before)
    place = PlaceOptions(config, workspace, storage)
    if choice != JobChoice() or keep_last is not None:
        jobs = removable(asyncio.run(_all(place)), choice, keep_last=keep_last or 0, include_waiting=include_waiting)
    else:
        retention = place.project(required=False).retention
        if retention is None or include_waiting:
            raise UsageError("say which Jobs are meant, such as --older-than 30d or --keep-last 10, or [retention]")
        jobs = not_retained(asyncio.run(_all(place)), retention, now)
    if not dry_run:
        remove(place, jobs, is_sure=yes, as_json=as_json)
    elif as_json:
        for job in jobs:
            data(job.to_json())
    elif jobs:
        show_jobs(Screen.of_stdout(), jobs)
    else:
        out("no such Jobs")


async def _all(place: PlaceOptions) -> list[JobSummary]:
    async with place.reader() as host:
        return [
            job async for page in pages(lambda after: host.jobs.list(limit=_PAGE, after=after)) for job in page.jobs
        ]
