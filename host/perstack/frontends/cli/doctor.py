"""`perstack doctor`."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict

import click

from perstack.config.settings import Overrides
from perstack.frontends.cli.options import PlaceOptions, Setup, place_options
from perstack.frontends.cli.terminal import Screen, data, out, table


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="All of it as one JSON object.")
@place_options
def doctor_command(as_json: bool, config: str | None, workspace: str | None, storage: str | None) -> None:
    """Say where programs of tools can run on this machine, and how each limit of [sandbox] is kept there.

    Exit status 1 if a runtime that perstack.toml names cannot be used here.
    """
    place = PlaceOptions(config, workspace, storage)
    setup = Setup(place, Overrides(), ())
    project = place.project(required=False)

    async def look() -> bool:
        async with place.host(project, env=setup.env(project)) as host:
            found = await host.experts.runtimes()
        if as_json:
            data(json.dumps({"runtimes": [asdict(one) for one in found]}, ensure_ascii=False))
        else:
            rows = [(one.name, "yes" if one.is_wanted else "-", one.problem or "can be used") for one in found]
            table(Screen.of_stdout(), ("runtime", "in perstack.toml", "here"), rows)
            for one in found:
                for key, how in one.limits.items():
                    out(f"{one.name}: `{key}` {how}")
        return all(not one.problem for one in found if one.is_wanted)

    sys.exit(0 if asyncio.run(look()) else 1)
