"""What is in a Job's folder besides what is asked for by name."""

from __future__ import annotations

import re

from perstack_filesystem.folders import Folder

_BLOB = re.compile(r"[0-9a-f]{64}")
_UNFINISHED = re.compile(r"\..*\.tmp")
"""What `Folder.replace` writes before it has its name: left by a process that was killed."""


def blob_names(blobs: Folder) -> tuple[str, ...]:
    """The files in a folder of blobs that are named as blobs are."""
    return tuple(entry.name for entry in blobs.entries() if _BLOB.fullmatch(entry.name))


def remove_unfinished(folder: Folder) -> None:
    """Remove what writes have left that were cut short, in a folder of a Job and all below."""
    has_any = False
    for entry in folder.entries():
        if entry.is_dir(follow_symlinks=False):
            below = folder.find(entry.name)
            if below is not None:
                with below:
                    remove_unfinished(below)
        elif _UNFINISHED.fullmatch(entry.name):
            has_any = folder.remove(entry.name) or has_any
    if has_any:
        folder.sync()
