"""The command `perstack acp`. The SDK is imported last, since only an extra installs it."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perstack.doors.cli.options import GroupedCommand, HostOptions, driving_options
from perstack.errors import UsageError

if TYPE_CHECKING:
    from perstack.host import Host
    from perstack.toml_reader.definition_with_includes import LoadedProject


@click.command("acp", cls=GroupedCommand)
@click.option("--expert", metavar="KEY", help="The Expert of new sessions; editors show all Experts as modes.")
@driving_options
def acp_command(expert: str | None, options: HostOptions) -> None:
    """Serve an Expert to an editor that speaks the Agent Client Protocol, over stdin and stdout."""
    if find_spec("acp") is None:
        raise UsageError("`perstack acp` needs the protocol's SDK: pip install 'perstack[acp]'")
    import asyncio

    from perstack_acp.agent import serve_acp

    def make_host(folder: Path) -> tuple[Host, LoadedProject]:
        folder_options = replace(options, workspace=None, folder=str(folder))
        loaded = folder_options.load()
        return replace(folder_options, is_attended=lambda: True).open_host(loaded.project), loaded

    asyncio.run(serve_acp(make_host, expert))
