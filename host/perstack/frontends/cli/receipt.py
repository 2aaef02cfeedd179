"""`perstack receipt`."""

from __future__ import annotations

import asyncio
import sys

import click

from perstack.config.env import read_env
from perstack.frontends.cli.export import write_output
from perstack.frontends.cli.options import PlaceOptions, place_options
from perstack.frontends.cli.terminal import err


@click.command("receipt")
@click.argument("job")
@click.option("--output", metavar="FILE", help="The file to write, which must not exist; stdout by default.")
@place_options
def receipt_command(
    job: str, output: str | None, config: str | None, workspace: str | None, storage: str | None
) -> None:
    """Write a receipt of JOB: a statement over the heads of its logs, to be kept where no writer of them can reach.

    It is an in-toto Statement in JSON, in a DSSE envelope that the key of `[audit] signingKey` has signed. Without such
    a key it is not signed, and stderr says so. `perstack verify --receipt` compares the logs with it.
    """
    place = PlaceOptions(config, workspace, storage)
    project = place.project(required=False)
    host = place.host(project, env=read_env(place.find().folder, project.env_path))

    async def written() -> bytes:
        async with host:
            return await host.receipt(await host.jobs.find(job))

    write_output(asyncio.run(written()) + b"\n", output)
    if host.jobs.audit.signer is None:
        err("note: the receipt is not signed; [audit] signingKey in perstack.toml names a key")
    sys.exit(0)
