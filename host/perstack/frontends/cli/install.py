"""`perstack install`."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import assert_never

import click

from perstack.config.settings import Overrides
from perstack.core.plain import one_line
from perstack.engine.install import Installed, InstallStep, OnInstall
from perstack.frontends.cli.next_steps import said
from perstack.frontends.cli.options import PlaceOptions, Setup, place_options
from perstack.frontends.cli.terminal import LiveRows, err, is_attended, out
from perstack.frontends.shared.words import count


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
        async with Setup(PlaceOptions(config, workspace, storage), Overrides(), env_path).host() as host:
            return await host.install(*experts, on_step=on_step)

    progress = _Table() if is_attended() else _Lines()
    try:
        with progress.shown():
            done = asyncio.run(main(progress.take))
    except KeyboardInterrupt:
        err("interrupted: perstack.lock was not written")
        sys.exit(130)
    for step in done.failed:
        problem = "" if step.problem is None else step.problem.said(said)
        err(f"error: {one_line(f'{step.skill}: {problem}')}")
    ready = len(done.skills) - len(done.failed)
    out(f"{done.path}: {count(ready, 'skill')} locked")
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
        case _:
            assert_never(step.status)


class _Lines:
    """A line for each step, where no terminal is."""

    def shown(self) -> AbstractContextManager[object]:
        return nullcontext()

    def take(self, step: InstallStep) -> None:
        err(f"{step.skill}: {_words(step)}")


class _Table:
    """A row for each skill, kept up to date."""

    def __init__(self) -> None:
        self._steps: dict[str, InstallStep] = {}
        self._rows = LiveRows()

    def shown(self) -> AbstractContextManager[object]:
        return self._rows.live

    def take(self, step: InstallStep) -> None:
        self._steps[step.skill] = step
        style = {"starting": "dim", "ready": "green", "failed": "red"}
        self._rows.update((name, _words(one), style[one.status]) for name, one in self._steps.items())
