"""The console script's first code: Ctrl-C ends it without a traceback while its modules are being imported."""

from __future__ import annotations

import gc
import os
import sys


def entry() -> None:
    """Run the command line, and end the process with an exit status of `main.EXIT_CODES`."""
    _put_current_folder_last()
    gc.set_threshold(100_000)  # imports create many objects and free none: collecting them costs 5% of a start
    try:
        from perstack.doors.cli.main import entry as command

        command()
    except KeyboardInterrupt:
        sys.exit(130)


def _put_current_folder_last() -> None:
    """Move the current folder and folders in it to the end of the module path, except folders of this interpreter.

    `python -m` and an empty entry of PYTHONPATH put it first. A file `json.py` that an Expert wrote there would then be
    imported instead of ours. At the end it is still found: a plugin or an evaluator function may be in it.
    """
    try:
        current_folder = os.path.realpath(os.curdir, strict=True)
    except OSError:  # a deleted folder has no modules
        return
    commands, _, _ = sys.executable.rpartition(os.sep)
    installed = (sys.prefix, sys.base_prefix)

    def is_movable(entry: str) -> bool:
        if not _is_below(os.path.realpath(entry), current_folder):
            return False
        return entry == commands or not any(_is_below(entry, root) for root in installed)

    sys.path.sort(key=is_movable)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
