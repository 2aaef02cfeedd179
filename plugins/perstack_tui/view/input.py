"""The history of typed texts, and completion of file names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from perstack.core.base.text import plain_text

_AT = re.compile(r"(?:^|\s)@([^\s@]*)\Z")
_MAX_TEXTS = 200  # maximum texts in the history
_MAX_ENTRIES = 5_000  # maximum directory entries that are read


class InputHistory:
    """The history of typed texts, the latest last, with a current position."""

    def __init__(self, earlier: Iterable[str] = ()) -> None:
        """Start with earlier texts, the latest last."""
        self._texts = list(earlier)[-_MAX_TEXTS:]
        self._position = len(self._texts)
        self._draft = ""

    def add(self, text: str) -> None:
        """Add a sent text and go to the end."""
        if text.strip() and text not in self._texts[-1:]:
            self._texts = [*self._texts, text][-_MAX_TEXTS:]
        self._position = len(self._texts)

    def previous(self, draft: str) -> str | None:
        """Return the previous text; None at the beginning. `draft` is the text being typed."""
        if self._position == len(self._texts):
            self._draft = draft
        if not self._position:
            return None
        self._position -= 1
        return self._texts[self._position]

    def next_text(self) -> str | None:
        """Return the next text, after the last one the draft; None at the end."""
        if self._position == len(self._texts):
            return None
        self._position += 1
        return self._draft if self._position == len(self._texts) else self._texts[self._position]


def partial_file_name(before: str) -> str | None:
    """Return the beginning of a file name after an `@` directly before the cursor; None without one."""
    match = _AT.search(before)
    return None if match is None else match[1]


class FileCompletion:
    """Completion of workspace paths by a beginning or part of a name. Names with control characters are left out."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._part = ""
        self._matches: list[str] = []  # the paths below the workspace that contain `_part`

    def forget(self) -> None:
        """Drop the cached search: files may have changed when the next name is typed."""
        self._part = ""

    def complete(self, beginning: str, limit: int = 8) -> list[str]:
        """Return the paths that begin like this; without any, all paths that contain it."""
        folder, _, name = beginning.rpartition("/")
        if ".." in Path(folder).parts or Path(beginning).is_absolute():
            return []
        paths = sorted(
            path for path in _list_folder(self._workspace, folder) if path.rpartition("/")[2].startswith(name)
        )
        if not paths and name and not folder:
            return self._search_part(name.casefold())[:limit]
        return [path + "/" * _is_folder(self._workspace / path) for path in paths[:limit]]

    def _search_part(self, part: str) -> list[str]:
        is_narrower = self._part and part.startswith(self._part)
        candidates = self._matches if is_narrower else _walk_files(self._workspace)
        self._part, self._matches = part, sorted(path for path in candidates if part in path.casefold())
        return self._matches


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # permission denied for its folder
        return False


def _is_displayable(name: str) -> bool:
    return plain_text(name) == name and "\n" not in name


def _list_folder(workspace: Path, folder: str) -> Iterator[str]:
    try:
        with os.scandir(workspace / folder) as entries:
            names = [entry.name for entry in islice(entries, _MAX_ENTRIES)]
    except (OSError, ValueError):
        return
    for name in names:
        if not name.startswith(".") and _is_displayable(name):
            yield f"{folder}/{name}" if folder else name


def _walk_files(workspace: Path) -> Iterator[str]:
    """Yield at most `_MAX_ENTRIES` paths of files, without hidden ones and folders of dependencies."""
    remaining = _MAX_ENTRIES
    for folder, folders, files in os.walk(workspace):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name not in ("node_modules", "__pycache__")
        )
        relative = Path(folder).relative_to(workspace)
        prefix = f"{relative.as_posix()}/" if relative.parts else ""
        for name in files:
            remaining -= 1
            if remaining < 0:
                return
            if not name.startswith(".") and _is_displayable(path := prefix + name):
                yield path
