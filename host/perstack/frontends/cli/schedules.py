"""`perstack schedules`."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import click

from perstack.core.base import JsonObject
from perstack.core.plain import one_line
from perstack.frontends.cli.options import PlaceOptions, place_options
from perstack.frontends.cli.terminal import Screen, data, err, out, table
from perstack.frontends.shared.words import STATUS_WORDS, status_of

if TYPE_CHECKING:
    from perstack.engine.schedules.upkeep import ScheduleStanding


@click.command("schedules")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line for each schedule.")
@place_options
def schedules_command(as_json: bool, config: str | None, workspace: str | None, storage: str | None) -> None:
    """List the schedules of perstack.toml.

    Each with when it occurs next, by its own time zone, the occurrence that was started last, and how the Job of that
    stands. It starts nothing: `perstack task run-due --watch` does, on as many machines as you like.
    """
    place = PlaceOptions(config, workspace, storage)

    async def look() -> tuple[ScheduleStanding, ...]:
        async with place.writer() as host:
            return await host.schedules.list() if host.project.schedules else ()

    standings = asyncio.run(look())
    if as_json:
        for one in standings:
            data(json.dumps(_to_json(one), ensure_ascii=False))
    elif not standings:
        out("no schedules yet: write [schedules.NAME] with cron, expert and query in perstack.toml")
    else:
        _print(standings)
    for one in standings:
        if one.error is not None and not as_json:
            err(f"schedule {one.schedule.name}: {one_line(one.error)}")


def _to_json(one: ScheduleStanding) -> JsonObject:
    schedule, last = one.schedule, one.last
    started: JsonObject = {}
    if last is not None:
        status = last.outcome if one.job is None else one.job.status
        started["last"] = {"at": last.at, "jobId": last.job_id, **({} if status is None else {"status": status})}
    found: JsonObject = {
        "name": schedule.name,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "expert": schedule.expert,
        "query": schedule.query,
        "overlap": schedule.overlap,
        "next": one.next,
        **started,
        "waiting": one.waiting,
        "skipped": one.skipped,
        "error": one.error,
    }
    return {name: value for name, value in found.items() if value is not None}


def _print(standings: tuple[ScheduleStanding, ...]) -> None:
    rows = [
        (
            one.schedule.name,
            one.schedule.cron,
            one.schedule.timezone,
            _moment(one, one.next),
            _moment(one, None if one.last is None else one.last.at),
            _status(one),
            "-" if one.last is None else one.last.job_id,
        )
        for one in standings
    ]
    table(Screen.of_stdout(), ("name", "cron", "zone", "next", "last", "status", "Job"), rows, drops=(2, 4, 6, 1))


def _moment(one: ScheduleStanding, at: int | None) -> str:
    from perstack.config.calendar import calendar_of

    return "-" if at is None else calendar_of(one.schedule).shown(at)


def _status(one: ScheduleStanding) -> str:
    """How the Job of the last occurrence stands."""
    if one.error is not None:
        return "error"
    if one.last is None:
        return "-"
    waits = "" if one.waiting is None else ", one waits"
    if one.job is not None:
        return status_of(one.job) + waits
    outcome = one.last.outcome
    word = "about to begin" if outcome is None else outcome if outcome == "deleted" else STATUS_WORDS[outcome]
    return word + waits
