"""`perstack cancel`."""

from __future__ import annotations

import asyncio

import click

from perstack.core.job import JobSummary
from perstack.engine.who import this_user
from perstack.errors import UsageError
from perstack.frontends.cli.next_steps import said
from perstack.frontends.cli.options import PlaceOptions, place_options
from perstack.frontends.cli.terminal import data, out
from perstack.frontends.shared.following import after_job
from perstack.frontends.shared.words import spent, status_of


@click.command("cancel")
@click.argument("job")
@click.option("--final", is_flag=True, help="Close it for good, also if it waits or is paused: nothing continues it.")
@click.option("--reason", metavar="TEXT", default="", help="With --final: why, for the record.")
@click.option("--json", "as_json", is_flag=True, help="The Job's summary as one JSON object.")
@place_options
def cancel_command(
    job: str,
    final: bool,
    reason: str,
    as_json: bool,
    config: str | None,
    workspace: str | None,
    storage: str | None,
) -> None:
    """Stop JOB, wherever it is driven, as Ctrl-C there would: it is recorded as interrupted, and can be resumed.

    Exit status 2 if nobody drives it, and 1 if who does has not stopped within half a minute.
    """
    if reason and not final:
        raise UsageError("--reason is recorded with --final only")
    place = PlaceOptions(config, workspace, storage)

    async def stop() -> JobSummary:
        async with place.writer() as host:
            job_id = await host.jobs.find(job)
            await host.cancel(job_id, final=final, by=this_user("cli"), reason=reason)
            return await host.job(job_id)

    stopped = asyncio.run(stop())
    if as_json:
        data(stopped.to_json())
        return
    step = after_job(stopped)
    after = "" if step is None else f"; {said(step)}"
    by = "" if stopped.closed is None else f" for good by {stopped.closed.by}"
    out(f"Job {stopped.id}: {status_of(stopped)}{by}, {spent(stopped)}{after}")
