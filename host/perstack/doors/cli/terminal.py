"""Output of commands: every command writes to stdout and stderr through this module only.

Output is sanitized here, not at its sources, so that no command can forget it: text may come from a model, a server, a
file or a path. Styles are added to sanitized parts. Everything else that writes, such as a library, a log, a warning or
a traceback, goes through `_SanitizedStream`, which `guard_streams` puts in place of both streams. Beneath it is a
stream that never blocks the event loop (`doors/shared/output_stream.py`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from io import TextIOBase
from textwrap import fill
from typing import TYPE_CHECKING, BinaryIO, ClassVar, NoReturn, TextIO, TypeVar, cast

import click

from perstack.core.base.text import count, one_line, plain_json, plain_text
from perstack.doors.shared.output_stream import channel_of, finish_output, pending_bytes, unblock
from perstack.doors.shared.screen import UNLIMITED_WIDTH, Screen, StyledText, is_closed, is_terminal, sanitized, size_of
from perstack.doors.shared.text import GAP, cells, fit_columns, pad
from perstack.errors import UsageError

if TYPE_CHECKING:
    from rich.live import Live


LIVE_BYTES = 1 << 20  # maximum bytes queued for the reader of stdout before streamed text and reasoning are left out


def print_out(*parts: str | StyledText) -> None:
    """Write a line, or several, to stdout; parts are joined without a space."""
    _put(sys.stdout, sanitized(parts).rstrip(" ") + "\n")


def print_err(*parts: str | StyledText) -> None:
    """Write a line, or several, to stderr; parts are joined without a space."""
    _put(sys.stderr, sanitized(parts) + "\n")


def echo(text: str) -> None:
    """Show typed text on stderr, without ending the line."""
    _put(sys.stderr, sanitized((text,)))


def erase(width: int) -> None:
    """Erase the last `width` cells of typed text on stderr."""
    _put(sys.stderr, "\b \b" * width)


def print_result(text: str) -> None:
    """Write a requested text to stdout: unchanged in a pipe or file, sanitized at a terminal."""
    if is_terminal(sys.stdout):
        print_out(text)
    elif not is_closed(sys.stdout):
        stream = _unwrap(sys.stdout)
        stream.flush()
        stream.buffer.write(text.encode("utf-8", "replace") + b"\n")
        stream.buffer.flush()


def render_line(*parts: str | StyledText) -> str:
    """Return the line that `print_out` would write."""
    return sanitized(parts).rstrip(" ") + "\n"


def print_note(text: str) -> None:
    """Write a message to stderr if that is a terminal. Otherwise stderr is for errors."""
    if is_attended():
        print_err(one_line(text))


def prompt(question: str, *, default: str, is_hidden: bool = False) -> str:
    """Ask on stderr and return the typed text. Raises click.Abort if nobody answers.

    With `is_hidden` the terminal does not show what is typed.
    """
    return str(
        click.prompt(
            one_line(question),
            default=default,
            hide_input=is_hidden,
            show_default=False,
            prompt_suffix=" ",
            err=True,
        )
    )


def print_choices(choices: Mapping[str, str]) -> None:
    """Print numbered choices with their descriptions on stderr, wrapped at words."""
    width, names = Screen.of_stderr().width, max(map(len, choices))
    for number, (name, about) in enumerate(choices.items(), 1):
        head = f"{number:>3} {one_line(name):<{names}}  "
        print_err(fill(f"{head}{one_line(about)}", width, subsequent_indent=" " * len(head), break_on_hyphens=False))


def choose(question: str, names: Sequence[str]) -> str:
    """Ask for one of the names, or its number, until one is typed; Enter alone is the first. Raises click.Abort."""
    numbers = {str(number): name for number, name in enumerate(names, 1)}

    def read(answer: str) -> str:
        name = answer.strip()
        if name in names or name in numbers:
            return name if name in names else numbers[name]
        raise click.UsageError(f"choose a number from 1 to {len(names)}, or a name")

    return str(
        click.prompt(
            f"{one_line(question)} [{names[0]}]",
            default=names[0],
            show_default=False,
            prompt_suffix=" ",
            value_proc=read,
            err=True,
        )
    )


def is_attended() -> bool:
    """Return whether stderr is a terminal."""
    return is_terminal(sys.stderr)


def has_screen() -> bool:
    """Return whether stdout is a terminal."""
    return is_terminal(sys.stdout)


def write_json(value: object) -> None:
    """Write a value as a line of JSON to stdout, as `write_json_line` does."""
    write_json_line(json.dumps(value, ensure_ascii=False))


def write_json_line(line: str | bytes) -> None:
    """Write a line of JSON to stdout: unchanged in a pipe, escaped at a terminal. Raises OSError if nobody reads."""
    # JSON represents lone surrogates in the form that Python produces here
    write_bytes(line.encode("utf-8", "backslashreplace") + b"\n" if isinstance(line, str) else line + b"\n")


def write_bytes(content: bytes) -> None:
    """Write several lines of JSON, with their newlines, as `write_json_line` does."""
    if is_closed(sys.stdout):
        return
    stream = _unwrap(sys.stdout)
    stream.flush()
    stream.buffer.write(plain_json(content) if stream.isatty() else content)
    stream.buffer.flush()


def finish_stdout() -> None:
    """Write the rest of stdout at the end of the process. Raises OSError."""
    if not is_closed(sys.stdout):
        finish_output(_unwrap(sys.stdout), is_stdout=True)


def finish_stderr() -> None:
    """Write the rest of stderr at the end of the process, if it is being read."""
    if not is_closed(sys.stderr):
        with suppress(OSError):
            finish_output(_unwrap(sys.stderr), is_stdout=False)


def is_stdout_behind() -> bool:
    """Return whether the reader of stdout is so far behind that streamed events are left out."""
    return not is_closed(sys.stdout) and pending_bytes(_unwrap(sys.stdout)) > LIVE_BYTES


def discard_stdout() -> None:
    """Drop the rest of stdout's buffer, which Python would fail to write at exit."""
    channel = None if is_closed(sys.stdout) else channel_of(_unwrap(sys.stdout))
    if channel is not None:
        channel.discard()


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
    """Print a table, one line per row: as wide as the screen on a terminal, unshortened otherwise.

    Columns in `right` are aligned right. On a narrow terminal the columns in `whole` are kept; those in `texts` (by
    default the last) are cut; then columns are dropped in the order `drops` (by default the rightmost first). `before`
    is put before the first cell of each row and must be trusted text.
    """
    lines = [[one_line(cell) for cell in row] for row in (headings, *rows)]
    for line, prefix in zip(lines[1:], before, strict=False):
        line[0] = prefix + line[0]
    last = len(headings) - 1
    texts = [i for i in (last,) if i not in (*whole, *right)] if texts is None else texts
    drops = [i for i in range(last, -1, -1) if i not in (*whole, *texts)] if drops is None else drops
    width = None if screen.width >= UNLIMITED_WIDTH else screen.width
    widths = [max(map(cells, column)) for column in zip(*lines, strict=True)]
    visible_widths = fit_columns(widths, [*map(cells, lines[0])], width, whole=whole, texts=texts, drops=drops)
    for number, line in enumerate(lines):
        padded = [pad(line[i], visible_widths[i], right=i in right) for i in sorted(visible_widths)]
        text = (" " * GAP).join(padded).rstrip()
        print_out(screen.styled(text, bold=True) if number == 0 else text)


