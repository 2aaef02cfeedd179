"""`perstack export`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import click

from perstack.config.check import suggestion
from perstack.errors import UsageError
from perstack.frontends.cli.log_print import print_damage
from perstack.frontends.cli.log_select import in_order
from perstack.frontends.cli.options import PlaceOptions, place_options
from perstack.frontends.cli.terminal import err, stored
from perstack.frontends.shared.words import count
from perstack.host import Host


@click.command("export")
@click.argument("job")
@click.option(
    "--format",
    "form",
    metavar="FORMAT",
    required=True,
    help="jsonl: the events as they are, by time. json: one document with summary, Runs, checkpoints and messages. "
    "Or the folders of another program, by a format that `perstack plugins` lists.",
)
@click.option(
    "--output",
    metavar="PATH",
    help="The file to write, which must not exist; stdout by default. For folders, the directory to write into.",
)
@place_options
def export_command(
    job: str, form: str, output: str | None, config: str | None, workspace: str | None, storage: str | None
) -> None:
    """Write JOB in another form."""
    host = PlaceOptions(config, workspace, storage).reader()
    sys.exit(asyncio.run(_export(host, job, form, output)))


async def _export(host: Host, job: str, form: str, output: str | None) -> int:
    async with host:
        job = await host.jobs.find(job)
        if form == "jsonl":
            logs = await host.logs(job)
            write_output(b"".join(entry.line + b"\n" for entry in in_order(logs)), output)
            return int(print_damage(logs))
        if form == "json":
            document = await host.document(job)
            write_output(json.dumps(document, ensure_ascii=False).encode() + b"\n", output)
            return 0
        _check_format(form, host.jobs.plugins.formats)
        if output is None:
            raise UsageError(f"--format {form} writes folders: name a directory with --output DIR")
        _write_files(await host.export(form, job), Path(output))
        return 0


def write_output(content: bytes, output: str | None) -> None:
    """To that file, which must not exist, or to stdout. Raises UsageError."""
    if output is None:
        stored(content)
        return
    try:
        with Path(output).open("xb") as file:
            file.write(content)
    except FileExistsError as error:
        raise UsageError(f"--output {output} exists: choose another name, or remove it first") from error
    except OSError as error:
        raise UsageError(f"--output {output} cannot be written: {error.strerror}") from error


def _check_format(form: str, installed: Iterable[str]) -> None:
    known = sorted({"jsonl", "json", *installed})
    if form not in known:
        raise UsageError(f"no format {form!r} is installed; there are: {', '.join(known)}{suggestion(form, known)}")


def _write_files(files: Mapping[str, bytes], folder: Path) -> None:
    place = folder / os.path.commonpath([*files])
    if place.exists():
        raise UsageError(f"{place} exists: choose another directory for --output, or remove it first")
    try:
        for name, data in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    except OSError as error:
        raise UsageError(f"--output {folder} cannot be written: {error.strerror}") from error
    err(f"{place}: {count(len(files), 'file')}")
