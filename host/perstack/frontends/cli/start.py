"""Where the command line begins: Ctrl-C ends it without a traceback while its modules are still being imported."""

from __future__ import annotations

import gc
import sys


def entry() -> None:
    """The console script. Ends the process with the exit status of `main.EXIT_CODES`."""
    gc.set_threshold(100_000)  # imports make many objects and free none: collecting them costs 5% of a start
    try:
        from perstack.frontends.cli.main import entry as command

        command()
    except KeyboardInterrupt:
        sys.exit(130)
