"""The one way from a command to stdout and stderr.

What is written is cleaned here, not where it comes from, so that no command can forget it: text may come from a model,
a server, a file or a path. Styles are added to parts that are clean by then. Whatever else writes, a library, a log, a
warning, a traceback, goes through `Cleaned`, which `guard_streams` puts in place of both streams.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from io import TextIOBase
from typing import TYPE_CHECKING, BinaryIO, ClassVar, TextIO, cast

import click

from perstack.core.plain import one_line, plain_json, plain_text
from perstack.dataclass import dataclass
from perstack.frontends.shared.columns import GAP, fitting
from perstack.frontends.shared.words import cells, pad, shorten

if TYPE_CHECKING:
    from rich.live import Live

WIDEST = 1000
"""What a line is cut at where no terminal says how wide it is."""


@dataclass(frozen=True, slots=True)
class Painted:
    """Text in a style. As a plain string it has none."""

    text: str
    style: dict[str, str | bool]

    def __str__(self) -> str:
        return self.text

    def render(self) -> str:
        """With escape sequences of ours, around text that has none."""
        text = plain_text(self.text)
        return click.style(text, **self.style) if self.style and text else text  # type: ignore[arg-type]  # click's own


@dataclass(frozen=True, slots=True)
class Screen:
    """Where the output goes."""

    width: int
    """Cells that a line may have."""
    colours: bool

    height: int = 0
    """Lines that it has; 0 if it is no terminal, or one that only takes line after line."""

    @classmethod
    def of_stdout(cls) -> Screen:
        """Colours only on a terminal, and none if NO_COLOR is set."""
        return cls._of(sys.stdout)

    @classmethod
    def of_stderr(cls) -> Screen:
        """The same of stderr."""
        return cls._of(sys.stderr)

    @classmethod
    def _of(cls, stream: TextIO) -> Screen:
        if not _is_terminal(stream):
            return cls(WIDEST, False)
        is_dumb = os.environ.get("TERM", "dumb") == "dumb"
        width, height = _size(stream)
        return cls(width, not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb", 0 if is_dumb else height)

    def paint(self, text: str, **style: str | bool) -> Painted:
        """The text in a style of `click.style`; as it is where there are no colours."""
        return Painted(text, style if self.colours else {})

    def fit(self, text: str, used: int) -> str:
        """The text on one line, cut to what is left of the width after `used` cells."""
        return shorten(text, max(10, self.width - used))


def out(*parts: str | Painted) -> None:
    """A line, or several, on stdout; parts follow each other without a space."""
    _put(sys.stdout, _rendered(parts).rstrip(" ") + "\n")


def err(*parts: str | Painted) -> None:
    """The same on stderr."""
    _put(sys.stderr, _rendered(parts) + "\n")


def result(text: str) -> None:
    """A text that is asked for on stdout: the very text in a pipe or a file, and clean at a terminal."""
    if _is_terminal(sys.stdout):
        out(text)
    elif not _is_closed(sys.stdout):
        stream = _beneath(sys.stdout)
        stream.flush()
        stream.buffer.write(text.encode("utf-8", "replace") + b"\n")
        stream.buffer.flush()


def rendered(*parts: str | Painted) -> str:
    """A line as `out` would write it."""
    return _rendered(parts).rstrip(" ") + "\n"


def remark(text: str) -> None:
    """Words for a person at a terminal, beside what goes to stdout. Elsewhere stderr is for what is wrong."""
    if is_attended():
        err(one_line(text))


def prompt(question: str, *, default: str, choices: Sequence[str] = ()) -> str:
    """What the person at stdin types, after the question on stderr; asked again until it is one of `choices`, if there
    are any. Raises click.Abort if there is nobody."""

    def chosen(said: str) -> str:
        if choices and said not in choices:
            raise click.UsageError(f"choose one of {', '.join(choices)}")
        return said

    return str(
        click.prompt(
            one_line(question), default=default, show_default=False, prompt_suffix=" ", value_proc=chosen, err=True
        )
    )


def is_attended() -> bool:
    """Whether stderr is a terminal."""
    return _is_terminal(sys.stderr)


def has_screen() -> bool:
    """Whether stdout is a terminal."""
    return _is_terminal(sys.stdout)


def data(line: str | bytes) -> None:
    """A line of JSON on stdout: the very bytes in a pipe, and at a terminal the same JSON with escapes.

    Raises OSError if nobody reads stdout.
    """
    # what is not a character has in JSON the form that Python gives it here
    stored(line.encode("utf-8", "backslashreplace") + b"\n" if isinstance(line, str) else line + b"\n")


def stored(content: bytes) -> None:
    """JSON that is more than a line, with its newlines, like `data`."""
    if _is_closed(sys.stdout):
        return
    stream = _beneath(sys.stdout)
    stream.flush()
    stream.buffer.write(plain_json(content) if stream.isatty() else content)
    stream.buffer.flush()


def flush_stdout() -> None:
    """Write what is still in the buffer of stdout. Raises OSError."""
    if not _is_closed(sys.stdout):
        sys.stdout.flush()


def discard_stdout() -> None:
    """What is still in the buffer of stdout goes nowhere: Python would fail over it when the process ends."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)


