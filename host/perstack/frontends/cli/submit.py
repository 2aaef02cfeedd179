"""`perstack submit`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from perstack.core.ids import check_job_id
from perstack.core.job import JobSummary
from perstack.core.labels import parse_labels
from perstack.engine.who import this_user
from perstack.frontends.cli.dispatching import dispatcher_option
from perstack.frontends.cli.drive import say, until_done
from perstack.frontends.cli.given import given_query
from perstack.frontends.cli.options import Setup, driving_options, new_job_options
from perstack.frontends.cli.output import Output, Showing, showing_options
from perstack.frontends.cli.task_options import read_moment
from perstack.frontends.cli.terminal import data, err
from perstack.frontends.shared.stopping import INTERRUPTED
from perstack.host import Host


@click.command("submit")
@click.argument("expert")
@click.argument("query", required=False)
@click.option("--wait", is_flag=True, help="Show what happens until the Job ends or stops; exit as `run` does.")
@click.option("--at", metavar="TIME", help="Not before this moment: 2026-12-01T08:00Z, or +2h.")
@click.option("--priority", type=int, default=0, metavar="N", help="Higher first; 0 if not given.")
@new_job_options
@click.option("--json", "as_json", is_flag=True, help="The Job as JSON, in place of its id.")
@dispatcher_option
@showing_options
@driving_options
def submit_command(
    expert: str,
    query: str | None,
    wait: bool,
    at: str | None,
    priority: int,
    job_id: str | None,
    attach: tuple[str, ...],
    label: tuple[str, ...],
    as_json: bool,
    dispatcher: str | None,
    showing: Showing,
    setup: Setup,
) -> None:
    """Queue EXPERT on QUERY for a worker, and print the Job's id at once.

    The Experts and settings of perstack.toml are recorded with it, and used by the worker. QUERY `-`, or none, is read
    from stdin.
    """
    text, due, labels = given_query(query), read_moment(at, "--at"), parse_labels(label)
    if job_id is not None:
        check_job_id(job_id)
    host, lines = setup.dispatched(dispatcher).host(), Output(showing)
    waiting = list[str]()  # the Job, while it is waited for

    async def work() -> JobSummary:
        job = await host.submit(
            expert,
            text,
            at=due,
            priority=priority,
            labels=labels,
            attachments=[Path(name) for name in attach],
            job_id=job_id,
            by=this_user("cli"),
        )
        _warn(host)
        if not wait:
            data(job.to_json() if as_json else job.id.encode())
            return job
        lines.remark(f"Job {job.id} waits for a worker")
        waiting.append(job.id)
        followed = await host.jobs.follow(job.id, on_event=lines)
        waiting.clear()
        return followed

    async def interrupted() -> JobSummary | None:
        return await host.job(waiting[0]) if waiting else None

    done = until_done(host, work, interrupted, lines, drives=False)
    if done is None:
        sys.exit(INTERRUPTED)
    if not wait:
        sys.exit(0)
    if waiting and done.status in ("running", "queued", "stoppedByInterrupt"):
        lines.remark(_left(done))
        sys.exit(INTERRUPTED)
    sys.exit(say(done, lines))


def _left(job: JobSummary) -> str:
    """That the Job does without this process."""
    how = "still waits for a worker" if job.status == "queued" else "is driven on by the workers"
    return f"Job {job.id} {how}; see it with: perstack log {job.id} --follow"


def _warn(host: Host) -> None:
    """Of files that a worker elsewhere would not see."""
    if host.project.snapshots is None:
        err(
            "warning: the files here are not recorded, so a worker sees them only in a folder that both share; set"
            ' `workspace = { path = ".", snapshots = true }` to have them recorded'
        )
