"""The commands `perstack run` and `perstack submit`.

Modules that only a Job needs are imported inside them, so that `--help` is quick.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from perstack.doors.cli.options import (
    GroupedCommand,
    HostOptions,
    NewRunOptions,
    dispatcher_option,
    driving_options,
    json_option,
    new_job_options,
    original_options,
)
from perstack.doors.cli.output import JobOutput, OutputOptions, output_options, with_types
from perstack.doors.cli.param_types import MOMENT, read_query, read_schema
from perstack.doors.cli.terminal import print_err, write_json_line
from perstack.errors import UsageError

if TYPE_CHECKING:
    from perstack.core.jobs.summary import JobSummary
    from perstack.engine.log.run_session import OnEvent
    from perstack.host import Host


@click.command("run", cls=GroupedCommand)
@click.argument("expert")
@click.argument("query", required=False)
@click.option("--continue", "go_on", is_flag=True, help="Continue the latest Job with a new Run.")
@click.option("--continue-job", metavar="JOB", help="Continue this Job with a new Run.")
@click.option("--resume-from", metavar="CHECKPOINT", help=("With --continue-job: start a branch at this checkpoint."))
@click.option(
    "--with-files",
    is_flag=True,
    help="With --resume-from: also restore the files, in place or in a new folder, --workspace.",
)
@click.option("--yes", is_flag=True, help="With --with-files: change files without confirmation.")
@click.option(
    "-i",
    "--interactive-tool-call-result",
    "is_answer",
    is_flag=True,
    help="With --continue or --continue-job: QUERY answers the question of the Job, or that at --resume-from.",
)
@new_job_options
@click.option("--strict", is_flag=True, help="Treat warnings about perstack.toml as errors.")
@click.option("--output-schema", metavar="FILE", help="A file with a JSON schema that the result must match.")
@click.option(
    "--filter", "types", metavar="TYPES", help="Print only events of these types, as lines of JSON: finishRun,errorRun."
)
@output_options
@driving_options
@original_options
def run_command(
    expert: str,
    query: str | None,
    go_on: bool,
    continue_job: str | None,
    resume_from: str | None,
    with_files: bool,
    yes: bool,
    is_answer: bool,
    new_run: NewRunOptions,
    strict: bool,
    output_schema: str | None,
    types: str | None,
    output_options: OutputOptions,
    options: HostOptions,
) -> None:
    """Run EXPERT on QUERY, and show its progress. In a pipe, print events as lines of JSON.

    QUERY `-`, or no QUERY, reads from stdin.
    """
    from perstack.doors.cli.driving import drive_and_report, open_attended_host
    from perstack.system.user import this_user

    output_options = with_types(output_options, types)
    _check_combination(go_on, continue_job, resume_from, is_answer, new_run.job_id)
    continues = (go_on or continue_job is not None) and not is_answer
    text = read_query(query, "; `perstack resume` continues a Job without one" if continues else "")
    if is_answer:
        new_run.check_unused()
    attachments, caller_fields = new_run.attachments, new_run.caller_fields
    if output_schema is not None:
        if is_answer:
            raise UsageError("--output-schema is for a new Run: leave it out when answering")
        options = replace(options, overrides=replace(options.overrides, output=read_schema(output_schema)))
    options = _with_checkpoint_files(options, expert, continue_job, resume_from, yes) if with_files else options
    host, output = open_attended_host(options, output_options, strict=strict), JobOutput(output_options)

    async def run_new(on_event: OnEvent) -> JobSummary:
        return await host.run(
            expert, text, job_id=new_run.job_id, attachments=attachments, on_event=on_event, **caller_fields
        )

    async def run_existing(on_event: OnEvent) -> JobSummary:
        job, start = await host.jobs.complete_id(continue_job), await host.jobs.complete_id(resume_from)
        await output.begin(host, job)
        if is_answer:
            by = this_user("cli")
            return await host.answer(text, job_id=job, resume_from=start, by=by, drive=True, on_event=on_event)
        return await host.continue_job(
            expert, text, job_id=job, resume_from=start, attachments=attachments, on_event=on_event, **caller_fields
        )

    sys.exit(drive_and_report(host, run_existing if go_on or continue_job else run_new, output))


def _with_checkpoint_files(
    options: HostOptions, expert: str, job: str | None, checkpoint: str | None, is_sure: bool
) -> HostOptions:
    if job is None or checkpoint is None:
        raise UsageError("--with-files needs --continue-job JOB and --resume-from CHECKPOINT: name both")
    from perstack.doors.cli.files import files_of_checkpoint

    return files_of_checkpoint(options, expert, job, checkpoint, is_sure=is_sure)


def _check_combination(
    go_on: bool, continue_job: str | None, resume_from: str | None, is_answer: bool, job_id: str | None
) -> None:
    if resume_from is not None and continue_job is None:
        raise UsageError("--resume-from needs --continue-job JOB: name the checkpoint's Job")
    if go_on and continue_job is not None:
        raise UsageError("--continue means the latest Job and --continue-job names one: leave one of them out")
    if is_answer and not (go_on or continue_job):
        raise UsageError("-i answers a question of a Job: add --continue, or --continue-job JOB")
    if job_id is not None and (go_on or continue_job):
        raise UsageError("--job-id names a new Job: leave it out when continuing one")


@click.command("submit", cls=GroupedCommand)
@click.argument("expert")
@click.argument("query", required=False)
@click.option(
    "--wait", is_flag=True, help=("Show events until the Job ends or stops, and exit with the status of `run`.")
)
@click.option("--at", type=MOMENT, metavar="TIME", help=("Start no earlier than this time: 2026-12-01T08:00Z, or +2h."))
@click.option("--priority", type=int, default=0, metavar="N", help="Priority; higher values first. Default: 0.")
@new_job_options
@json_option("Print the Job as JSON instead of its id.")
@dispatcher_option
@output_options
@driving_options
def submit_command(
    expert: str,
    query: str | None,
    wait: bool,
    at: int | None,
    priority: int,
    new_run: NewRunOptions,
    as_json: bool,
    output_options: OutputOptions,
    options: HostOptions,
) -> None:
    """Queue EXPERT with QUERY for a worker, and print the Job's id immediately.

    The Experts and settings of perstack.toml are recorded with the Job, and the worker uses them. QUERY `-`, or no
    QUERY, reads from stdin.
    """
    from perstack.doors.cli.driving import report_outcome, run_interruptible
    from perstack.doors.shared.signals import INTERRUPTED
    from perstack.system.user import this_user

    text = read_query(query)
    host, lines = options.open_host(), JobOutput(output_options)
    waiting = list[str]()  # the submitted Job's id, while it is followed

    async def submit_and_follow() -> JobSummary:
        job = await host.submit(
            expert,
            text,
            at=at,
            priority=priority,
            attachments=new_run.attachments,
            job_id=new_run.job_id,
            by=this_user("cli"),
            **new_run.caller_fields,
        )
        _warn_of_unrecorded_files(host)
        if not wait:
            write_json_line(job.to_json() if as_json else job.id.encode())
            return job
        lines.remark(f"Job {job.id} waits for a worker")
        waiting.append(job.id)
        summary = await host.jobs.follow(job.id, on_event=lines)
        waiting.clear()
        return summary

    async def state_after_interrupt() -> JobSummary | None:
        return await host.job(waiting[0]) if waiting else None

    final = run_interruptible(host, submit_and_follow, state_after_interrupt, lines, drives=False)
    if final is None:
        sys.exit(INTERRUPTED)
    if not wait:
        sys.exit(0)
    if waiting and final.status in ("running", "queued", "stoppedByInterrupt"):
        lines.remark(_interrupted_wait_line(final))
        sys.exit(INTERRUPTED)
    sys.exit(report_outcome(final, lines))


def _interrupted_wait_line(summary: JobSummary) -> str:
    how = "still waits for a worker" if summary.status == "queued" else "continues on the workers"
    return f"Job {summary.id} {how}; see it with: perstack log {summary.id} --follow"


def _warn_of_unrecorded_files(host: Host) -> None:
    """Warn that a worker on another machine may not see the workspace's files."""
    if host.project.snapshots is None:
        print_err(
            "warning: snapshots are off, so a worker sees these files only if it shares the folder; set"
            ' `workspace = { path = ".", snapshots = true }` to record them'
        )
