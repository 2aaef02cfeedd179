"""A copy of a project to try something in, which nothing of the project sees."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from stat import S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, S_ISDIR

from perstack.engine.setup import STATE_DIR
from perstack.errors import UsageError

_LEFT_OUT = (".git", ".venv", "node_modules", "__pycache__")
_COPIED = (S_IFREG, S_IFDIR, S_IFLNK)
"""Kinds of files: a socket has nothing to be copied, and a pipe would be waited for."""
_MOST_BYTES = 64 * 1024 * 1024


def copy_project(folder: Path, to: Path, leaves_out: Callable[[str], bool] = lambda name: False) -> None:
    """Copy the files, folders and links of a project without its state, and without names that `leaves_out` takes.

    Raises UsageError for one that is too large to be copied.
    """
    left = _MOST_BYTES

    def leave_out(base: str, names: list[str]) -> set[str]:
        nonlocal left
        out = set[str]()
        for name in names:
            status = Path(base, name).lstat()
            is_state = name == STATE_DIR and Path(base) == folder
            if name in _LEFT_OUT or is_state or leaves_out(name) or S_IFMT(status.st_mode) not in _COPIED:
                out.add(name)
            elif not S_ISDIR(status.st_mode):
                left -= status.st_size
        if left < 0:
            raise UsageError(
                f"{folder} is larger than {_MOST_BYTES >> 20} MB, and is copied to be tried: copy perstack.toml and"
                " what it needs into a folder of their own, and name it with --config"
            )
        return out

    shutil.copytree(folder, to, symlinks=True, ignore=leave_out)
