"""Where the command line begins: Ctrl-C ends it without a traceback while its modules are still being imported."""

from __future__ import annotations

import sys


def entry() -> None:
    """The console script. Ends the process with the exit status of `main.EXIT_CODES`."""
    try:
        from perstack.frontends.cli.main import entry as command

        command()
    except KeyboardInterrupt:
        sys.exit(130)
