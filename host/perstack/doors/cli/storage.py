"""`perstack storage`: what Jobs are kept in."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import asdict

import click

from perstack.core.plain import one_line
from perstack.engine.storage_copy import Copied
from perstack.frontends.cli.moments import moment
from perstack.frontends.cli.options import CONFIG, PlaceOptions
from perstack.frontends.cli.terminal import Screen, data, err, out, table
from perstack.frontends.shared.words import count
from perstack.ports.storage import StorageCheck

_WORDS = {"copied": "copied", "continued": "completed", "there": "was there", "left": "left"}


@click.group("storage")
def storage_command() -> None:
    """Copy Jobs from one storage to another, and see whether one can be used."""


@storage_command.command("copy")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--job", "ids", metavar="ID", multiple=True, help="Only this Job, task or series. Repeatable.")
@click.option("--since", metavar="WHEN", help="Only those with an event since: a date, 2026-11-30, or a time ago: 7d.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option("--config", metavar="FILE", help=CONFIG)
def copy_command(
    source: str, target: str, ids: tuple[str, ...], since: str | None, as_json: bool, config: str | None
) -> None:
    """Copy Jobs, tasks and iterations from the storage FROM to the storage TO, ids and logs as they are.

    Each log is checked as it is read and as it is written. What is there already is completed: after a copy that was
    cut short, give the command again. What was continued there, or is being driven, is left and named: exit status 1.
    """
    start = None if since is None else moment(since)

    async def copy() -> Counter[str]:
        states: Counter[str] = Counter()
        async with (
            PlaceOptions(config, None, source).reader() as host,
            PlaceOptions(config, None, target).reader() as other,
            aclosing(host.jobs.copy_to(other.storage, ids, start)) as copied,
        ):
            async for one in copied:
                states[one.state] += 1
                _print(one, as_json=as_json)
        return states

    states = asyncio.run(copy())
    if not as_json:
        out(
            ", ".join(f"{_WORDS[state]}: {states[state]}" for state in _WORDS if states[state])
            or "there is nothing to copy"
        )
    sys.exit(int(bool(states["left"])))


@storage_command.command("check")
@click.argument("place", metavar="PLACE")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option("--config", metavar="FILE", help=CONFIG)
def check_command(place: str, as_json: bool, config: str | None) -> None:
    """See whether the storage PLACE can be reached, with the rights and whatever else it takes.

    No Job is made. Exit status 1 if something is in the way.
    """

    async def look() -> Sequence[StorageCheck]:
        async with PlaceOptions(config, None, place).reader() as host:
            return await host.jobs.check_storage()

    checks = asyncio.run(look())
    for one in checks:
        if as_json:
            data(json.dumps(asdict(one), ensure_ascii=False))
    if not as_json:
        rows = [(one.about, "ok" if one.is_there else "problem", one.text) for one in checks]
        table(Screen.of_stdout(), ("what", "state", "here"), rows, whole=(0, 1))
        for one in checks:
            if not one.is_there:
                out(f"{one.about}: {one_line(one.text)}" + (f"; {one.remedy}" if one.remedy else ""))
    sys.exit(int(not all(one.is_there for one in checks)))


def _print(one: Copied, *, as_json: bool) -> None:
    kind, of = one.owner
    if as_json:
        about = {"kind": kind, "id": of, "state": one.state, "records": one.records, "blobs": one.blobs}
        data(json.dumps({**about, **({"problem": one.problem} if one.problem else {})}, ensure_ascii=False))
    elif one.state == "left":
        err(f"{kind} {of} was left: {one_line(one.problem)}")
    elif one.state != "there":
        out(f"{kind} {of}: {count(one.records, 'record')}, {count(one.blobs, 'blob')}")
