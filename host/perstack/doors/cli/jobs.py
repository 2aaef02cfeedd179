"""`perstack jobs`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click

from perstack.core.job import JobSummary
from perstack.core.job_choice import JobChoice
from perstack.engine.clock import SYSTEM
from perstack.engine.pages import pages
from perstack.frontends.cli.job_choice import choice_options
from perstack.frontends.cli.options import PlaceOptions, place_options
from perstack.frontends.cli.terminal import Screen, data, out, table
from perstack.frontends.shared.words import ago, cost, count, status_of
from perstack.host import Host

_PAGE = 20
_MANY = 200
_REST = 10_000
"""Each page looks at the times of all Jobs: what is not among the first is had at once."""


@click.command("jobs")
@click.option("--json", "as_json", is_flag=True, help="Each Job's whole summary as JSON, one a line.")
@click.option(
    "--take", type=click.IntRange(min=1), metavar="N", default=_PAGE, show_default=True, help="How many, the newest."
)
@click.option("--offset", type=click.IntRange(min=0), default=0, metavar="N", help="Leave out the N newest.")
@choice_options
@click.option("--all", "everything", is_flag=True, help="All of them, in place of --take.")
@place_options
def jobs_command(
    as_json: bool,
    take: int,
    offset: int,
    everything: bool,
    choice: JobChoice,
    config: str | None,
    workspace: str | None,
    storage: str | None,
) -> None:
    """List Jobs, the one written to last first, with the question of those that wait for an answer."""
    host = PlaceOptions(config, workspace, storage).reader()
    jobs, has_more = asyncio.run(_some(host, None if everything else take, offset, choice))
    if as_json:
        for job in jobs:
            data(job.to_json())
        return
    screen = Screen.of_stdout()
    if not jobs:
        out("no Jobs" + _why_none(offset, choice))
        return
    show_jobs(screen, jobs)
    if has_more:
        text = f"there are more: see them with --offset {offset + len(jobs)}, or all with --all"
        out(screen.paint(text, dim=True))


def _why_none(offset: int, choice: JobChoice) -> str:
    if offset:
        return " beyond these"
    if choice == JobChoice.of(labels=dict(choice.labels)) and choice.labels:
        return f" with {' and '.join(f'{key}={value}' for key, value in choice.labels)}"
    if choice != JobChoice():
        return " like that"
    return " yet; start one with: perstack run EXPERT QUERY"


async def _some(host: Host, take: int | None, offset: int, choice: JobChoice) -> tuple[list[JobSummary], bool]:
    """The Jobs wanted, and whether there are older ones."""
    limit = _MANY if take is None or choice != JobChoice() else offset + take + 1
    async with host:
        found: list[JobSummary] = []
        async for page in pages(lambda after: host.jobs.list(limit=limit if after is None else _REST, after=after)):
            found += filter(choice.has, page.jobs)
            if take is not None and len(found) > offset + take:
                break
    end = len(found) if take is None else offset + take
    return found[offset:end], len(found) > end


def show_jobs(screen: Screen, jobs: Sequence[JobSummary]) -> None:
    """A table of them, with how to answer those that wait."""
    now = SYSTEM.now()
    rows = [
        (
            job.id,
            job.expert_key or "?",
            status_of(job),
            f"{job.total_steps:,}",
            f"{job.usage.total_tokens:,}",
            cost(job.usage, job.unpriced_tokens).removeprefix("cost ") or "-",
            ago(job.updated_at, now) if job.updated_at else "?",
            _about(job),
        )
        for job in jobs
    ]
    headings = ("Job", "Expert", "status", "steps", "tokens", "cost", "when", "query")
    table(screen, headings, rows, right=(3, 4, 5), drops=(4, 3, 6, 1, 5, 2))
    waiting = sum(job.question is not None for job in jobs)
    if waiting:
        text = f'{count(waiting, "Job")} waiting; answer with: perstack answer JOB "ANSWER"'
        out(screen.paint(text, dim=True))


def _about(job: JobSummary) -> str:
    """The query, unless there is something more pressing."""
    if job.question is not None:
        return f"asks: {job.asks}"
    return f"error: {job.error}" if job.status == "stoppedByError" and job.error else job.query
