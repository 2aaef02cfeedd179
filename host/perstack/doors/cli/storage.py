"""The commands `perstack storage` and `perstack du`."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from contextlib import aclosing
from dataclasses import asdict
from typing import get_args

import click

from perstack.audit.storage_admin import CopyResult, DiskUsage
from perstack.core.base.ids import OwnerKind
from perstack.core.base.text import count, one_line
from perstack.doors.cli.options import HostOptions, config_option, json_option, place_options, take_option
from perstack.doors.cli.param_types import SINCE
from perstack.doors.cli.terminal import print_err, print_out, table, write_json
from perstack.doors.shared.screen import Screen
from perstack.doors.shared.text import size
from perstack.host import Host
from perstack.ports.storage import JobSize

_PAGE_SIZE = 20


@click.command("du")
@click.argument("jobs", metavar="[JOB...]", nargs=-1)
@take_option(_PAGE_SIZE, "Maximum number; the largest first.")
@click.option("--all", "everything", is_flag=True, help="List all Jobs, regardless of --take.")
@json_option("Print sizes in bytes as a JSON object.")
@place_options
def du_command(jobs: tuple[str, ...], take: int, everything: bool, as_json: bool, options: HostOptions) -> None:
    """Show the disk usage of Jobs, tasks and iterations, the largest first, or only of JOBs.

    Snapshot files that several Jobs share are stored once and counted for each of them. The total covers all Jobs,
    tasks and iterations. The storage itself needs more: indexes, free pages, locks and shared files.
    """

    async def look(host: Host) -> tuple[DiskUsage, str]:
        ids = [await host.jobs.complete_id(owner_id, get_args(OwnerKind)) for owner_id in dict.fromkeys(jobs)]
        return await host.storage_admin.disk_usage(ids), host.storage.location

    usage, location = options.look(look)
    if as_json:
        owners = [{"kind": owner.kind, "id": owner.id, **_in_bytes(job_size)} for owner, job_size in usage.owners]
        document = {"storage": location, "bytes": usage.storage, "total": _in_bytes(usage.total), "owners": owners}
        write_json(document)
        return
    visible = usage.owners if everything or jobs else usage.owners[:take]
    rows = [(owner.id, owner.kind, *_cells(job_size)) for owner, job_size in visible]
    headings = ("id", "kind", "logs", "blobs", "checkpoints", "caches", "total")
    table(
        Screen.of_stdout(),
        headings,
        [*rows, ("total", "", *_cells(usage.total))],
        right=(2, 3, 4, 5, 6),
        drops=(5, 4, 3, 1, 2),
    )
    if len(visible) < len(usage.owners):
        print_out(f"{len(usage.owners) - len(visible):,} smaller not shown; see them with --all")
    print_out(f"{location}: {size(usage.storage)}")


def _cells(job_size: JobSize) -> tuple[str, ...]:
    return (*map(size, job_size), size(job_size.total))


def _in_bytes(job_size: JobSize) -> dict[str, int]:
    return {**job_size._asdict(), "total": job_size.total}


_STATE_WORDS = {"copied": "copied", "continued": "completed", "there": "was there", "left": "skipped"}


@click.group("storage")
def storage_command() -> None:
    """Check a storage, or copy Jobs from one storage to another."""


@storage_command.command("copy")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--job", "ids", metavar="ID", multiple=True, help="Only this Job, task or series; repeatable.")
@click.option(
    "--since",
    type=SINCE,
    metavar="WHEN",
    help=("Only Jobs, tasks and series with an event since a date, 2026-11-30, or in a period: 7d."),
)
@json_option("Print lines of JSON.")
@config_option
def copy_command(
    source: str, target: str, ids: tuple[str, ...], since: int | None, as_json: bool, config: str | None
) -> None:
    """Copy Jobs, tasks and iterations from the storage FROM to the storage TO, with unchanged ids and logs.

    Each log is checked when it is read and when it is written. Existing copies are completed: after an interrupted
    copy, repeat the command. A copy that was continued there, or is being driven, is skipped and reported, and the exit
    status is 1.
    """

    async def copy() -> Counter[str]:
        states: Counter[str] = Counter()
        async with (
            HostOptions(config, storage=source).reader() as host,
            HostOptions(config, storage=target).reader() as target_host,
            aclosing(host.storage_admin.copy_to(target_host.storage, ids, since)) as results,
        ):
            async for result in results:
                states[result.state] += 1
                _print(result, as_json=as_json)
        return states

    states = asyncio.run(copy())
    if not as_json:
        print_out(
            ", ".join(f"{_STATE_WORDS[state]}: {states[state]}" for state in _STATE_WORDS if states[state])
            or "there is nothing to copy"
        )
    sys.exit(int(bool(states["left"])))


@storage_command.command("check")
@click.argument("place", metavar="PLACE")
@json_option("Print lines of JSON.")
@config_option
def check_command(place: str, as_json: bool, config: str | None) -> None:
    """Check that the storage PLACE can be reached, with the necessary rights.

    Creates no Job. Exit status 1 if a check fails.
    """
    checks = HostOptions(config, storage=place).look(lambda host: host.storage_admin.check())
    for check in checks:
        if as_json:
            write_json(asdict(check))
    if not as_json:
        rows = [(check.about, "ok" if check.is_there else "problem", check.text) for check in checks]
        table(Screen.of_stdout(), ("what", "state", "here"), rows, whole=(0, 1))
        for check in checks:
            if not check.is_there:
                print_out(f"{check.about}: {one_line(check.text)}" + (f"; {check.remedy}" if check.remedy else ""))
    sys.exit(int(not all(check.is_there for check in checks)))


def _print(copy: CopyResult, *, as_json: bool) -> None:
    kind, owner_id = copy.owner
    if as_json:
        document = {"kind": kind, "id": owner_id, "state": copy.state, "records": copy.records, "blobs": copy.blobs}
        write_json({**document, **({"problem": copy.problem} if copy.problem else {})})
    elif copy.state == "left":
        print_err(f"{kind} {owner_id} was skipped: {one_line(copy.problem)}")
    elif copy.state != "there":
        print_out(f"{kind} {owner_id}: {count(copy.records, 'record')}, {count(copy.blobs, 'blob')}")
