"""The console script's first code: Ctrl-C ends it without a traceback while its modules are being imported."""

from __future__ import annotations

import gc
import sys

from perstack.system.module_path import take_out_current_folder


def entry() -> None:
    """Run the command line, and end the process with an exit status of `exit_statuses.EXIT_CODES`."""
    take_out_current_folder()
    gc.set_threshold(100_000)  # imports create many objects and free none: collections would take 5 % of the start
    try:
        from perstack.doors.cli.main import run_command_line

        run_command_line()
    except KeyboardInterrupt:
        sys.exit(130)
