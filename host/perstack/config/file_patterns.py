"""Files that a pattern of a definition matches, within bounds: a pattern may lead into a whole disk."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from fnmatch import translate
from pathlib import Path, PurePath

MAX_EXAMINED_NAMES = 500_000  # maximum names of files and folders, for all patterns of a definition together
MAX_EXAMINED_OUTSIDE = 10_000  # maximum names for a pattern that leads out of the folder of its definition
MAX_FOLDER_DEPTH = 100  # maximum nesting of folders for `**`: a program may have created a thousand levels
_START_FOLDER = ""
_WILDCARD = re.compile(r"[*?[]")


class TooManyNames(ValueError):
    """Error of a pattern that examines more names than any project has. Its message is a predicate."""


class SearchBudget:
    """Number of names of files and folders that searches may still examine."""

    def __init__(self) -> None:
        self.remaining = MAX_EXAMINED_NAMES

    def limit_for_pattern(self, parts: tuple[str, ...]) -> int:
        """Return the limit for one pattern, a low one if it leads out of its folder, to a whole disk perhaps."""
        is_outside = parts[:1] == ("/",) or ".." in parts
        return min(self.remaining, MAX_EXAMINED_OUTSIDE) if is_outside else self.remaining


def matches(pattern: str, folder: Path, budget: SearchBudget | None = None) -> list[str]:
    """Return the files that a pattern matches as in `glob`, relative to `folder`, sorted. Raises TooManyNames."""
    budget, parts = budget or SearchBudget(), PurePath(pattern).parts
    search = _PatternSearch(folder, budget.limit_for_pattern(parts))
    try:
        names = set(search.matches_below(_START_FOLDER, parts))
    finally:
        budget.remaining -= search.examined
    return sorted(name for name in names if (folder / name).is_file())


class _PatternSearch:
    """Search for the files of one pattern, which counts the names that it examines."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self.examined = 0

    def matches_below(self, subfolder: str, parts: tuple[str, ...]) -> Generator[str]:
        """Yield the matches of the remaining parts of a pattern in a folder."""
        if not parts:
            yield subfolder
            return
        first, rest = parts[0], parts[1:]
        if first == "**":
            yield from self.matches_below(subfolder, rest or ("*",))
            is_deep = subfolder.count(os.sep) >= MAX_FOLDER_DEPTH
            for name, is_folder in () if is_deep else self._list_names(subfolder):
                if is_folder and not name.startswith("."):
                    yield from self.matches_below(os.path.join(subfolder, name), parts)  # noqa: PTH118 - seen from the folder
        elif _WILDCARD.search(first) is None:
            path = os.path.join(subfolder, first)  # noqa: PTH118
            if os.path.lexists(self._folder / path):
                yield from self.matches_below(path, rest)
        else:
            matches_part = re.compile(translate(first)).match
            for name, is_folder in self._list_names(subfolder):
                if (
                    matches_part(name)
                    and (first.startswith(".") or not name.startswith("."))
                    and (is_folder or not rest)
                ):
                    yield from self.matches_below(os.path.join(subfolder, name), rest)  # noqa: PTH118

    def _list_names(self, subfolder: str) -> list[tuple[str, bool]]:
        """Return the names in a folder, each with True for a folder. Raises TooManyNames."""
        names: list[tuple[str, bool]] = []
        try:
            with os.scandir(self._folder / subfolder) as entries:
                for entry in entries:
                    if self.examined == self._limit:
                        raise TooManyNames(f"looks at more than {self._limit} files and folders: name a smaller folder")
                    self.examined += 1
                    names.append((entry.name, entry.is_dir(follow_symlinks=False) or self._is_inner_link(entry)))
        except OSError:
            return names
        return names

    def _is_inner_link(self, entry: os.DirEntry[str]) -> bool:
        """Return whether a link leads to a folder inside the searched one; a pattern follows no other link."""
        if not entry.is_symlink():
            return False
        target = Path(os.path.realpath(entry.path))
        return target.is_relative_to(os.path.realpath(self._folder)) and target.is_dir()
