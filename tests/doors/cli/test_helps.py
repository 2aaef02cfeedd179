"""Output of each command's --help at a terminal of 80 columns, kept in screens/help.

`PERSTACK_KEEP_SCREENS=1` writes them again; look at each before it is committed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from perstack.doors.cli.main import perstack

HELPS = Path(__file__).parent / "screens" / "help"


def contexts(command: click.Command, parent: click.Context | None = None) -> Iterator[click.Context]:
    """Yield the contexts of a command and of all its subcommands."""
    settings = {**command.context_settings, "terminal_width": 80, "max_content_width": 80}
    context = click.Context(command, parent, info_name=command.name, **settings)
    yield context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from contexts(below, context)


def name_of(context: click.Context) -> str:
    return context.command_path.replace(" ", "-")


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    """Return every command's help, from a new process: a command keeps the help option created first."""
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=100, check=True)
    texts: dict[str, str] = json.loads(done.stdout)
    return texts


@pytest.mark.parametrize("name", [name_of(context) for context in contexts(perstack)])
def test_a_help_says_what_it_did(helps: dict[str, str], name: str) -> None:
    path = HELPS / f"{name}.txt"
    if os.environ.get("PERSTACK_KEEP_SCREENS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(helps[name])
    assert helps[name] == path.read_text()


def test_every_help_that_is_kept_is_one_of_a_command(helps: dict[str, str]) -> None:
    assert {path.stem for path in HELPS.iterdir()} == set(helps)


if __name__ == "__main__":
    print(json.dumps({name_of(context): f"{context.get_help()}\n" for context in contexts(perstack)}))


def test_help_of_run_loads_neither_models_of_data_nor_the_event_loop() -> None:
    code = "import sys; from perstack.doors.cli import run; print({'pydantic', 'asyncio'} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "set()\n"
