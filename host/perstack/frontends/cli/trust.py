"""`perstack trust`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from perstack.config.settings import Overrides
from perstack.core.plain import one_line
from perstack.engine.executed import Agreed, Item, addresses, digests_of, executed
from perstack.engine.trust import TrustStore, folder_of
from perstack.errors import UsageError
from perstack.frontends.cli.confirm import confirm
from perstack.frontends.cli.options import CONFIG, WORKSPACE, PlaceOptions, Setup
from perstack.frontends.cli.terminal import err, out


@click.command("trust")
@click.option("--show", is_flag=True, help="Only show what there is to agree to, and what has changed.")
@click.option("--revoke", is_flag=True, help="Take back what was agreed to in this folder.")
@click.option("--yes", is_flag=True, help="Agree without being asked.")
@click.option("--config", metavar="FILE", help=CONFIG)
@click.option("--workspace", metavar="DIR", help=WORKSPACE)
def trust_command(show: bool, revoke: bool, yes: bool, config: str | None, workspace: str | None) -> None:
    """Agree to what perstack.toml has executed, and to the addresses that .env names.

    A server that runs, `mcp` or `acp`, then uses a changed definition. Exit status 0 if it is agreed to, 1 if not.
    """
    if sum((show, revoke, yes)) > 1:
        raise UsageError("--show, --revoke and --yes exclude each other: choose one")
    place = PlaceOptions(config, workspace, None)
    if revoke and config is None and place.find().config is None:
        raise UsageError("there is no perstack.toml here, so nothing is trusted: go to the folder of one")
    project = place.load().project
    found, store = place.find(), TrustStore.of_user()
    folder = folder_of(project, found.folder)
    if revoke:
        was_there = store.remove(folder)
        err(f"no longer trusted: {one_line(str(folder))}" if was_there else "nothing was agreed to here")
        return
    env = Setup(place, Overrides(), ()).env(project, confirm=False)
    items = (*executed(project), *addresses(env))
    trust = store.read(folder)
    agreed = () if trust is None else trust.items
    _print(str(folder), items, agreed)
    if show:
        return
    if trust is not None and digests_of(items) == digests_of(agreed):
        err("all of this is trusted already")
        return
    if not yes and not _asks():
        err("nothing was changed")
        sys.exit(1)
    store.write(folder, [item.kept() for item in items])
    err("trusted")


def _asks() -> bool:
    if not sys.stdin.isatty():
        raise UsageError("nobody can be asked here: look at it with --show, and agree with --yes")
    return confirm("Agree to all of this?")


def _print(folder: str, items: Sequence[Item], agreed: Sequence[Agreed]) -> None:
    """What there is, a line each: `+` is new, `-` is gone."""
    before, now = digests_of(agreed), digests_of(items)
    out(f"{one_line(folder)}:")
    for item in items:
        out(f"{' ' if item.digest in before else '+'} {one_line(item.shown)}  ({one_line(item.name)})")
    for one in agreed:
        if one.digest not in now:
            out(f"- {one.kind}  ({one_line(one.name)})")
    if not items:
        out("  nothing is executed, and no address is named")
