"""`perstack record`."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

import click

from perstack.config.env import read_env
from perstack.core.messages import REDACTED
from perstack.core.recording.model import FORMAT, Recording
from perstack.errors import DefinitionError, UsageError
from perstack.frontends.cli.options import PlaceOptions, place_options
from perstack.frontends.cli.terminal import err, stored
from perstack.frontends.shared.words import count
from perstack.host import Host
from perstack.ports.private_file import replace_private_file

_HEAD = 200
"""Bytes in which a recording says that it is one."""


@click.command("record")
@click.argument("job")
@click.option(
    "--to",
    "file",
    metavar="FILE",
    required=True,
    help="The file to write; an older recording there is replaced. `-`: stdout.",
)
@place_options
def record_command(job: str, file: str, config: str | None, workspace: str | None, storage: str | None) -> None:
    """Keep JOB as a recording: replies, results of tools, answers, approvals and delegates, in one JSON file.

    `perstack run … --recording FILE` plays it, with no key, no server and nobody there. Secrets are taken out. A Job
    that is not finished is recorded as far as it got.
    """
    path = None if file == "-" else Path(file)
    if path is not None:
        _check_replaceable(path)
    host = _host(PlaceOptions(config, workspace, storage))

    async def recorded() -> Recording:
        async with host:
            return await host.record(await host.jobs.find(job))

    recording = asyncio.run(recorded())
    data = recording.to_bytes()
    if path is None:
        stored(data)
    else:
        _write(path, data)
    _tell(recording, data, file)
    sys.exit(0)


def _host(place: PlaceOptions) -> Host:
    """With the variables of `.env` files, whose secrets are to be known."""
    try:
        project = place.project(required=False)
    except DefinitionError:
        return place.reader()
    return place.host(project, env=read_env(place.find().folder, project.env_path))


def _check_replaceable(path: Path) -> None:
    head = b""
    with suppress(OSError), path.open("rb") as file:
        head = file.read(_HEAD)
    if path.is_dir() or (path.exists() and FORMAT.partition("/")[0].encode() not in head):
        raise UsageError(f"--to {path} is there already, and is no recording: choose another name, or remove it first")


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_private_file(path, data)
        path.chmod(0o644)  # it is to be shared, and holds no secret
    except OSError as error:
        raise UsageError(f"--to {path} cannot be written: {error.strerror}") from error


def _tell(recording: Recording, data: bytes, file: str) -> None:
    replies = sum(len(run.replies) for run in recording.runs)
    calls = sum(len(run.calls()) for run in recording.runs)
    whole = [count(len(recording.runs), "Run"), count(replies, "generation"), count(calls, "call")]
    err(f"{'recorded' if file == '-' else file}: {', '.join(whole)}, {len(data):,} bytes")
    if recording.status != "completed":
        err(f"note: Job {recording.job} is not finished ({recording.status}); it is recorded as far as it got")
    hidden = data.count(REDACTED.encode())
    if hidden:
        err(f"note: what may be secret was taken out in {count(hidden, 'place')}: {REDACTED} stands there")
