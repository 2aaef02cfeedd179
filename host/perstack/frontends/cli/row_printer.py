"""Rows of the log in their columns: by `perstack log`, and while a Job is driven."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from perstack.frontends.cli.terminal import Screen, out
from perstack.frontends.shared.log_rows import Row
from perstack.frontends.shared.words import local_time, pad, shorten

_RUN_COLOURS = ("blue", "yellow", "magenta", "cyan", "green", "bright_blue", "bright_yellow", "bright_magenta")
_WIDEST_LABEL = 24
_WORD = 9
_NARROW = 60
"""On a screen of fewer cells the time and the step are left out."""

_LOUD = ("red", "green", "magenta", "bold", "dim")
"""Colours that a text has as well as its word."""

Put = Callable[..., None]
"""Takes the parts of a line, as `terminal.out` does."""


class RowPrinter:
    """Prints row after row, each with its time, Run and step; a Run has one colour throughout."""

    def __init__(self, screen: Screen, *, full: bool = False, put: Put = out) -> None:
        self.screen = screen
        self._full = full
        self.put = put
        self._colours: dict[str, str] = {}
        self._width = 0
        self._day = ""

    def colour(self, run_id: str) -> str:
        """The colour of a Run, by the order in which they were asked for."""
        return self._colours.setdefault(run_id, _RUN_COLOURS[len(self._colours) % len(_RUN_COLOURS)])

    def widen(self, labels: Iterable[str]) -> None:
        """Make room for these labels too in what is printed from now on."""
        self._width = min(_WIDEST_LABEL, max((self._width, *map(len, labels))))

    def print(self, timestamp: int, run_id: str, label: str, step: int, row: Row, mark: str = " ") -> None:
        """One row, after the day if it is another than before; `mark` is one sign beside the step."""
        screen, at = self.screen, local_time(timestamp)
        if f"{at:%Y-%m-%d}" != self._day:
            self._day = f"{at:%Y-%m-%d}"
            self.put(screen.paint(self._day, dim=True))
        is_narrow = screen.width < _NARROW
        width = min(self._width, max(6, screen.width // 4)) if is_narrow else self._width
        used = width + 1 + _WORD + 1 + (0 if is_narrow else 8 + 1 + 4 + 1)
        text = row.text.replace("\n", "\n" + " " * used) if self._full else screen.fit(row.text, used)
        style = {"bold": True} if row.colour == "bold" else {"dim": True} if row.colour == "dim" else {}
        named = {} if style or not row.colour else {"fg": row.colour}
        self.put(
            *(() if is_narrow else (screen.paint(f"{at:%H:%M:%S}", dim=True), " ")),
            screen.paint(_label(label, width), fg=self.colour(run_id)),
            mark if is_narrow else f" {step:>4}{mark}",
            screen.paint(f"{row.word:<{_WORD}}", **style, **named),
            " ",
            screen.paint(text, **style, **named) if row.colour in _LOUD else text.rstrip(),
        )


def _label(label: str, width: int) -> str:
    """The label in its column; of a long one the Expert is shortened, never the Run's number."""
    expert, mark, number = label.rpartition("#")
    end = mark + number
    return shorten(expert, max(1, width - len(end))) + end if len(label) > width else pad(label, width)
