"""Folders that a test works in, and that nothing is left of."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from perstack.errors import UsageError

MOST_BYTES = 64 << 20
MOST_FILES = 20_000


def copy_folder(folder: Path, to: Path) -> None:
    """Copy a folder with all that is in it.

    Raises UsageError for one that is too large, and for a link in it that leads out of it: what is written through it
    would not be written to the copy.
    """
    left, number = MOST_BYTES, 0
    root = folder.resolve()
    for base, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(base, name)
            found = path.lstat()
            number += 1
            left -= found.st_size if stat.S_ISREG(found.st_mode) else 0
            if left < 0 or number > MOST_FILES:
                raise UsageError(
                    f"{folder} has more than {MOST_BYTES >> 20} MiB or {MOST_FILES:,} files, and is copied for each"
                    " Job: give the test a smaller one"
                )
            if stat.S_ISLNK(found.st_mode):
                leads = path.readlink()
                if leads.is_absolute() or not path.resolve().is_relative_to(root):
                    raise UsageError(f"{path} is a link that leads out of {folder}: put a file in its place")
            elif not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
                raise UsageError(f"{path} is neither a file nor a folder: take it out")
    shutil.copytree(folder, to, symlinks=True)


def remove_folder(folder: Path) -> None:
    """Remove it as far as that can be done: a model may have taken rights away."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        for base, folders, _ in os.walk(folder):
            for name in folders:
                if not (path := Path(base, name)).is_symlink():
                    path.chmod(0o700)
        shutil.rmtree(folder, ignore_errors=True)
