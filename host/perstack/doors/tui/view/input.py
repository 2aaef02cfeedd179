"""What was typed before, and the names of files that may be completed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from perstack.core.plain import plain_text

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


class Files:
    """Files and folders of the workspace, by the beginning of a name.

    It is asked at each key. A part of a name is looked for in all folders once: what more is typed of it only leaves
    some of what was found. Names that a terminal cannot show, or that are no UTF-8, are left out.
    """

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._part = ""
        self._found: list[str] = []
        """Those below the workspace that have `_part` in them."""

    def forget(self) -> None:
        """No name is being typed: the next time files may be others."""
        self._part = ""

    def meant(self, beginning: str, most: int = 8) -> list[str]:
        """Those that are meant by it: by their path, or anywhere by a part of a name."""
        folder, _, name = beginning.rpartition("/")
        if ".." in Path(folder).parts or Path(beginning).is_absolute():
            return []
        found = sorted(one for one in _listed(self._workspace, folder) if one.rpartition("/")[2].startswith(name))
        if not found and name and not folder:
            return self._anywhere(name.casefold())[:most]
        return [one + "/" * _is_folder(self._workspace / one) for one in found[:most]]

    def _anywhere(self, part: str) -> list[str]:
        is_narrower = self._part and part.startswith(self._part)
        among = self._found if is_narrower else _below(self._workspace)
        self._part, self._found = part, sorted(one for one in among if part in one.casefold())
        return self._found


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # it stands where nothing may be looked at
        return False


def _is_plain(name: str) -> bool:
    return plain_text(name) == name and "\n" not in name


def _listed(workspace: Path, folder: str) -> Iterator[str]:
    try:
        with os.scandir(workspace / folder) as entries:
            names = [entry.name for entry in islice(entries, _MOST_LOOKED_AT)]
    except (OSError, ValueError):
        return
    for name in names:
        if not name.startswith(".") and _is_plain(name):
            yield f"{folder}/{name}" if folder else name


def _below(workspace: Path) -> Iterator[str]:
    left = _MOST_LOOKED_AT
    for folder, folders, files in os.walk(workspace):
        folders[:] = sorted(
            one for one in folders if not one.startswith(".") and one not in ("node_modules", "__pycache__")
        )
        within = Path(folder).relative_to(workspace)
        above = f"{within.as_posix()}/" if within.parts else ""
        for name in files:
            left -= 1
            if left < 0:
                return
            if not name.startswith(".") and _is_plain(path := above + name):
                yield path
