"""What was done to files, or would be, as lines: which files, and every line that differs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perstack.core.plain import one_line
from perstack.core.snapshots.file_diff import FileDiff
from perstack.engine.rewinding.rewinder import Rewind
from perstack.frontends.shared.patch import LineKind, file_rows, patch, shown_line, stat_words
from perstack.frontends.shared.rewinding import definition_warnings, kept_lines
from perstack.frontends.shared.words import cells, pad
from perstack.frontends.tui.view.spans import TAB, Line, Span, Style, pieces, wrap

_STYLES: dict[LineKind, Style] = {"file": "strong", "hunk": "call", "+": "add", "-": "remove", " ": ""}
_CHANGES: dict[str, Style] = {"added": "add", "removed": "remove", "changed": "warn"}
_WIDEST = 100_000
"""Lines of a patch that are shown; the command line has all of them."""


def files_lines(files: Sequence[FileDiff], width: int) -> list[Line]:
    """Which files, with how many lines, and then the lines."""
    if not files:
        return []
    found: list[Line] = []
    for change, path, lines in file_rows(files):
        label = f"{pad(change, 8)} {one_line(lines)}  "
        first, *others = pieces(path.replace("\t", TAB), max(8, width - cells(label) - 2))
        found.append((Span("  "), Span(label, _CHANGES.get(change, "")), Span(first)))
        found += [(Span(" " * (2 + cells(label))), Span(other)) for other in others]
    found += [(), (Span(f"  {stat_words(files)}", "dim"),), ()]
    for kind, line in patch(files):
        style = _STYLES[kind]
        found += [(Span("  "), Span(piece, style)) for piece in _broken(shown_line(kind, line), width - 2)]
        if len(found) > _WIDEST:
            return [*found, (Span("  … and more lines", "dim"),)]
    return found


def plan_lines(plan: Rewind, width: int) -> list[Line]:
    """What a rewind changes, and what it leaves alone."""
    return [
        *_said(definition_warnings(plan), width, "warn"),
        *_said(kept_lines(plan), width, "dim"),
        *files_lines(plan.files, width),
    ]


def words_lines(text: str, width: int, style: Style = "") -> list[Line]:
    """A text, broken between words."""
    return [(Span("  "), Span(line, style)) for line in wrap(text, max(8, width - 4))]


def _said(texts: Iterable[str], width: int, style: Style) -> list[Line]:
    found = [line for text in texts for line in words_lines(text, width, style)]
    return [*found, ()] if found else []


def _broken(text: str, width: int) -> list[str]:
    line = text.replace("\t", TAB)
    return [line] if len(line) <= width and line.isascii() else pieces(line, width)
