"""The command `perstack start`."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import click

from perstack.doors.cli.options import (
    GroupedCommand,
    HostOptions,
    dispatcher_of,
    drive_options,
    driving_options,
    original_options,
)
from perstack.doors.cli.terminal import print_err, print_out
from perstack.doors.shared.next_step_phrases import cli_phrase
from perstack.doors.shared.status_phrases import job_line
from perstack.errors import UsageError


@click.command("start", cls=GroupedCommand)
@click.argument("expert", required=False)
@click.argument("query", required=False)
@click.option("--job", metavar="JOB", help="Open this Job, to resume it, answer it or continue it.")
@click.option("--no-mouse", is_flag=True, help="Do not use the mouse, so that the terminal can select text.")
@click.option(
    "--plain",
    is_flag=True,
    help=("Print line by line, for screen readers. The default on a terminal without cursor control."),
)
@drive_options
@driving_options
@original_options
def start_command(
    expert: str | None,
    query: str | None,
    job: str | None,
    no_mouse: bool,
    plain: bool,
    is_driven: bool,
    options: HostOptions,
) -> None:
    """Work with Experts in a full-screen terminal program: choose, watch and answer them, and see past Jobs.

    With EXPERT and QUERY it starts a Job at once. A submitted Job, and every Job of a project with a dispatcher, is
    queued for a worker again when it is answered.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("`perstack start` needs a terminal: use `perstack run` in a pipe")
    if not plain and _is_dumb():
        print_err("note: this terminal has no cursor control (TERM is dumb), so --plain is used")
        plain = True
    loaded = options.load()
    host = replace(options, is_attended=lambda: True).open_host(loaded.project)
    if options.dispatcher is not None:
        dispatcher_of(host)  # raises UsageError for a missing dispatcher now, not at the first answer
    if expert is not None:
        host.experts.get(expert)
    if plain:
        if note := host.programs_note:
            print_err(f"note: {note}")
        from perstack_tui.plain.run import run_plain

        sys.exit(run_plain(host, loaded, expert=expert, query=query, job=job, drives=is_driven))
    from perstack_tui.app import run_start

    status, jobs = run_start(
        host,
        loaded,
        expert=expert,
        query=query,
        job=job,
        mouse=not no_mouse,
        location_options=options.as_arguments,
        names_workspace=options.workspace is not None,
        drives=is_driven,
    )
    for summary in jobs:
        print_out(job_line(summary, cli_phrase))
    sys.exit(status)


def _is_dumb() -> bool:
    return os.environ.get("TERM", "dumb") in ("dumb", "unknown", "")
