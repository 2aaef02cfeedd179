"""The commands `perstack schedules` and `perstack task run-due`."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from perstack.core.base.records import JsonObject
from perstack.core.base.text import one_line
from perstack.doors.cli.options import HostOptions, driving_options, json_option, place_options
from perstack.doors.cli.param_types import SPAN
from perstack.doors.cli.terminal import print_err, print_out, table, write_json
from perstack.doors.shared.job_status import STATUS_WORDS, status_of
from perstack.doors.shared.screen import Screen
from perstack.doors.shared.signals import INTERRUPTED, handle_stop_signals
from perstack.errors import UsageError

if TYPE_CHECKING:
    from perstack.engine.schedules.schedules import DueWorkResult, ScheduleStatus
    from perstack.host import Host


@click.command("schedules")
@json_option("Print a line of JSON for each schedule.")
@place_options
def schedules_command(as_json: bool, options: HostOptions) -> None:
    """List the schedules of perstack.toml.

    For each: the next occurrence, in its own time zone, the last one that was started, and the status of that one's
    Job. Starts nothing: `perstack task run-due --watch` does, on any number of machines.
    """

    async def look(host: Host) -> tuple[ScheduleStatus, ...]:
        return await host.schedules.list() if host.project.schedules else ()

    standings = options.change(look)
    if as_json:
        for one in standings:
            write_json(_to_json(one))
    elif not standings:
        print_out("no schedules yet: write [schedules.NAME] with cron, expert and query in perstack.toml")
    else:
        _print(standings)
    for one in standings:
        if one.error is not None and not as_json:
            print_err(f"schedule {one.schedule.name}: {one_line(one.error)}")


def _to_json(one: ScheduleStatus) -> JsonObject:
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


def _print(standings: tuple[ScheduleStatus, ...]) -> None:
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


def _moment(one: ScheduleStatus, at: int | None) -> str:
    from perstack.config.calendar import calendar_of

    return "-" if at is None else calendar_of(one.schedule).format_minute(at)


def _status(one: ScheduleStatus) -> str:
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


# perstack task run-due


@click.command("run-due")
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C instead of checking once.")
@click.option(
    "--interval",
    type=SPAN,
    metavar="TIME",
    default="10s",
    show_default=True,
    help="With --watch: time between two checks.",
)
@json_option("Print a line of JSON for each processed task.")
@driving_options
def run_due(watch: bool, interval: int, as_json: bool, options: HostOptions) -> None:
    """Resume the tasks that are due, and start the Jobs of due schedules, once.

    A task is due when its wait is over, its answer has arrived, or its command succeeds. Tasks of Experts get a Job.
    Jobs and iterations that paused for a provider's rate limit are resumed as well. Tasks without an update for too
    long count as failed. Each occurrence of a schedule starts one Job, even if several processes check. An error with
    one is reported on stderr and does not affect the others; the exit status is then 1.
    """
    if interval < 1:
        raise UsageError("--interval must be more than 0")
    sys.exit(asyncio.run(_look(options.driver(), interval if watch else None, as_json=as_json)))


async def _look(host: Host, interval: int | None, *, as_json: bool) -> int:
    """Run due work once, or every `interval` milliseconds, and return the exit status. Ctrl-C interrupts Jobs."""

    async def once() -> bool:
        done = await host.scheduler.once()
        for one in done:
            _say(one, as_json=as_json)
        return any(one.did == "failed" for one in done)

    async def watch(interval: int) -> bool:
        await host.scheduler.watch(interval, lambda one: _say(one, as_json=as_json))
        return False

    async with host:
        work = asyncio.ensure_future(once() if interval is None else watch(interval))
        with handle_stop_signals(work.cancel):
            try:
                return 1 if await work else 0
            except asyncio.CancelledError:
                return INTERRUPTED if interval is None else 0


def _say(one: DueWorkResult, *, as_json: bool) -> None:
    if as_json:
        task: JsonObject = {} if one.task is None else {"status": one.task.status, "jobId": one.task.job_id}
        if one.job_id is not None:
            task = {"status": one.job.status if one.job else None, "jobId": one.job_id}
        if one.series_id is not None:
            task = {"status": one.series.status if one.series else None, "seriesId": one.series_id}
        if one.schedule is not None:
            task |= {"schedule": one.schedule, "occurrence": one.occurrence}
        said = {"taskId": one.task_id, "did": one.did, **task, "question": one.question, "error": one.error}
        write_json({key: value for key, value in said.items() if value is not None})
    if as_json and one.error is None:
        return
    stands = one.job or one.series or one.task
    now = "" if stands is None else f", now {stands.status}"
    asks = f", and asks: {one.question}; see perstack inbox" if one.question is not None else ""
    wrong = "" if one.error is None else f": {one_line(one.error)}"
    say = print_out if one.error is None else print_err
    say(f"{_name(one)}: {one.did}{now}{asks}{wrong}")


def _name(one: DueWorkResult) -> str:
    if one.schedule is not None:
        return f"schedule {one.schedule}" if one.job_id is None else f"schedule {one.schedule}, Job {one.job_id}"
    if one.job_id is not None:
        return f"Job {one.job_id}"
    if one.series_id is not None:
        return f"iterations {one.series_id}"
    return one.task_id or "run-due"
