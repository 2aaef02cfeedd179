"""Words and columns for people: short texts, times, sizes, tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import click

WIDEST = 1000
"""What a line is cut at where no terminal says how wide it is."""


@dataclass(frozen=True, slots=True)
class Screen:
    """Where the output goes."""

    width: int
    """Cells that a line may have."""
    colours: bool

    @classmethod
    def of_stdout(cls) -> Screen:
        """Colours only on a terminal, and none if NO_COLOR is set."""
        if not sys.stdout.isatty():
            return cls(WIDEST, False)
        import shutil

        colours = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return cls(shutil.get_terminal_size().columns, colours)

    def paint(self, text: str, **style: str | bool) -> str:
        """The text in a style of `click.style`; as it is where there are no colours."""
        return click.style(text, **style) if self.colours and text else text  # type: ignore[arg-type]  # click's own

    def fit(self, text: str, used: int) -> str:
        """The text on one line, cut to what is left of the width after `used` cells."""
        return shorten(text, max(10, self.width - used))


def shorten(text: str, cells: int) -> str:
    """One line of at most that many cells; `…` tells that there was more."""
    # a cell holds at least one character, so more than this cannot be shown, and need not be looked at
    line = one_line(text[: cells + 200])
    if line.isascii() and len(line) <= cells and len(text) <= cells + 200:
        return line
    from rich.cells import cell_len, set_cell_size

    if cell_len(line) <= cells and len(text) <= cells + 200:
        return line
    return set_cell_size(line, cells - 1).rstrip() + "…"


def remark(text: str) -> None:
    """Words for a person at a terminal, beside what goes to stdout. Elsewhere stderr is for what is wrong."""
    if sys.stderr.isatty():
        click.echo(one_line(text), err=True)


def one_line(text: str) -> str:
    """White space and control characters, which could move the cursor, become spaces."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def plain_text(text: str) -> str:
    """The text with its lines; escape sequences of a tool's output cannot reach the terminal."""
    return "".join(char for char in text if char.isprintable() or char in "\n\t")


def pad(text: str, cells: int) -> str:
    """The text, cut or filled to exactly that many cells."""
    if text.isascii():
        return text.ljust(cells) if len(text) <= cells else shorten(text, cells).ljust(cells)
    from rich.cells import cell_len

    cut = shorten(text, cells)
    return cut + " " * (cells - cell_len(cut))


def count(number: int, noun: str) -> str:
    """`1 step`, `2,000 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(milliseconds: int) -> str:
    """`7 ms`, `1.3 s`, `2 min 5 s`, `3 h 12 min`."""
    if milliseconds < 1000:
        return f"{max(0, milliseconds)} ms"
    seconds = round(milliseconds / 1000, 1)
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {left} s"
    return f"{minutes // 60} h {minutes % 60} min"


def ago(then: int, now: int) -> str:
    """How long before `now`, both in milliseconds: `just now`, `5 min ago`, `3 days ago`."""
    seconds = (now - then) // 1000
    for size, noun in ((86_400, "day"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            number = seconds // size
            return f"{count(number, noun) if noun == 'day' else f'{number} {noun}'} ago"
    return "just now" if seconds < 10 else f"{seconds} s ago"


def table(screen: Screen, headings: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[int] = ()) -> None:
    """Print columns: as wide as the screen on a terminal, unshortened elsewhere. `right` are numbers' columns."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    found = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for index, heading in enumerate(headings):
        found.add_column(
            heading,
            justify="right" if index in right else "left",
            no_wrap=True,
            overflow="ellipsis",
            min_width=min(len(heading), 8),
        )
    for row in rows:
        found.add_row(*(Text(one_line(cell)) for cell in row))
    console = Console(width=screen.width, no_color=not screen.colours, highlight=False, soft_wrap=False)
    with console.capture() as captured:
        console.print(found)
    for line in captured.get().splitlines():
        click.echo(line.rstrip(), color=screen.colours)
