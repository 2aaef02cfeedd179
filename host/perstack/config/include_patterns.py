"""Expand patterns of `include` into files, without scanning a whole disk."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from fnmatch import translate
from pathlib import Path, PurePath

MOST_LOOKED_AT = 500_000  # maximum number of names of files and folders
MOST_LEVELS = 100  # maximum nesting of folders for `**`: a program may have created a thousand levels

_HERE = ""
_WILDCARD = re.compile(r"[*?[]")


class TooMuch(ValueError):
    """Pattern that matches or examines more than any project has."""


def matches(pattern: str, folder: Path) -> list[str]:
    """Return the files that a pattern matches as in `glob`, relative to `folder`, sorted. Raises TooMuch."""
    looking = _Looking(folder)
    found = set(looking.below(_HERE, PurePath(pattern).parts))
    return sorted(name for name in found if (folder / name).is_file())


class _Looking:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._left = MOST_LOOKED_AT

    def below(self, place: str, parts: tuple[str, ...]) -> Generator[str]:
        """Yield the matches of the remaining parts of a pattern in a folder."""
        if not parts:
            yield place
            return
        first, rest = parts[0], parts[1:]
        if first == "**":
            yield from self.below(place, rest or ("*",))
            is_deep = place.count(os.sep) >= MOST_LEVELS
            for name, is_folder in () if is_deep else self._names(place):
                if is_folder and not name.startswith("."):
                    yield from self.below(os.path.join(place, name), parts)  # noqa: PTH118 - seen from the folder
        elif _WILDCARD.search(first) is None:
            found = os.path.join(place, first)  # noqa: PTH118
            if os.path.lexists(self._folder / found):
                yield from self.below(found, rest)
        else:
            wanted = re.compile(translate(first)).match
            for name, is_folder in self._names(place):
                if wanted(name) and (first.startswith(".") or not name.startswith(".")) and (is_folder or not rest):
                    yield from self.below(os.path.join(place, name), rest)  # noqa: PTH118

    def _names(self, place: str) -> list[tuple[str, bool]]:
        found: list[tuple[str, bool]] = []
        try:
            with os.scandir(self._folder / place) as entries:
                for entry in entries:
                    self._left -= 1
                    if self._left < 0:
                        raise TooMuch(f"looks at more than {MOST_LOOKED_AT} files and folders: name a smaller folder")
                    found.append((entry.name, entry.is_dir()))
        except OSError:
            return found
        return found
