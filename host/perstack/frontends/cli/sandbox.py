"""`perstack sandbox`."""

from __future__ import annotations

import asyncio
import sys

import click

from perstack.config.settings import Overrides
from perstack.frontends.cli.options import PlaceOptions, Setup, place_options
from perstack.frontends.cli.terminal import err


@click.command("sandbox")
@click.argument("expert")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--runtime", metavar="NAME", help="Where programs of tools run; `perstack plugins` lists them.")
@click.option("--env-path", multiple=True, metavar="FILE", help="A .env file to read; may be given again.")
@place_options
def sandbox_command(
    expert: str,
    command: tuple[str, ...],
    runtime: str | None,
    env_path: tuple[str, ...],
    config: str | None,
    workspace: str | None,
    storage: str | None,
) -> None:
    """Run COMMAND as the exec tool of EXPERT would: in its runtime, with its variables and limits.

    Write it after `--`. Its input and output are those of this command, and so is its exit status; 128 and the number
    of the signal if one has ended it.
    """
    host = Setup(PlaceOptions(config, workspace, storage), Overrides(runtime=runtime), env_path).host()

    async def run() -> int:
        async with host:
            tried = await host.experts.run_program(expert, command)
        if tried.ending.limit:
            err(f"ended by the sandbox: {tried.ending.limit}")
        return tried.status if tried.status >= 0 else 128 - tried.status

    sys.exit(asyncio.run(run()))
