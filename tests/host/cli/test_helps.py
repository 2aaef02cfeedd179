"""What --help of each command says at a terminal of 80 columns, kept in screens/help.

`PERSTACK_KEEP_SCREENS=1` writes them anew; look at each before it is committed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from perstack.frontends.cli.main import perstack

HELPS = Path(__file__).parent / "screens" / "help"


def contexts(command: click.Command, parent: click.Context | None = None) -> Iterator[click.Context]:
    """Of a command and all below it."""
    settings = {**command.context_settings, "terminal_width": 80, "max_content_width": 80}
    context = click.Context(command, parent, info_name=command.name, **settings)
    yield context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from contexts(below, context)


EVERY = {context.command_path.replace(" ", "-"): context for context in contexts(perstack)}


@pytest.mark.parametrize("name", EVERY)
def test_a_help_says_what_it_did(name: str) -> None:
    said = f"{EVERY[name].get_help()}\n"
    kept = HELPS / f"{name}.txt"
    if os.environ.get("PERSTACK_KEEP_SCREENS"):
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(said)
    assert said == kept.read_text()


def test_every_help_that_is_kept_is_one_of_a_command() -> None:
    assert {path.stem for path in HELPS.iterdir()} == set(EVERY)
