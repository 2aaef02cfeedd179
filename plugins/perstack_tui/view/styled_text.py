"""Lines of styled text, and breaking a text into lines."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from perstack.core.base.text import plain_text
from perstack.doors.shared.text import cells, shorten

Style = Literal["", "dim", "rule", "person", "expert", "call", "good", "bad", "warn", "ask", "add", "remove", "strong"]
"""The meaning of a text; the theme decides its look."""

TAB = "    "


class Span(NamedTuple):
    """A piece of a line, without control characters: `clean` and `wrap` remove them."""

    text: str
    style: Style = ""
    action: str = ""  # action of a click, such as `app.tab(2)`


Line: TypeAlias = tuple[Span, ...]


def clean(text: str) -> str:
    """Return text from outside without control sequences, with tabs as spaces."""
    return plain_text(text.replace("\r\n", "\n")).replace("\t", TAB)


def one_line_of(text: str, width: int, style: Style = "") -> Line:
    """Return the text on one line, cut to the width."""
    return (Span(shorten(text, max(1, width)), style),)


def text_of(line: Line) -> str:
    return "".join(span.text for span in line)


def cells_of(line: Line) -> int:
    """Return the terminal columns that the line takes."""
    return sum(cells(span.text) for span in line)


def wrap(text: str, width: int) -> list[str]:
    """Return the text in lines of at most `width` cells, broken between words; line ends are kept."""
    lines: list[str] = []
    for line in clean(text).split("\n"):
        lines += wrap_line(line.rstrip(), max(1, width))
    return lines


def wrap_line(line: str, width: int) -> list[str]:
    """Break one clean line; continued lines are indented like it."""
    if len(line) <= width and (line.isascii() or cells(line) <= width):
        return [line]
    lines, remainder = wrap_stable(line, width)
    indent = _indent_of(remainder, width)
    return [*lines, (indent + remainder.lstrip(" ")).rstrip()]


def wrap_stable(line: str, width: int) -> tuple[list[str], str]:
    """Break a clean line that is still growing. Return the lines that more text cannot change, and the rest."""
    remainder = line.lstrip(" ")
    indent = _indent_of(line, width)
    free_cells = width - len(indent)
    lines: list[str] = []
    while len(piece := _cut_to_width(remainder, free_cells)) < len(remainder):
        following = remainder[len(piece) :].lstrip(" ")
        if not following:
            break
        lines.append(indent + piece.rstrip())
        remainder = following
    return lines, indent + remainder if lines else line


def _indent_of(line: str, width: int) -> str:
    return " " * min(len(line) - len(line.lstrip(" ")), width // 2)


def _cut_to_width(text: str, width: int) -> str:
    width = max(1, width)
    if text.isascii():
        if len(text) <= width:
            return text
        end = width
    else:
        end = used_cells = 0
        for char in text:
            used_cells += cells(char)
            if used_cells > width:
                break
            end += 1
        end = max(1, end)
        if end == len(text):
            return text
    if text[end] == " ":
        return text[:end]
    space = text.rfind(" ", 0, end)
    return text[: space + 1] if space > end // 3 else text[:end]
