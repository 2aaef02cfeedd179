"""The path of this process's modules without the current folder, which a stranger may have written.

`python -m`, and an empty or relative entry of PYTHONPATH, put the current folder on the path, whichever it is. A module
there could be imported in place of an optional one that is not installed, and a folder `x.dist-info` there names
plugins, of perstack and of libraries. So the command line takes such entries out when it starts. A folder in the
current one that the user has named, by an absolute entry of PYTHONPATH or an editable installation, stays, and is
searched last. Functions of evaluators and plugins that the user names may be in entries that were taken out:
`module_path` and `restore_current_folder` find them.
"""

from __future__ import annotations

import os
import sys

_taken_out: list[str] = []


def take_out_current_folder() -> None:
    """Take entries that mean the current folder out of the module path; move named folders inside it to the end."""
    try:
        current_folder = os.path.realpath(os.curdir, strict=True)
    except OSError:  # the current folder was deleted: it has no modules
        return
    scripts_folder, _, _ = sys.executable.rpartition(os.sep)
    installation_folders = (sys.prefix, sys.base_prefix)
    entries = list(sys.path)
    _taken_out[:] = []
    # the interpreter's own first entry, unless it is the folder of the console script
    is_first_unnamed = not sys.flags.safe_path and entries[:1] != [scripts_folder]
    if is_first_unnamed and entries and os.path.realpath(entries[0]) == current_folder:
        _taken_out.append(entries.pop(0))
    relative_entries = _relative_entries()
    _taken_out.extend(entry for entry in entries if entry in relative_entries)

    def is_in_current_folder(entry: str) -> bool:
        is_installed = any(_is_below(entry, root) for root in installation_folders)
        return _is_below(os.path.realpath(entry), current_folder) and not is_installed

    sys.path[:] = sorted((entry for entry in entries if entry not in relative_entries), key=is_in_current_folder)


def _relative_entries() -> set[str]:
    """Return the entries of PYTHONPATH that depend on the current folder, as the interpreter writes them."""
    value = os.environ.get("PYTHONPATH", "")
    entries = value.split(os.pathsep) if value else []
    absolute_entries = {entry for entry in entries if os.path.isabs(entry)}  # noqa: PTH117 - no file is meant
    return {"", *(os.path.abspath(entry) for entry in entries)} - absolute_entries  # noqa: PTH100 - as site does


def module_path() -> list[str]:
    """Return the module path, with the entries that were taken out at its end."""
    return [*sys.path, *(entry for entry in _taken_out if entry not in sys.path)]


def restore_current_folder() -> None:
    """Append the entries that were taken out to the module path: the user has named modules that may be there."""
    sys.path[:] = module_path()


def is_taken_out(folder: str) -> bool:
    """Return whether a folder was taken out, even if it was restored since."""
    return bool(_taken_out) and os.path.realpath(folder) in map(os.path.realpath, _taken_out)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
