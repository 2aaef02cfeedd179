"""`perstack resume`."""

from __future__ import annotations

import sys
from collections.abc import Awaitable
from pathlib import Path

import click

from perstack.config.env import read_env
from perstack.core.events import Settlement
from perstack.core.job import JobSummary
from perstack.engine.emit import OnEvent
from perstack.engine.read import UnsettledCall
from perstack.errors import UsageError
from perstack.frontends.cli.drive import drive
from perstack.frontends.cli.options import Place, model_options, overrides_of, place_options
from perstack.host import Host

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
@model_options
@place_options
def resume_command(
    job: str | None,
    settle: tuple[str, ...],
    stream: bool,
    provider: str | None,
    model: str | None,
    reasoning_budget: str | None,
    max_steps: int | None,
    max_retries: int | None,
    timeout: int | None,
    env_path: tuple[str, ...],
    config: str | None,
    workspace: str,
    storage: str | None,
) -> None:
    """Go on with JOB (the latest, if none is given): the same Runs, as they were started."""
    settled = _settlements(settle)
    place = Place(config, workspace, storage)
    project = place.project(required=True)
    env = read_env(Path(workspace), env_path or project.env_path)
    overrides = overrides_of(provider, model, reasoning_budget, max_steps, max_retries, timeout)
    host = Host(project, workspace=workspace, storage=storage, env=env, overrides=overrides)

    def work(on_event: OnEvent) -> Awaitable[JobSummary]:
        return host.resume(
            job,
            max_steps=max_steps,
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
