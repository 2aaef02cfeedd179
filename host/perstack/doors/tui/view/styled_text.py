"""Lines of styled text, and how a text is broken into them."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from perstack.core.plain import plain_text
from perstack.frontends.shared.words import cells, shorten

Style = Literal["", "dim", "rule", "person", "expert", "call", "good", "bad", "warn", "ask", "add", "remove", "strong"]
"""What a text is, not how it looks: that is the theme's."""

TAB = "    "


class Span(NamedTuple):
    """A piece of a line. Its text has no control character: `spans` and `wrap` see to it."""

    text: str
    style: Style = ""


Line: TypeAlias = tuple[Span, ...]


def clean(text: str) -> str:
    """Text from outside, without all that a terminal would obey, tabs as spaces."""
    return plain_text(text.replace("\r\n", "\n")).replace("\t", TAB)


def one(text: str, width: int, style: Style = "") -> Line:
    """The text on one line, cut to the width."""
    return (Span(shorten(text, max(1, width)), style),)


def text_of(line: Line) -> str:
    """The line without its styles."""
    return "".join(span.text for span in line)


def cells_of(line: Line) -> int:
    """The columns that it takes."""
    return sum(cells(span.text) for span in line)


def wrap(text: str, width: int) -> list[str]:
    """The text in lines of at most that many cells, broken between words; its own line ends stay."""
    found: list[str] = []
    for line in clean(text).split("\n"):
        found += wrap_line(line.rstrip(), max(1, width))
    return found


def wrap_line(line: str, width: int) -> list[str]:
    """One clean line. What follows the first break is indented as the line was."""
    if len(line) <= width and (line.isascii() or cells(line) <= width):
        return [line]
    found, rest = settled(line, width)
    indent = _indent_of(rest, width)
    return [*found, (indent + rest.lstrip(" ")).rstrip()]


def settled(line: str, width: int) -> tuple[list[str], str]:
    """Of one clean line to which more may be added the lines that this does not change, and what is left: broken with
    what is added it comes to the lines that all of it comes to."""
    rest = line.lstrip(" ")
    indent = _indent_of(line, width)
    room = width - len(indent)
    found: list[str] = []
    while len(piece := _fitting(rest, room)) < len(rest):
        after = rest[len(piece) :].lstrip(" ")
        if not after:
            break
        found.append(indent + piece.rstrip())
        rest = after
    return found, indent + rest if found else line


def _indent_of(line: str, width: int) -> str:
    return " " * min(len(line) - len(line.lstrip(" ")), width // 2)


def pieces(line: str, width: int) -> list[str]:
    """One clean line in pieces of at most that many cells, broken anywhere: every character is in one."""
    found, used = [""], 0
    for char in line:
        wide = cells(char)
        if used + wide > max(2, width):
            found.append("")
            used = 0
        found[-1] += char
        used += wide
    return found


def _fitting(text: str, width: int) -> str:
    """As much of the beginning as fits, up to the end of a word if there is one."""
    width = max(1, width)
    if text.isascii():
        if len(text) <= width:
            return text
        end = width
    else:
        end = used = 0
        for char in text:
            used += cells(char)
            if used > width:
                break
            end += 1
        end = max(1, end)
        if end == len(text):
            return text
    if text[end] == " ":
        return text[:end]
    space = text.rfind(" ", 0, end)
    return text[: space + 1] if space > end // 3 else text[:end]
