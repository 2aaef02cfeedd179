"""Changed files as pages show them: each with its lines, within bounds that keep any page small. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perstack.core.base.text import visible_text
from perstack.dataclass import dataclass
from perstack.doors.shared.file_changes import LineKind, display_line, file_rows, patch_lines, stat_words
from perstack.snapshots.tree_diff import FileDiff

MAX_FILES = 500
MAX_FILE_LINES = 3_000  # maximum lines of one file's diff
_MAX_LINES = 12_000  # maximum lines of all files of a page
_MAX_LINE_CHARS = 2_000
_MAX_CHARS = 2_000_000  # maximum characters of all lines of a page

_CLASSES: Mapping[LineKind, str] = {"file": "head", "hunk": "place", "+": "add", "-": "remove", " ": ""}


@dataclass(frozen=True, slots=True)
class ShownFile:
    """One changed file or folder."""

    change: str  # `added`, `changed` or `removed`
    path: str
    counts: str  # `+12 −3`, or the reason why no lines are counted
    lines: tuple[tuple[str, str], ...]  # CSS class and text of each line of the diff
    is_cut: bool = False  # True if lines are left out


@dataclass(frozen=True, slots=True)
class ShownFiles:
    """The changed files of a page."""

    files: tuple[ShownFile, ...]
    totals: str  # `+12 −3 in 2 files`
    unlisted: int = 0  # number of files that are not listed

    @property
    def is_cut(self) -> bool:
        return any(file.is_cut for file in self.files)


def shown_files(files: Iterable[FileDiff], only_path: str = "") -> ShownFiles:
    """Return the files of a diff with their lines; with `only_path`, just the file with this path."""
    files = tuple(files)
    by_path = {visible_text(file.path): file for file in files}
    rows = [row for row in file_rows(files) if only_path in ("", row[1])]
    lines_left, chars_left = _MAX_LINES, _MAX_CHARS
    result: list[ShownFile] = []
    for change, path, counts in rows[:MAX_FILES]:
        lines, is_cut = _bounded_lines(by_path[path], min(MAX_FILE_LINES, lines_left), chars_left)
        lines_left -= len(lines)
        chars_left -= sum(len(line) for _, line in lines)
        result.append(ShownFile(change, path, counts, lines, is_cut))
    return ShownFiles(tuple(result), stat_words(files), max(0, len(rows) - MAX_FILES))


def _bounded_lines(file: FileDiff, max_lines: int, chars_left: int) -> tuple[tuple[tuple[str, str], ...], bool]:
    """Return class and text of each line of a file's diff without its head, and True if lines are left out."""
    lines: list[tuple[str, str]] = []
    for kind, line in patch_lines((file,)):
        if kind == "file" and line.startswith((b"diff ", b"--- ", b"+++ ", b"Binary ")):
            continue
        if len(lines) >= max_lines or chars_left <= 0:
            return tuple(lines), True
        text = display_line(kind, line[: 4 * _MAX_LINE_CHARS])
        if len(text) > _MAX_LINE_CHARS:
            text = f"{text[:_MAX_LINE_CHARS]} …"
        chars_left -= len(text)
        lines.append((_CLASSES[kind], text))
    return tuple(lines), False
