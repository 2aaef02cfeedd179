"""Asking a person at the terminal for a yes or a no."""

from __future__ import annotations

import click

from perstack.core.answers import yes_or_no


def confirm(question: str) -> bool:
    """Whether the person says yes, in any of the words that an approval takes; nothing typed is a no. Asks on stderr.

    Raises click.Abort if there is nobody: at the end of stdin, and by Ctrl-C.
    """
    while True:
        said = click.prompt(
            f"{question} [y/N]", default="no", show_default=False, prompt_suffix=" ", type=str, err=True
        )
        found = yes_or_no(str(said))
        if found is not None:
            return found.is_yes
        click.echo("say yes or no", err=True)
