"""The path of this process's modules without the current folder, which a stranger may have written.

`python -m` and an empty entry of PYTHONPATH put the current folder on the path. A module there could be imported in
place of an optional one that is not installed, and a folder `x.dist-info` there names plugins, of perstack and of
libraries. So the command line takes the current folder, and folders in it, out when it starts. Functions of evaluators
and plugins that the user names may be there: `module_path` and `restore_current_folder` are for these.
"""

from __future__ import annotations

import os
import sys

_taken_out: list[str] = []


def take_out_current_folder() -> None:
    """Take the current folder and folders in it out of the module path, except folders of this interpreter."""
    try:
        current_folder = os.path.realpath(os.curdir, strict=True)
    except OSError:  # a deleted folder has no modules
        return
    commands, _, _ = sys.executable.rpartition(os.sep)
    installed = (sys.prefix, sys.base_prefix)

    def is_strangers(entry: str) -> bool:
        if not _is_below(os.path.realpath(entry), current_folder):
            return False
        return entry == commands or not any(_is_below(entry, root) for root in installed)

    _taken_out[:] = filter(is_strangers, sys.path)
    sys.path[:] = [entry for entry in sys.path if entry not in _taken_out]


def module_path() -> list[str]:
    """Return the module path, with what was taken out at its end."""
    return [*sys.path, *(entry for entry in _taken_out if entry not in sys.path)]


def restore_current_folder() -> None:
    """Put what was taken out at the end of the module path: the user has named modules that may be there."""
    sys.path[:] = module_path()


def is_taken_out(folder: str) -> bool:
    """Return whether a folder was taken out, also if it was restored since."""
    return bool(_taken_out) and os.path.realpath(folder) in map(os.path.realpath, _taken_out)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
