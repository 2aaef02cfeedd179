"""`perstack workers`."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import click

from perstack.engine.clock import SYSTEM
from perstack.frontends.cli.dispatching import dispatcher_of, dispatcher_option
from perstack.frontends.cli.options import PlaceOptions, place_options
from perstack.frontends.cli.terminal import Screen, data, out, table
from perstack.frontends.shared.words import ago, count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perstack.ports.dispatcher import Load, WorkerInfo


@click.command("workers")
@click.option("--json", "as_json", is_flag=True, help="Each one as JSON, one a line.")
@dispatcher_option
@place_options
def workers_command(
    as_json: bool, dispatcher: str | None, config: str | None, workspace: str | None, storage: str | None
) -> None:
    """List the workers that there are, what each drives, and since when; then how much waits for them."""
    place = PlaceOptions(config, workspace, storage, dispatcher=dispatcher)

    async def look() -> tuple[Sequence[WorkerInfo], Load]:
        async with place.reader() as host:
            engine = dispatcher_of(host)
            return await engine.workers(), await engine.load()

    found, load = asyncio.run(look())
    if as_json:
        for one in found:
            data(json.dumps(_as_json(one), ensure_ascii=False))
        return
    if found:
        _print(found)
    else:
        out("no workers; start one with: perstack worker")
    _print_load(load)


def _print(found: Sequence[WorkerInfo]) -> None:
    screen, now = Screen.of_stdout(), SYSTEM.now()
    rows = [
        (
            one.name,
            f"{len(one.jobs)}/{one.concurrency}",
            ago(one.since, now),
            ", ".join(f"{key}={value}" for key, value in sorted(one.labels.items())) or "-",
            " ".join(one.jobs) or "-",
        )
        for one in found
    ]
    table(screen, ("worker", "busy", "since", "labels", "jobs"), rows, right=(1,), drops=(3, 2))


def _print_load(load: Load) -> None:
    waits = f", the longest since {ago(load.oldest, SYSTEM.now())}" if load.oldest is not None else ""
    out(f"{count(load.queued, 'Job')} queued{waits}; {load.later} later; {load.running} at work")


def _as_json(one: WorkerInfo) -> dict[str, object]:
    return {
        "name": one.name,
        "since": one.since,
        "seen": one.seen,
        "labels": dict(one.labels),
        "concurrency": one.concurrency,
        "jobs": list(one.jobs),
    }
