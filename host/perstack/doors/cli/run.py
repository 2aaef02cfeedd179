"""`perstack run`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from perstack.core.ids import check_job_id
from perstack.core.job import JobSummary
from perstack.core.labels import parse_labels
from perstack.engine.emit import OnEvent
from perstack.engine.who import this_user
from perstack.errors import UsageError
from perstack.frontends.cli.drive import drive
from perstack.frontends.cli.given import given_query, given_schema
from perstack.frontends.cli.options import Setup, driving_options, new_job_options
from perstack.frontends.cli.output import Output, Showing, showing_options


@click.command("run")
@click.argument("expert")
@click.argument("query", required=False)
@click.option("--continue", "go_on", is_flag=True, help="A new Run in the latest Job, its history kept.")
@click.option("--continue-job", metavar="JOB", help="A new Run in this Job, its history kept.")
@click.option("--resume-from", metavar="CHECKPOINT", help="With --continue-job: branch from this checkpoint.")
@click.option(
    "--with-files",
    is_flag=True,
    help="With --resume-from: the files of then too, in place, or in a new folder, --workspace.",
)
@click.option("--yes", is_flag=True, help="With --with-files: change files without asking.")
@click.option(
    "-i",
    "--interactive-tool-call-result",
    "is_answer",
    is_flag=True,
    help="With --continue or --continue-job: QUERY answers what the Job asks, or asked at --resume-from.",
)
@new_job_options
@click.option("--output-schema", metavar="FILE", help="The result must be JSON that fits the JSON schema in this file.")
@showing_options
@driving_options
def run_command(
    expert: str,
    query: str | None,
    go_on: bool,
    continue_job: str | None,
    resume_from: str | None,
    with_files: bool,
    yes: bool,
    is_answer: bool,
    job_id: str | None,
    attach: tuple[str, ...],
    label: tuple[str, ...],
    output_schema: str | None,
    showing: Showing,
    setup: Setup,
) -> None:
    """Run EXPERT on QUERY, and show what happens. In a pipe, events are JSON, one a line.

    QUERY `-`, or none, is read from stdin.
    """
    _check_combination(go_on, continue_job, resume_from, is_answer, job_id)
    text = given_query(query)
    labels = parse_labels(label)
    if labels and is_answer:
        raise UsageError("--label is for a new Run: leave it out when answering")
    if attach and is_answer:
        raise UsageError("--attach is for a new query: leave it out when answering")
    attachments = [Path(name) for name in attach]
    if output_schema is not None:
        if is_answer:
            raise UsageError("--output-schema is for a new Run: leave it out when answering")
        setup = replace(setup, overrides=replace(setup.overrides, output=given_schema(output_schema)))
    host = (_with_files(setup, expert, continue_job, resume_from, yes) if with_files else setup).host()

    lines = Output(showing)

    async def work(on_event: OnEvent) -> JobSummary:
        job, place = await host.jobs.find(continue_job), await host.jobs.find(resume_from)
        if go_on or continue_job:
            await lines.begin(lambda: host.job(job))
        if is_answer:
            by = this_user("cli")
            return await host.answer(text, job_id=job, resume_from=place, by=by, drive=True, on_event=on_event)
        if go_on or continue_job:
            return await host.continue_job(
                expert,
                text,
                job_id=job,
                resume_from=place,
                attachments=attachments,
                labels=labels,
                on_event=on_event,
            )
        return await host.run(expert, text, job_id=job_id, attachments=attachments, labels=labels, on_event=on_event)

    sys.exit(drive(host, work, lines))


def _with_files(setup: Setup, expert: str, job: str | None, checkpoint: str | None, is_sure: bool) -> Setup:
    if job is None or checkpoint is None:
        raise UsageError("--with-files needs --continue-job JOB and --resume-from CHECKPOINT: say whose files")
    from perstack.frontends.cli.with_files import files_of_then

    return files_of_then(setup, expert, job, checkpoint, is_sure=is_sure)


def _check_combination(
    go_on: bool, continue_job: str | None, resume_from: str | None, is_answer: bool, job_id: str | None
) -> None:
    if resume_from is not None and continue_job is None:
        raise UsageError("--resume-from needs --continue-job JOB: say which Job the checkpoint is of")
    if go_on and continue_job is not None:
        raise UsageError("--continue means the latest Job and --continue-job a given one: leave one of them out")
    if is_answer and not (go_on or continue_job):
        raise UsageError("-i answers a question of a Job: add --continue, or --continue-job JOB")
    if job_id is not None and (go_on or continue_job):
        raise UsageError("--job-id names a new Job: leave it out when continuing one")
    if job_id is not None:
        check_job_id(job_id)