def table(
    screen: Screen,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Sequence[int] = (),
    whole: Sequence[int] = (0,),
    texts: Sequence[int] | None = None,
    drops: Sequence[int] | None = None,
    before: Sequence[str] = (),
) -> None:
    """Print columns, a row a line: as wide as the screen on a terminal, unshortened elsewhere.

    `right` are numbers' columns. On a narrow terminal ids (`whole`) stay as they are, `texts` (the last column, if
    nothing is said) are cut, and then columns go in the order `drops` (the rightmost first). `before` is drawn before
    the first cell of each row, and is ours.
    """
    lines = [[one_line(cell) for cell in row] for row in (headings, *rows)]
    for line, drawn in zip(lines[1:], before, strict=False):
        line[0] = drawn + line[0]
    last = len(headings) - 1
    texts = [i for i in (last,) if i not in (*whole, *right)] if texts is None else texts
    drops = [i for i in range(last, -1, -1) if i not in (*whole, *texts)] if drops is None else drops
    width = None if screen.width >= WIDEST else screen.width
    widths = [max(map(cells, column)) for column in zip(*lines, strict=True)]
    shown = fitting(widths, [*map(cells, lines[0])], width, whole=whole, texts=texts, drops=drops)
    for number, line in enumerate(lines):
        padded = [pad(line[i], shown[i], right=i in right) for i in sorted(shown)]
        text = (" " * GAP).join(padded).rstrip()
        out(screen.paint(text, bold=True) if number == 0 else text)


