"""`perstack start`."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

import click

from perstack.errors import UsageError
from perstack.frontends.cli.options import Setup, driving_options


@click.command("start")
@click.argument("expert", required=False)
@click.argument("query", required=False)
@click.option("--job", metavar="JOB", help="Show this Job: resume it, answer it, or ask for more.")
@click.option("--no-mouse", is_flag=True, help="Leave the mouse to the terminal.")
@driving_options
def start_command(expert: str | None, query: str | None, job: str | None, no_mouse: bool, setup: Setup) -> None:
    """Work with Experts in a full-screen program: choose one, watch it, answer it, look at past Jobs.

    With EXPERT and QUERY it begins at once.
    """
    if find_spec("textual") is None:
        raise UsageError("`perstack start` needs the library that draws it: pip install 'perstack[start]'")
    _check_terminal()
    loaded = setup.place.load()
    host = setup.host(loaded.project)
    if expert is not None:
        host.experts.get(expert)
    from perstack.frontends.tui.run import run_start

    sys.exit(run_start(host, loaded, expert=expert, query=query, job=job, mouse=not no_mouse))


def _check_terminal() -> None:
    """Raises UsageError where nothing can be drawn."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("`perstack start` needs a terminal: use `perstack run` in a pipe")
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
        raise UsageError("this terminal cannot be drawn on (TERM is dumb): use `perstack run`")
