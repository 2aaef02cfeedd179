"""`perstack task run-due`."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

import click

from perstack.core.base import JsonObject
from perstack.core.plain import one_line
from perstack.errors import UsageError
from perstack.frontends.cli.options import Setup, driving_options
from perstack.frontends.cli.spans import read_span
from perstack.frontends.cli.terminal import data, err, out
from perstack.frontends.shared.stopping import INTERRUPTED, on_stop_signals

if TYPE_CHECKING:
    from perstack.engine.scheduled_work import ScheduledWork
    from perstack.host import Host


@click.command("run-due")
@click.option("--watch", is_flag=True, help="Keep looking until Ctrl-C, in place of once.")
@click.option("--interval", metavar="TIME", default="10s", show_default=True, help="With --watch: how often to look.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line for each task that was looked after.")
@driving_options
def run_due(watch: bool, interval: str, as_json: bool, setup: Setup) -> None:
    """Resume the tasks that are due, and start what schedules say, once.

    That is: waits that are over, answers that came, commands that say yes. Tasks of Experts get a Job. Jobs and
    iterations that pause for their provider's rate are resumed as well. Tasks that were silent for too long count as
    failed. Each occurrence of a schedule starts a Job, once over all who look. What goes wrong with one is a line on
    stderr, and ends nothing else; exit status 1 if something did.
    """
    pause = read_span(interval, "--interval") or 0
    if pause < 1:
        raise UsageError("--interval must be more than 0")
    sys.exit(asyncio.run(_look(setup.host(), pause if watch else None, as_json=as_json)))


async def _look(host: Host, interval: int | None, *, as_json: bool) -> int:
    """Once, or again and again. The exit status. Jobs that Ctrl-C stops are recorded as interrupted."""

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
        with on_stop_signals(work.cancel):
            try:
                return 1 if await work else 0
            except asyncio.CancelledError:
                return INTERRUPTED if interval is None else 0


def _say(one: ScheduledWork, *, as_json: bool) -> None:
    if as_json:
        task: JsonObject = {} if one.task is None else {"status": one.task.status, "jobId": one.task.job_id}
        if one.job_id is not None:
            task = {"status": one.job.status if one.job else None, "jobId": one.job_id}
        if one.series_id is not None:
            task = {"status": one.series.status if one.series else None, "seriesId": one.series_id}
        if one.schedule is not None:
            task |= {"schedule": one.schedule, "occurrence": one.occurrence}
        said = {"taskId": one.task_id, "did": one.did, **task, "question": one.question, "error": one.error}
        data(json.dumps({key: value for key, value in said.items() if value is not None}, ensure_ascii=False))
    if as_json and one.error is None:
        return
    stands = one.job or one.series or one.task
    now = "" if stands is None else f", now {stands.status}"
    asks = f", and asks: {one.question}; see perstack inbox" if one.question is not None else ""
    wrong = "" if one.error is None else f": {one_line(one.error)}"
    say = out if one.error is None else err
    say(f"{_name(one)}: {one.did}{now}{asks}{wrong}")


def _name(one: ScheduledWork) -> str:
    if one.schedule is not None:
        return f"schedule {one.schedule}" if one.job_id is None else f"schedule {one.schedule}, Job {one.job_id}"
    if one.job_id is not None:
        return f"Job {one.job_id}"
    if one.series_id is not None:
        return f"iterations {one.series_id}"
    return one.task_id or "run-due"
