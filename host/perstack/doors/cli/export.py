"""The commands `perstack export` and `perstack record`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import click

from perstack.core.base.text import REDACTED
from perstack.core.recordings.model import FORMAT, Recording
from perstack.doors.cli.log_print import print_damage
from perstack.doors.cli.options import HostOptions, place_options, run_with, to_option
from perstack.doors.cli.terminal import print_err, write_bytes
from perstack.doors.shared.export import document_of, folders_of, lines_of, write_new_file, write_new_files
from perstack.doors.shared.text import count
from perstack.errors import DefinitionError, UsageError
from perstack.host import Host
from perstack.system.files import open_for_reading, replace_private_file


@click.command("export")
@click.argument("job")
@click.option(
    "--format",
    "form",
    metavar="FORMAT",
    required=True,
    help=(
        "jsonl: the stored events, by time. json: one document with summary, Runs, checkpoints and messages. "
        "Or a format of another program, which `perstack plugins` lists."
    ),
)
@to_option(
    "PATH",
    "The file to write, which must not exist; by default stdout. For a format with folders: the folder to write into.",
)
@place_options
def export_command(job: str, form: str, to: str | None, options: HostOptions) -> None:
    """Export JOB in another format."""
    sys.exit(options.look(lambda host: _export(host, job, form, to)))


async def _export(host: Host, job: str, form: str, to: str | None) -> int:
    job = await host.jobs.find(job)
    if form == "jsonl":
        logs = await host.jobs.logs(job)
        write_output(lines_of(logs), to)
        return int(print_damage(logs))
    if form == "json":
        write_output(await document_of(host, job), to)
        return 0
    files = await folders_of(host, job, form)
    if to is None:
        raise UsageError(f"--format {form} writes folders: name a directory with --to DIR")
    folder = write_new_files(files, Path(to), "--to", f"--to {to}")
    print_err(f"{folder}: {count(len(files), 'file')}")
    return 0


def write_output(content: bytes, to: str | None) -> None:
    """Write the content to a new file, or to stdout without one. Raises UsageError."""
    if to is None:
        write_bytes(content)
    else:
        write_new_file(content, Path(to), f"--to {to}")


_HEAD_BYTES = 200  # bytes at the beginning of a recording that contain its format's name


@click.command("record")
@click.argument("job")
@click.option(
    "--to",
    "file",
    metavar="FILE",
    required=True,
    help="The file to write, which may replace an older recording; `-` for stdout.",
)
@place_options
def record_command(job: str, file: str, options: HostOptions) -> None:
    """Save JOB as a recording: replies, tool results, answers, approvals and delegates, in a JSON file.

    `perstack run … --recording FILE` plays it, without a key, a server or a person. Secrets are removed. An unfinished
    Job is recorded up to its last event.
    """
    path = None if file == "-" else Path(file)
    if path is not None:
        _check_replaceable(path)
    host = _host(options)

    async def record(host: Host) -> Recording:
        return await host.exports.record(await host.jobs.find(job))

    recording = run_with(host, record)
    data = recording.to_bytes()
    if path is None:
        write_bytes(data)
    else:
        _write(path, data)
    _tell(recording, data, file)
    sys.exit(0)


def _host(options: HostOptions) -> Host:
    """Return a Host that knows the variables of `.env` files, whose secrets must be removed."""
    try:
        project = options.project(required=False)
    except DefinitionError:
        return options.reader()
    return options.host_of(project, env=options.env(project))


def _check_replaceable(path: Path) -> None:
    head = b""
    with suppress(OSError), open_for_reading(path, follow=True) as file:
        head = os.read(file, _HEAD_BYTES)
    if path.is_dir() or (path.exists() and FORMAT.partition("/")[0].encode() not in head):
        raise UsageError(f"--to {path} is there already, and is no recording: choose another name, or remove it first")


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_private_file(path, data)
        path.chmod(0o644)  # the file is meant to be shared, and contains no secret
    except OSError as error:
        raise UsageError(f"--to {path} cannot be written: {error.strerror}") from error


def _tell(recording: Recording, data: bytes, file: str) -> None:
    replies = sum(len(run.replies) for run in recording.runs)
    calls = sum(len(run.calls()) for run in recording.runs)
    counts = [count(len(recording.runs), "Run"), count(replies, "generation"), count(calls, "call")]
    print_err(f"{'recorded' if file == '-' else file}: {', '.join(counts)}, {len(data):,} bytes")
    if recording.status != "completed":
        print_err(f"note: Job {recording.job} is not finished ({recording.status}); it is recorded as far as it got")
    number = data.count(REDACTED.encode())
    if number:
        print_err(f"note: what may be secret was taken out in {count(number, 'place')}: {REDACTED} stands there")
