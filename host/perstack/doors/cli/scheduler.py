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
from perstack.doors.shared.screen import Screen
from perstack.doors.shared.signals import INTERRUPTED, handle_stop_signals
from perstack.doors.shared.status_phrases import STATUS_WORDS, status_of
from perstack.errors import UsageError

if TYPE_CHECKING:
    from perstack.host import Host
    from perstack.schedules.schedules import DueWorkResult, ScheduleStatus


@click.command("schedules")
@json_option("Print a line of JSON for each schedule.")
@place_options
def schedules_command(as_json: bool, options: HostOptions) -> None:
    """List the schedules of perstack.toml.

    Shows each schedule's next occurrence in its own time zone, the last occurrence that was started, and the status of
    that Job. Starts nothing: `perstack task run-due --watch` does, on any number of machines.
    """

    async def look(host: Host) -> tuple[ScheduleStatus, ...]:
        return await host.schedules.list() if host.project.schedules else ()

    statuses = options.change(look)
    if as_json:
        for entry in statuses:
            write_json(_to_json(entry))
    elif not statuses:
        print_out("no schedules yet: write [schedules.NAME] with cron, expert and query in perstack.toml")
    else:
        _print(statuses)
    for entry in statuses:
        if entry.error is not None and not as_json:
            print_err(f"schedule {entry.schedule.name}: {one_line(entry.error)}")


def _to_json(entry: ScheduleStatus) -> JsonObject:
    schedule, last = entry.schedule, entry.last
    last_fields: JsonObject = {}
    if last is not None:
        status = last.outcome if entry.summary is None else entry.summary.status
        last_fields["last"] = {"at": last.at, "jobId": last.job_id, **({} if status is None else {"status": status})}
    document: JsonObject = {
        "name": schedule.name,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "expert": schedule.expert,
        "query": schedule.query,
        "overlap": schedule.overlap,
        "next": entry.next,
        **last_fields,
        "waiting": entry.waiting,
        "skipped": entry.skipped,
        "error": entry.error,
    }
    return {name: value for name, value in document.items() if value is not None}


def _print(statuses: tuple[ScheduleStatus, ...]) -> None:
    rows = [
        (
            entry.schedule.name,
            entry.schedule.cron,
            entry.schedule.timezone,
            _moment(entry, entry.next),
            _moment(entry, None if entry.last is None else entry.last.at),
            _status(entry),
            "-" if entry.last is None else entry.last.job_id,
        )
        for entry in statuses
    ]
    table(Screen.of_stdout(), ("name", "cron", "zone", "next", "last", "status", "Job"), rows, drops=(2, 4, 6, 1))


def _moment(entry: ScheduleStatus, at: int | None) -> str:
    from perstack.schedules.calendar import calendar_of

    return "-" if at is None else calendar_of(entry.schedule).format_minute(at)


def _status(entry: ScheduleStatus) -> str:
    if entry.error is not None:
        return "error"
    if entry.last is None:
        return "-"
    suffix = "" if entry.waiting is None else ", one waiting"
    if entry.summary is not None:
        return status_of(entry.summary) + suffix
    outcome = entry.last.outcome
    word = "about to begin" if outcome is None else outcome if outcome == "deleted" else STATUS_WORDS[outcome]
    return word + suffix


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
    long count as failed. Each occurrence of a schedule starts one Job, even if several processes check. An error is
    reported on stderr and does not affect the others; the exit status is then 1.
    """
    if interval < 1:
        raise UsageError("--interval must be more than 0")
    sys.exit(asyncio.run(_run_due_work(options.open_host(), interval if watch else None, as_json=as_json)))


async def _run_due_work(host: Host, interval: int | None, *, as_json: bool) -> int:
    """Run due work once, or every `interval` milliseconds, and return the exit status. Ctrl-C interrupts Jobs."""

    async def once() -> bool:
        results = await host.scheduler.once()
        for result in results:
            _print_result(result, as_json=as_json)
        return any(result.did == "failed" for result in results)

    async def watch(interval: int) -> bool:
        await host.scheduler.watch(interval, lambda result: _print_result(result, as_json=as_json))
        return False

    async with host:
        work = asyncio.ensure_future(once() if interval is None else watch(interval))
        with handle_stop_signals(work.cancel):
            try:
                return 1 if await work else 0
            except asyncio.CancelledError:
                return INTERRUPTED if interval is None else 0


def _print_result(work: DueWorkResult, *, as_json: bool) -> None:
    if as_json:
        task: JsonObject = {} if work.task is None else {"status": work.task.status, "jobId": work.task.job_id}
        if work.job_id is not None:
            task = {"status": work.summary.status if work.summary else None, "jobId": work.job_id}
        if work.series_id is not None:
            task = {"status": work.series.status if work.series else None, "seriesId": work.series_id}
        if work.schedule is not None:
            task |= {"schedule": work.schedule, "occurrence": work.occurrence}
        document = {"taskId": work.task_id, "did": work.did, **task, "question": work.question, "error": work.error}
        write_json({key: value for key, value in document.items() if value is not None})
    if as_json and work.error is None:
        return
    owner = work.summary or work.series or work.task
    state_words = "" if owner is None else f", now {owner.status}"
    question_words = f", and asks: {work.question}; see perstack inbox" if work.question is not None else ""
    error_words = "" if work.error is None else f": {one_line(work.error)}"
    write = print_out if work.error is None else print_err
    write(f"{_name(work)}: {work.did}{state_words}{question_words}{error_words}")


def _name(work: DueWorkResult) -> str:
    if work.schedule is not None:
        return f"schedule {work.schedule}" if work.job_id is None else f"schedule {work.schedule}, Job {work.job_id}"
    if work.job_id is not None:
        return f"Job {work.job_id}"
    if work.series_id is not None:
        return f"iterations {work.series_id}"
    return work.task_id or "run-due"
