"""`perstack du`."""

from __future__ import annotations

import asyncio
import json
from typing import get_args

import click

from perstack.core.owners import OwnerKind
from perstack.engine.disk_usage import DiskUsage
from perstack.frontends.cli.options import PlaceOptions, place_options
from perstack.frontends.cli.terminal import Screen, data, out, table
from perstack.frontends.shared.words import count, size
from perstack.ports.storage import JobSize

_PAGE = 20


@click.command("du")
@click.argument("jobs", metavar="[JOB...]", nargs=-1)
@click.option(
    "--take", type=click.IntRange(min=1), metavar="N", default=_PAGE, show_default=True, help="How many, the largest."
)
@click.option("--all", "everything", is_flag=True, help="All of them, in place of --take.")
@click.option("--json", "as_json", is_flag=True, help="All of it as one JSON object, in bytes.")
@place_options
def du_command(
    jobs: tuple[str, ...],
    take: int,
    everything: bool,
    as_json: bool,
    config: str | None,
    workspace: str | None,
    storage: str | None,
) -> None:
    """Show how much room Jobs, tasks and iterations take, the largest first, or only JOBs.

    Files of snapshots that several Jobs have count for each of them, and are stored once. The total is of all of them.
    The storage itself takes more: indexes, free pages, locks, files of all Jobs together.
    """
    place = PlaceOptions(config, workspace, storage)

    async def look() -> tuple[DiskUsage, str]:
        async with place.reader() as host:
            ids = [await host.jobs.find(one, get_args(OwnerKind)) for one in dict.fromkeys(jobs)]
            return await host.jobs.disk_usage(ids), host.storage.location

    usage, location = asyncio.run(look())
    if as_json:
        owners = [{"kind": owner.kind, "id": owner.id, **_in_bytes(one)} for owner, one in usage.owners]
        whole = {"storage": location, "bytes": usage.storage, "total": _in_bytes(usage.total), "owners": owners}
        data(json.dumps(whole, ensure_ascii=False))
        return
    shown = usage.owners if everything or jobs else usage.owners[:take]
    rows = [(owner.id, owner.kind, *_cells(one)) for owner, one in shown]
    headings = ("id", "kind", "logs", "blobs", "checkpoints", "caches", "total")
    table(
        Screen.of_stdout(),
        headings,
        [*rows, ("total", "", *_cells(usage.total))],
        right=(2, 3, 4, 5, 6),
        drops=(5, 4, 3, 1, 2),
    )
    if len(shown) < len(usage.owners):
        out(f"{count(len(usage.owners) - len(shown), 'smaller one')} not shown; see them with --all")
    out(f"{location}: {size(usage.storage)}")


def _cells(one: JobSize) -> tuple[str, ...]:
    return (*map(size, one), size(one.total))


def _in_bytes(one: JobSize) -> dict[str, int]:
    return {**one._asdict(), "total": one.total}
