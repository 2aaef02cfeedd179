"""`perstack install`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import click

from perstack.config.settings import Overrides
from perstack.engine.install import Installed, InstallStep, OnInstall
from perstack.frontends.cli.options import Place, Setup, place_options
from perstack.frontends.cli.show import count, one_line

if TYPE_CHECKING:
    from rich.console import RenderableType


@click.command("install")
@click.argument("experts", nargs=-1, metavar="[EXPERT]...")
@click.option("--env-path", multiple=True, metavar="FILE", help="A .env file to read; may be given again.")
@place_options
def install_command(
    experts: tuple[str, ...], env_path: tuple[str, ...], config: str | None, workspace: str | None, storage: str | None
) -> None:
    """Ask every skill what it offers, and keep that in perstack.lock, beside perstack.toml.

    Of these Experts and their delegates, or of all. Exit status 1 if a skill failed; the others are locked.
    """

    async def main(on_step: OnInstall) -> Installed:
        async with Setup(Place(config, workspace, storage), Overrides(), env_path).host() as host:
            return await host.install(*experts, on_step=on_step)

    progress = _Table() if sys.stderr.isatty() else _Lines()
    try:
        with progress.shown():
            done = asyncio.run(main(progress.take))
    except KeyboardInterrupt:
        click.echo("interrupted: perstack.lock was not written", err=True)
        sys.exit(130)
    for step in done.failed:
        click.echo(f"error: {one_line(f'{step.skill}: {step.problem}')}", err=True)
    ready = len(done.skills) - len(done.failed)
    click.echo(f"{done.path}: {count(ready, 'skill')} locked")
    sys.exit(1 if done.failed else 0)


def _words(step: InstallStep) -> str:
    seconds = f"{step.duration_ms / 1000:.1f} s"
    match step.status:
        case "starting":
            return "starting"
        case "ready":
            return f"ready with {count(step.tools, 'tool')} in {seconds}"
        case "failed":
            return f"failed after {seconds}"


class _Lines:
    """A line for each step, where no terminal is."""

    def shown(self) -> AbstractContextManager[object]:
        return nullcontext()

    def take(self, step: InstallStep) -> None:
        click.echo(f"{step.skill}: {_words(step)}", err=True)


class _Table:
    """A row for each skill, kept up to date."""

    def __init__(self) -> None:
        self._steps: dict[str, InstallStep] = {}
        self._update: Callable[[RenderableType], None] = lambda table: None

    def shown(self) -> AbstractContextManager[object]:
        from rich.console import Console
        from rich.live import Live

        live = Live(console=Console(stderr=True), refresh_per_second=10)
        self._update = live.update
        return live

    def take(self, step: InstallStep) -> None:
        from rich.table import Table
        from rich.text import Text

        self._steps[step.skill] = step
        table = Table.grid(padding=(0, 2))
        style = {"starting": "dim", "ready": "green", "failed": "red"}
        for name, one in self._steps.items():
            table.add_row(Text(name), Text(_words(one), style=style[one.status]))
        self._update(table)