class Region:
    """The last lines of a terminal, drawn anew again and again. Whatever else is written meanwhile goes above them.

    Nothing about the terminal is changed, so nothing has to be put back at the end, even of a process that is killed.
    """

    _shown: ClassVar[Region | None] = None
    """The one that is on a terminal now."""

    def __init__(self, *, to_stderr: bool) -> None:
        self._stream = _beneath(sys.stderr if to_stderr else sys.stdout)
        self._cells: list[int] = []
        """How wide each of its lines is."""
        self._above = ""

    def add(self, line: str) -> None:
        """A line that stays, as `rendered` makes it: above the region when that is drawn next."""
        self._above += line
        Region._shown = self

    def draw(self, lines: Sequence[Sequence[str | Painted]]) -> None:
        """Draw these lines, each narrower than the screen. Raises OSError."""
        text = self._erasing() + self._above + "\n".join(_rendered(line) for line in lines)
        self._above = ""
        self._cells = [cells("".join(map(str, line))) for line in lines]
        Region._shown = self if lines else None
        if text:
            self._stream.write(text.encode(self._stream.encoding, "replace").decode(self._stream.encoding))
            self._stream.flush()

    def erase(self) -> None:
        """Take its lines away, until it is drawn again. Raises OSError."""
        self.draw(())

    def forget(self) -> None:
        """Somebody else has used the terminal: what was drawn is left where it is."""
        self._cells = []
        Region._shown = None

    @classmethod
    def make_way(cls) -> None:
        """Take away what is on a terminal now. Raises OSError."""
        if cls._shown is not None:
            cls._shown.erase()

    def _erasing(self) -> str:
        """What takes its lines away. In a window that was made narrower the terminal has broken them."""
        if not self._cells:
            return ""
        width = max(1, _size(self._stream)[0])
        rows = sum(max(1, -(-one // width)) for one in self._cells)
        return "\r" + (f"\x1b[{rows - 1}A" if rows > 1 else "") + "\x1b[J"


class LiveRows:
    """Rows on a terminal's stderr that are kept up to date."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self.live: Live = Live(console=Console(file=_beneath(sys.stderr)), refresh_per_second=10)

    def update(self, rows: Iterable[tuple[str, str, str]]) -> None:
        """Two columns, and the style of the second."""
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        for name, words, style in rows:
            grid.add_row(Text(one_line(name)), Text(one_line(words), style=style))
        self.live.update(grid)


class Cleaned(TextIOBase):
    """A stream that cleans what is written to it; for all but this module."""

    def __init__(self, beneath: TextIO) -> None:
        self.beneath = beneath

    def write(self, text: str, /) -> int:
        _put(self.beneath, plain_text(text), flush=False)
        return len(text)

    def writelines(self, lines: Iterable[str], /) -> None:  # type: ignore[override]  # typeshed's is of bytes too
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        self.beneath.flush()

    def fileno(self) -> int:
        return self.beneath.fileno()

    def isatty(self) -> bool:
        return self.beneath.isatty()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]  # typeshed's is an attribute
        return self.beneath.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]  # typeshed's is an attribute
        return self.beneath.errors

    @property
    def buffer(self) -> BinaryIO:
        """Bytes, which are data, as they are."""
        return self.beneath.buffer


def guard_streams() -> None:
    """From now on, whatever writes to stdout or stderr is cleaned, up to the last traceback of the process."""
    if not _is_closed(sys.stdout):
        sys.stdout = _guarded(sys.stdout)
    if not _is_closed(sys.stderr):
        sys.stderr = _guarded(sys.stderr)


def _guarded(stream: TextIO) -> TextIO:
    # typeshed has no stream that is one without being a file
    return cast("TextIO", Cleaned(stream))


def _is_terminal(stream: TextIO) -> bool:
    return not _is_closed(stream) and stream.isatty()


def _size(stream: TextIO) -> tuple[int, int]:
    """Columns and lines: of COLUMNS and LINES if they are set, else of the terminal."""
    columns, lines = (os.environ.get(name, "") for name in ("COLUMNS", "LINES"))
    try:
        found = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        found = os.terminal_size((80, 24))
    return (
        int(columns) if columns.isdecimal() and int(columns) else found.columns or 80,
        int(lines) if lines.isdecimal() and int(lines) else found.lines or 24,
    )


def _is_closed(stream: TextIO | None) -> bool:
    """Whether the process was started without it (`>&-`): typeshed does not know that it is None then."""
    return stream is None


def _beneath(stream: TextIO) -> TextIO:
    return stream.beneath if isinstance(stream, Cleaned) else stream


def _rendered(parts: Sequence[str | Painted]) -> str:
    return "".join(part.render() if isinstance(part, Painted) else plain_text(part) for part in parts)


def _put(stream: TextIO, text: str, *, flush: bool = True) -> None:
    if _is_closed(stream):
        return
    stream = _beneath(stream)
    Region.make_way()
    try:
        stream.write(text)
    except UnicodeEncodeError:
        stream.write(text.encode(stream.encoding, "replace").decode(stream.encoding))
    if flush:
        stream.flush()
