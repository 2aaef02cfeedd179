"""`perstack plugins`."""

from __future__ import annotations

import contextlib
import io
import json
import os

import click

from perstack.engine.plugins import PluginInfo, load_plugins
from perstack.frontends.cli.terminal import Screen, data, err, table
from perstack.frontends.shared.words import count


@click.command("plugins")
@click.option("--json", "as_json", is_flag=True, help="All of it as one JSON object.")
def plugins_command(as_json: bool) -> None:
    """List the plugins that are installed, from which package, and what each brings.

    Installed packages bring plugins through the entry point group `perstack`; PERSTACK_PLUGINS names modules besides
    them. One that cannot be loaded is named with its error, and left out.
    """
    # a broken plugin is told of below, once
    with contextlib.redirect_stderr(io.StringIO()):
        infos = load_plugins(env=os.environ).infos
    if as_json:
        data(json.dumps({"plugins": [_to_json(info) for info in infos]}, ensure_ascii=False))
        return
    screen = Screen.of_stdout()
    rows = [(info.name, f"{info.package} {info.version}".rstrip(), _brings(info)) for info in infos]
    table(screen, ("plugin", "package", "brings"), rows)
    for info in infos:
        if info.error is not None:
            err(f"plugin {info.name} of {info.package} was left out: {info.error}")


def _brings(info: PluginInfo) -> str:
    if info.error is not None:
        return "nothing: it cannot be loaded"
    parts = [
        f"{noun}{'' if len(names) == 1 else 's'} {', '.join(names)}"
        for noun, names in (
            ("storage", info.storages),
            ("provider", info.providers),
            ("skill", info.skills),
            ("runtime", info.runtimes),
            ("dispatcher", info.dispatchers),
            ("format", info.formats),
        )
        if names
    ]
    if info.listeners:
        parts.append(count(info.listeners, "listener"))
    return "; ".join(parts) or "nothing yet"


def _to_json(info: PluginInfo) -> dict[str, object]:
    return {
        "name": info.name,
        "package": info.package,
        "version": info.version,
        "storages": list(info.storages),
        "providers": list(info.providers),
        "skills": list(info.skills),
        "runtimes": list(info.runtimes),
        "dispatchers": list(info.dispatchers),
        "formats": list(info.formats),
        "listeners": info.listeners,
        "error": info.error,
    }