class LiveRegion:
    """The last lines of a terminal, redrawn below other output, without a mode to restore if the process is killed."""

    _shown: ClassVar[LiveRegion | None] = None  # the region that is shown on a terminal

    def __init__(self, *, to_stderr: bool) -> None:
        self._stream = _unwrap(sys.stderr if to_stderr else sys.stdout)
        self._cells: list[int] = []
        self._above = ""

    def add(self, line: str) -> None:
        """Add a permanent line, in the form of `render_line`, above the region at its next drawing."""
        self._above += line
        LiveRegion._shown = self

    def draw(self, lines: Sequence[Sequence[str | StyledText]]) -> None:
        """Draw these lines, each narrower than the screen, unless earlier output is still queued. Raises OSError."""
        if lines and pending_bytes(self._stream):
            return
        text = self._erasing() + self._above + "\n".join(sanitized(line) for line in lines)
        self._above = ""
        self._cells = [cells("".join(map(str, line))) for line in lines]
        LiveRegion._shown = self if lines else None
        if text:
            self._stream.write(text.encode(self._stream.encoding, "replace").decode(self._stream.encoding))
            self._stream.flush()

    def erase(self) -> None:
        """Erase the lines until the next drawing. Raises OSError."""
        self.draw(())

    def forget(self) -> None:
        """Forget the lines without erasing them, since another program used the terminal."""
        self._cells = []
        LiveRegion._shown = None

    @classmethod
    def erase_current(cls) -> None:
        """Erase the region that is shown on a terminal, if any. Raises OSError."""
        if cls._shown is not None:
            cls._shown.erase()

    def _erasing(self) -> str:
        """Return the sequence that erases the lines. A narrowed window has wrapped them."""
        if not self._cells:
            return ""
        width = max(1, size_of(self._stream)[0])
        rows = sum(max(1, -(-line_cells // width)) for line_cells in self._cells)
        return "\r" + (f"\x1b[{rows - 1}A" if rows > 1 else "") + "\x1b[J"


class LiveRows:
    """Rows on a terminal's stderr that are updated in place."""

    def __init__(self) -> None:
        """Prepare the rows; they appear within the context of `live`."""
        from rich.console import Console
        from rich.live import Live

        self.live: Live = Live(console=Console(file=_unwrap(sys.stderr)), refresh_per_second=10)

    def update(self, rows: Iterable[tuple[str, str, str]]) -> None:
        """Show rows: two columns, and the style of the second one."""
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        for name, text, style in rows:
            grid.add_row(Text(one_line(name)), Text(one_line(text), style=style))
        self.live.update(grid)


class _SanitizedStream(TextIOBase):
    def __init__(self, beneath: TextIO) -> None:
        self.beneath = beneath

    def write(self, text: str, /) -> int:
        _put(self.beneath, plain_text(text), flush=False)
        return len(text)

    def writelines(self, lines: Iterable[str], /) -> None:  # type: ignore[override]  # typeshed's `write` also takes bytes
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
    def encoding(self) -> str:  # type: ignore[override]  # typeshed declares an attribute
        return self.beneath.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]  # typeshed declares an attribute
        return self.beneath.errors

    @property
    def buffer(self) -> BinaryIO:
        """The stream beneath for bytes, which are passed unchanged."""
        return self.beneath.buffer


def guard_streams() -> None:
    """Sanitize everything that is written to stdout or stderr from now on, including the process's last traceback."""
    if not is_closed(sys.stdout):
        sys.stdout = _sanitize(unblock(sys.stdout))
    if not is_closed(sys.stderr):
        sys.stderr = _sanitize(unblock(sys.stderr))


def _sanitize(stream: TextIO) -> TextIO:
    # typeshed has no type for a text stream that is not a file
    return cast("TextIO", _SanitizedStream(stream))


def _unwrap(stream: TextIO) -> TextIO:
    return stream.beneath if isinstance(stream, _SanitizedStream) else stream


def _put(stream: TextIO, text: str, *, flush: bool = True) -> None:
    if is_closed(stream):
        return
    stream = _unwrap(stream)
    LiveRegion.erase_current()
    try:
        stream.write(text)
    except UnicodeEncodeError:
        stream.write(text.encode(stream.encoding, "replace").decode(stream.encoding))
    if flush:
        stream.flush()


# A yes-or-no question to the user at the terminal.


def confirm(question: str) -> bool:
    """Ask on stderr; empty input means no. Raises click.Abort at the end of stdin and for Ctrl-C."""
    from perstack.core.jobs.answer_reading import yes_or_no  # few commands ask

    while True:
        answer = yes_or_no(prompt(f"{question} [y/N]", default="no"))
        if answer is not None:
            return answer.is_yes
        print_err("answer yes or no")


# Deletion of many Jobs or tasks.

_T = TypeVar("_T")

_MAX_LISTED_ROWS = 10  # maximum rows shown before the question


def agree_to_delete(items: Sequence[_T], noun: str, see: str, show: Callable[[Sequence[_T]], None]) -> None:
    """Return if the user agrees; end the process otherwise. Raises UsageError if nobody can be asked."""
    counted = count(len(items), noun)
    if not sys.stdin.isatty():
        raise UsageError(f"{counted} would be deleted permanently: {see}, and add --yes")
    show(items[:_MAX_LISTED_ROWS])
    if len(items) > _MAX_LISTED_ROWS:
        print_out(f"… and {len(items) - _MAX_LISTED_ROWS} more")
    if not confirm(f"Delete {counted} permanently?"):
        print_out("nothing was deleted")
        sys.exit(1)


def report_deleted(outcomes: Mapping[str, str | None], noun: str, *, had_any: bool, as_json: bool) -> NoReturn:
    """Report each id with the reason why it was kept, None for a deleted one, and end with the exit status."""
    kept = {item_id: reason for item_id, reason in outcomes.items() if reason is not None}
    deleted = [item_id for item_id in outcomes if item_id not in kept]
    if as_json:
        write_json({"deleted": deleted, "kept": kept})
    else:
        print_out(f"deleted {count(len(deleted), noun)}" if had_any else f"no such {noun}s")
        for reason in kept.values():
            print_err(one_line(f"kept: {reason}"))
    sys.exit(1 if kept else 0)
