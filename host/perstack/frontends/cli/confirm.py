"""Asking a person at the terminal for a yes or a no."""

from __future__ import annotations

from perstack.core.answers import yes_or_no
from perstack.frontends.cli.terminal import err, prompt


def confirm(question: str) -> bool:
    """Whether the person says yes, in any of the words that an approval takes; nothing typed is a no. Asks on stderr.

    Raises click.Abort if there is nobody: at the end of stdin, and by Ctrl-C.
    """
    while True:
        found = yes_or_no(prompt(f"{question} [y/N]", default="no"))
        if found is not None:
            return found.is_yes
        err("say yes or no")
