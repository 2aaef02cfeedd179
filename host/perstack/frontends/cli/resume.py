"""`perstack resume`."""

from __future__ import annotations

import sys
from collections.abc import Awaitable

import click

from perstack.core.events import Settlement
from perstack.core.job import JobSummary
from perstack.engine.emit import OnEvent
from perstack.engine.read import UnsettledCall
from perstack.errors import UsageError
from perstack.frontends.cli.drive import drive
from perstack.frontends.cli.options import Setup, driving_options

_SETTLEMENTS: dict[str, Settlement] = {"done": "done", "retry": "retry", "ask": "ask"}


@click.command("resume")
@click.argument("job", required=False)
@click.option(
    "--settle",
    multiple=True,
    metavar="CALL=done|retry|ask",
    help="What became of a call that began and has no result; by default the model is told that it was interrupted.",
)
@click.option("--stream", is_flag=True, help="Also show text and reasoning as they come.")
@driving_options
def resume_command(
    job: str | None,
    settle: tuple[str, ...],
    stream: bool,
    setup: Setup,
) -> None:
    """Go on with JOB (the latest, if none is given): the same Runs, as they were started."""
    settled = _settlements(settle)
    host = setup.host()

    def work(on_event: OnEvent) -> Awaitable[JobSummary]:
        return host.resume(
            job,
            settle=settled,
            on_unsettled=lambda calls: _show_unsettled(calls, settled),
            on_event=on_event,
        )

    sys.exit(drive(host, work, stream=stream))


def _settlements(given: tuple[str, ...]) -> dict[str, Settlement]:
    settled: dict[str, Settlement] = {}
    for text in given:
        call, _, word = text.rpartition("=")
        if not call or word not in _SETTLEMENTS:
            raise UsageError(f"--settle {text}: write it as CALL=done, CALL=retry or CALL=ask")
        settled[call] = _SETTLEMENTS[word]
    return settled


def _show_unsettled(calls: tuple[UnsettledCall, ...], settled: dict[str, Settlement]) -> None:
    click.echo("calls that began and have no result:", err=True)
    for call in calls:
        word = settled.get(call.key) or settled.get(call.call_id) or "ask"
        click.echo(f"  {call.key}  {call.expert_key}: {call.tool_name} {call.args}  -> {word}", err=True)
