"""Styled text and the properties of the stream that shows it.

A style is added to sanitized text only: in `StyledText.render` and `sanitized`, text from a model, a server, a file or
a path loses all control sequences.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TextIO

import click

from perstack.core.base.text import plain_text
from perstack.dataclass import dataclass
from perstack.doors.shared.text import shorten

UNLIMITED_WIDTH = 1000  # line width if the output is not a terminal


@dataclass(frozen=True, slots=True)
class StyledText:
    """Styled text. As a plain string it has no style."""

    text: str
    style: dict[str, str | bool]

    def __str__(self) -> str:
        """Return the text without its style."""
        return self.text

    def render(self) -> str:
        """Return the sanitized text with our escape sequences around it."""
        text = plain_text(self.text)
        return click.style(text, **self.style) if self.style and text else text  # type: ignore[arg-type]  # click's own keywords


@dataclass(frozen=True, slots=True)
class Screen:
    """The properties of an output stream."""

    width: int  # cells that a line may have
    colours: bool

    height: int = 0  # number of lines; 0 without a terminal, or if it only appends lines

    @classmethod
    def of_stdout(cls) -> Screen:
        """Return the screen of stdout. Colours are used only on a terminal without NO_COLOR."""
        return cls._of(sys.stdout)

    @classmethod
    def of_stderr(cls) -> Screen:
        return cls._of(sys.stderr)

    @classmethod
    def _of(cls, stream: TextIO) -> Screen:
        if not is_terminal(stream):
            return cls(UNLIMITED_WIDTH, False)
        is_dumb = os.environ.get("TERM", "dumb") == "dumb"
        width, height = size_of(stream)
        return cls(width, not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb", 0 if is_dumb else height)

    def styled(self, text: str, **style: str | bool) -> StyledText:
        """Return the text in a style of `click.style`; without style if there are no colours."""
        return StyledText(text, style if self.colours else {})

    def fit(self, text: str, used: int) -> str:
        """Return the text on one line, cut to the width left after `used` cells."""
        return shorten(text, max(10, self.width - used))


def style_of(colour: str) -> dict[str, str | bool]:
    """Return the style for the colour of a log row: a colour, `bold`, `dim` or nothing."""
    return {} if not colour else {colour: True} if colour in ("bold", "dim") else {"fg": colour}


def is_terminal(stream: TextIO) -> bool:
    """Return whether the stream is open and a terminal."""
    return not is_closed(stream) and stream.isatty()


def size_of(stream: TextIO) -> tuple[int, int]:
    """Return columns and lines: of COLUMNS and LINES if set, otherwise of the terminal."""
    columns, lines = (os.environ.get(name, "") for name in ("COLUMNS", "LINES"))
    try:
        terminal_size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        terminal_size = os.terminal_size((80, 24))
    return (
        int(columns) if columns.isdecimal() and int(columns) else terminal_size.columns or 80,
        int(lines) if lines.isdecimal() and int(lines) else terminal_size.lines or 24,
    )


def is_closed(stream: TextIO | None) -> bool:
    """Return whether the process was started without the stream (`>&-`), a None that typeshed does not know."""
    return stream is None


def sanitized(parts: Sequence[str | StyledText]) -> str:
    """Return the parts as one text whose only escape sequences are our own styles."""
    return "".join(part.render() if isinstance(part, StyledText) else plain_text(part) for part in parts)
