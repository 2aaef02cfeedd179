"""`perstack export`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from perstack.errors import UsageError
from perstack.frontends.cli.log_print import print_damage
from perstack.frontends.cli.options import PlaceOptions, place_options
from perstack.frontends.cli.terminal import err, stored
from perstack.frontends.shared.exporting import document_of, folders_of, lines_of, write_new_file, write_new_files
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
            write_output(lines_of(logs), output)
            return int(print_damage(logs))
        if form == "json":
            write_output(await document_of(host, job), output)
            return 0
        files = await folders_of(host, job, form)
        if output is None:
            raise UsageError(f"--format {form} writes folders: name a directory with --output DIR")
        place = write_new_files(files, Path(output), "--output", f"--output {output}")
        err(f"{place}: {count(len(files), 'file')}")
        return 0


def write_output(content: bytes, output: str | None) -> None:
    """To that file, which must not exist, or to stdout. Raises UsageError."""
    if output is None:
        stored(content)
    else:
        write_new_file(content, Path(output), f"--output {output}")
