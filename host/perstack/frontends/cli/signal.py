"""`perstack signal`."""

from __future__ import annotations

import asyncio
import sys

import click

from perstack.core.cloudevents import CloudEvent, read_cloud_event
from perstack.core.job import JobSummary
from perstack.core.tasks.state import TaskState
from perstack.engine.emit import OnEvent
from perstack.engine.who import this_user
from perstack.errors import NotFound, UsageError
from perstack.frontends.cli.asking import answered_in_place
from perstack.frontends.cli.dispatching import drive_options
from perstack.frontends.cli.drive import job_of, say, until_done
from perstack.frontends.cli.given import json_on_stdin
from perstack.frontends.cli.options import Setup, driving_options
from perstack.frontends.cli.output import Output, Showing, showing_options
from perstack.frontends.cli.terminal import err
from perstack.frontends.shared.stopping import INTERRUPTED
from perstack.host import Host


@click.command("signal")
@click.argument("target", metavar="JOB|TASK")
@drive_options
@showing_options
@driving_options
def signal_command(target: str, is_driven: bool, dispatcher: str | None, showing: Showing, setup: Setup) -> None:
    """Tell a Job or a task that something has happened outside: a CloudEvent 1.0, as JSON on stdin.

    A task that waits has its answer then, and is due; a Job continues. An event that comes twice is taken once. A Job
    that was submitted, and every one where a dispatcher is named, is queued for a worker again.
    """
    event = read_cloud_event(json_on_stdin("write a CloudEvent to it"))
    setup = setup.dispatched(dispatcher)
    host = setup.host()
    target, task = asyncio.run(_told(host, target, event))
    if task is not None:
        err(f"task {target}: {task.status}, answered; perstack task run-due lets it continue")
        return

    async def work(on_event: OnEvent) -> JobSummary:
        await lines.begin(lambda: host.job(target))
        try:
            return await host.signal(target, event, by=this_user("cli"), drive=is_driven or None, on_event=on_event)
        except NotFound as error:
            raise NotFound(f"no Job or task is {target} in {host.storage.location}") from error

    host, lines = setup.host(), Output(showing)
    job = until_done(host, lambda: answered_in_place(host, work, lines), lambda: job_of(host, lines), lines)
    if job is not None and job.status == "running" and lines.job_id is None:
        err(f"Job {target} has taken this event already, and another process drives it")
        sys.exit(0)
    sys.exit(INTERRUPTED if job is None else say(job, lines))


async def _told(host: Host, target: str, event: CloudEvent) -> tuple[str, TaskState | None]:
    """The whole id, and the task that has it, told; None if there is none."""
    async with host:
        target = await host.jobs.find(target, ("job", "task"))
        try:
            await host.memory.get(target)
        except (NotFound, UsageError):
            return target, None
        by = this_user("cli").bringing(event.source)
        return target, await host.memory.signed(by).answer(target, event.data, event_id=event.key)
