"""What was typed before, and the names of files that may be completed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

_AT = re.compile(r"(?:^|\s)@([^\s@]*)\Z")
_MOST = 200
"""Of what was typed before."""

_MOST_LOOKED_AT = 5_000
"""Entries of folders."""


class Typed:
    """What was typed before, the latest last; a person goes back in it and forth."""

    def __init__(self, before: Iterable[str] = ()) -> None:
        self._texts = list(before)[-_MOST:]
        self._at = len(self._texts)
        self._draft = ""

    def keep(self, text: str) -> None:
        """It was sent."""
        if text.strip() and text not in self._texts[-1:]:
            self._texts = [*self._texts, text][-_MOST:]
        self._at = len(self._texts)

    def back(self, now: str) -> str | None:
        """What was typed before that; None if there is nothing."""
        if self._at == len(self._texts):
            self._draft = now
        if not self._at:
            return None
        self._at -= 1
        return self._texts[self._at]

    def forth(self) -> str | None:
        """What was typed after that, and at last what was being typed."""
        if self._at == len(self._texts):
            return None
        self._at += 1
        return self._draft if self._at == len(self._texts) else self._texts[self._at]


def named_at(before: str) -> str | None:
    """The beginning of a file's name after an `@`, at the end of what stands before the cursor; None if none is."""
    found = _AT.search(before)
    return None if found is None else found[1]


def completions(workspace: Path, beginning: str, most: int = 8) -> list[str]:
    """Files and folders of the workspace that are meant by it: by its path, or anywhere by a part of a name."""
    folder, _, name = beginning.rpartition("/")
    if ".." in Path(folder).parts or Path(beginning).is_absolute():
        return []
    found = [one for one in _listed(workspace, folder) if one.rpartition("/")[2].startswith(name)]
    found = sorted(one + "/" * (workspace / one).is_dir() for one in found)
    if not found and name and not folder:
        found = sorted(one for one in _below(workspace) if name.casefold() in one.casefold())
    return found[:most]


def _listed(workspace: Path, folder: str) -> Iterator[str]:
    try:
        names = [entry.name for entry in islice(os.scandir(workspace / folder), _MOST_LOOKED_AT)]
    except (OSError, ValueError):
        return
    for name in names:
        if not name.startswith("."):
            yield f"{folder}/{name}" if folder else name


def _below(workspace: Path) -> Iterator[str]:
    left = _MOST_LOOKED_AT
    for folder, folders, files in os.walk(workspace):
        folders[:] = sorted(
            one for one in folders if not one.startswith(".") and one not in ("node_modules", "__pycache__")
        )
        for name in files:
            left -= 1
            if left < 0:
                return
            if not name.startswith("."):
                yield Path(folder, name).relative_to(workspace).as_posix()
