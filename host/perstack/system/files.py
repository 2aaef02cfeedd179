"""For storages that keep files: a folder that its user alone may look into, and that git leaves alone."""

from __future__ import annotations

import os
from pathlib import Path

from perstack.ports.durable import sync

FOLDER_MODE = 0o700
FILE_MODE = 0o600
"""State has what models were sent and tools returned: nobody else's business."""


def make_state_folder(path: Path) -> bool:
    """Make the folder, and those above it; false if it is there, and then it is left as it is.

    Its name survives power loss when this returns. Raises OSError.
    """
    if path.is_dir():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(FOLDER_MODE)
    except FileExistsError:
        if not path.is_dir():
            raise
        return False
    (path / ".gitignore").write_text("*\n")
    sync_directory(path.parent)
    return True


def sync_directory(path: Path) -> None:
    """Make the names in it survive power loss. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(fd)
    finally:
        os.close(fd)
