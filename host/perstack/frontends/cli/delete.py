"""`perstack delete`, and how Jobs are removed that were chosen."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence

import click

from perstack.core.job import JobSummary
from perstack.core.plain import one_line
from perstack.errors import UsageError
from perstack.frontends.cli.confirm import confirm
from perstack.frontends.cli.jobs import show_jobs
from perstack.frontends.cli.options import PlaceOptions, place_options
from perstack.frontends.cli.terminal import Screen, data, err, out
from perstack.frontends.shared.words import count
from perstack.host import Host

_SHOWN = 10


@click.command("delete")
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Delete them without asking.")
@click.option("--json", "as_json", is_flag=True, help="What was deleted and what was kept, as one JSON object.")
@place_options
def delete_command(
    jobs: tuple[str, ...], yes: bool, as_json: bool, config: str | None, workspace: str | None, storage: str | None
) -> None:
    """Remove JOBs for good, with their logs, checkpoints and blobs.

    On a terminal you are asked first; elsewhere --yes is needed. A Job that is driven is kept, and the exit status is
    1. An anchor gets the last heads of what was deleted, as those of something removed.
    """
    place = PlaceOptions(config, workspace, storage)

    async def look() -> list[JobSummary]:
        async with place.reader() as host:
            ids = dict.fromkeys([await host.jobs.find(job) for job in jobs])
            return [await host.job(job) for job in ids]

    remove(place, asyncio.run(look()), is_sure=yes, as_json=as_json)


def remove(place: PlaceOptions, jobs: Sequence[JobSummary], *, is_sure: bool, as_json: bool) -> None:
    """Remove those that were chosen, say so, and end with the exit status. Raises UsageError if nobody agrees."""
    if jobs and not is_sure:
        _ask(jobs)
    deleted, kept = asyncio.run(_removed(place.writer(), jobs))
    if as_json:
        data(json.dumps({"deleted": deleted, "kept": kept}, ensure_ascii=False))
    else:
        out(f"deleted {count(len(deleted), 'Job')}" if jobs else "no such Jobs")
        for why in kept.values():
            err(one_line(f"kept: {why}"))
    sys.exit(1 if kept else 0)


async def _removed(host: Host, jobs: Sequence[JobSummary]) -> tuple[list[str], dict[str, str]]:
    """The ids of those that are removed now, and why each other is not."""
    deleted: list[str] = []
    kept: dict[str, str] = {}
    async with host:
        async for job_id, why in host.jobs.delete_each(job.id for job in jobs):
            if why is None:
                deleted.append(job_id)
            else:
                kept[job_id] = why
    return deleted, kept


def _ask(jobs: Sequence[JobSummary]) -> None:
    """Go on if a person says yes; end otherwise. Raises UsageError if there is nobody to ask."""
    them = count(len(jobs), "Job")
    if not sys.stdin.isatty():
        raise UsageError(
            f"{them} would be deleted for good: see which with --dry-run or `perstack jobs`, and add --yes"
        )
    show_jobs(Screen.of_stdout(), jobs[:_SHOWN])
    if len(jobs) > _SHOWN:
        out(f"… and {len(jobs) - _SHOWN} more")
    if not confirm(f"Delete {them} for good?"):
        out("nothing is deleted")
        sys.exit(1)
