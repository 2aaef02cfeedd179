"""Log rows and the live view at the bottom of a terminal: what each Run is doing, and the totals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from perstack.core.base.text import count, one_line, plain_text
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.events import Event
from perstack.core.runs.log_rows import LogRow
from perstack.doors.cli.terminal import LiveRegion, print_err, print_out, render_line
from perstack.doors.shared.activity import JobActivity, RunActivity, call_line, todos_words, total_texts, with_duration
from perstack.doors.shared.job_printer import JobPrinter, WriteLine
from perstack.doors.shared.markdown import Line
from perstack.doors.shared.next_step_phrases import cli_phrase
from perstack.doors.shared.screen import Screen, StyledText, style_of
from perstack.doors.shared.text import break_anywhere, cells, local_time, pad, shorten
from perstack.system.clock import SYSTEM

_MAX_RUNS = 8
_MAX_TEXT_LINES = 6  # maximum lines of a streamed text
_MAX_LABEL_CELLS = 24


def lines_of(
    state: JobActivity,
    screen: Screen,
    now: int,
    colour: Callable[[str], str],
    unfinished: Callable[[str], list[Line]] | None = None,
) -> list[Line]:
    """Return as many lines as fit, each narrower than the screen. `colour` returns a Run's colour.

    `unfinished` returns the lines of a Run's text that are not printed yet; without it, the end of its text is shown.
    """
    lanes = list(state.lanes.values())
    if not lanes and not state.skills:
        return []
    room = max(1, min(_MAX_RUNS, screen.height - 4))
    visible = lanes[-room:]
    lines: list[Line] = []
    if len(lanes) > len(visible):
        lines.append(
            (screen.styled(_fit_line(f"{count(len(lanes) - len(visible), 'more Run')} at work", screen), dim=True),)
        )
    label = min(_MAX_LABEL_CELLS, screen.width // 4, max((cells(lane.label) for lane in visible), default=0))
    for lane in visible:
        if unfinished is not None and len(lanes) == 1 and lane.text and not lane.is_thinking:
            writing = (pad(lane.label, label), " ", screen.styled("the model writes", dim=True))
            lines += unfinished(lane.run_id)[-room:] or [writing]
            continue
        lines += _lane(lane, screen, now, label, colour(lane.run_id), room if len(lanes) == 1 else 1)
    lines += [(_fit_line(todos_words(lane), screen),) for lane in lanes[:1] if lane.todos]
    lines.append((screen.styled(_fit_line(", ".join(total_texts(state, now)), screen), dim=True),))
    return lines


def line_of(state: JobActivity, screen: Screen, now: int) -> Line:
    """Return the whole state in one line."""
    lanes = list(state.lanes.values())
    if len(lanes) == 1:
        first = f"{lanes[0].label} {_activity_line(lanes[0], now)}"
    else:
        first = f"{count(len(lanes), 'Run')} at work" if lanes else "begins"
    return (screen.styled(_fit_line(f"{', '.join(total_texts(state, now))}: {first}", screen), dim=True),)


def _lane(lane: RunActivity, screen: Screen, now: int, width: int, colour: str, room: int) -> list[Line]:
    label = screen.styled(pad(lane.label, width), fg=colour)
    text_cells = max(4, screen.width - 1 - width - 1)
    if lane.text:
        texts = _tail(lane.text, text_cells, min(room, _MAX_TEXT_LINES))
        style: dict[str, str | bool] = {"dim": True} if lane.is_thinking else {}
        return [
            (label if not index else " " * width, " ", screen.styled(text, **style) if style else text)
            for index, text in enumerate(texts)
        ]
    works = list(lane.work.values())
    if len(works) > 1 and room > 1:
        visible = works[-room:]
        return [
            (
                label if not index else " " * width,
                " ",
                screen.styled(call_line(call_activity, now, text_cells), fg="cyan"),
            )
            for index, call_activity in enumerate(visible)
        ]
    doing = _activity_line(lane, now, text_cells)
    return [(label, " ", screen.styled(doing, fg="cyan") if works else screen.styled(doing, dim=True))]


def _activity_line(lane: RunActivity, now: int, text_cells: int = 10_000) -> str:
    if lane.text:
        return _tail(lane.text, text_cells, 1)[-1]
    if lane.work:
        suffix = f" and {count(len(lane.work) - 1, 'more call')}" if len(lane.work) > 1 else ""
        return call_line(next(iter(lane.work.values())), now, text_cells - len(suffix)) + suffix
    return with_duration(lane.doing or "begins", lane.since, now, text_cells)


def _fit_line(text: str, screen: Screen) -> str:
    return shorten(text, screen.width - 1)


def _tail(text: str, width: int, max_lines: int) -> list[str]:
    lines: list[str] = []
    for line in plain_text(text[-width * (max_lines + 1) :]).split("\n"):
        lines += break_anywhere(one_line(line), width)
    while lines and not lines[-1]:
        lines.pop()
    return lines[-max_lines:] or [""]


# Rows of the log in columns, for `perstack log` and while a Job is driven.

_RUN_COLOURS = ("blue", "yellow", "magenta", "cyan", "green", "bright_blue", "bright_yellow", "bright_magenta")
_WORD_CELLS = 9
_NARROW_CELLS = 60  # screen width below which the time and the step are left out
_TEXT_COLOURS = ("red", "green", "magenta", "bold", "dim")  # colours that apply to a row's text as well as its word


class RowPrinter:
    """A printer of rows with their time, Run and step; each Run has one colour."""

    def __init__(self, screen: Screen, *, full: bool = False, write_line: WriteLine = print_out) -> None:
        """Print rows for `screen` with `write_line`; `full` prints texts unshortened."""
        self.screen = screen
        self._full = full
        self.write_line = write_line
        self._colours: dict[str, str] = {}
        self._width = 0
        self._day = ""

    def colour(self, run_id: str) -> str:
        """Return the colour of a Run, assigned in the order of the first calls."""
        return self._colours.setdefault(run_id, _RUN_COLOURS[len(self._colours) % len(_RUN_COLOURS)])

    def widen(self, labels: Iterable[str]) -> None:
        """Widen the label column for these labels, for the following rows."""
        self._width = min(_MAX_LABEL_CELLS, max((self._width, *map(len, labels))))

    def print(self, timestamp: int, run_id: str, label: str, step: int, row: LogRow, mark: str = " ") -> None:
        """Print a row, after the date if it changed; `mark` is one character next to the step."""
        screen, time = self.screen, local_time(timestamp)
        if f"{time:%Y-%m-%d}" != self._day:
            self._day = f"{time:%Y-%m-%d}"
            self.write_line(screen.styled(self._day, dim=True))
        is_narrow = screen.width < _NARROW_CELLS
        width = min(self._width, max(6, screen.width // 4)) if is_narrow else self._width
        prefix_cells = width + 1 + _WORD_CELLS + 1 + (0 if is_narrow else 8 + 1 + 4 + 1)
        text = row.text.replace("\n", "\n" + " " * prefix_cells) if self._full else screen.fit(row.text, prefix_cells)
        style = style_of(row.colour)
        self.write_line(
            *(() if is_narrow else (screen.styled(f"{time:%H:%M:%S}", dim=True), " ")),
            screen.styled(_label(label, width), fg=self.colour(run_id)),
            mark if is_narrow else f" {step:>4}{mark}",
            screen.styled(f"{row.word:<{_WORD_CELLS}}", **style),
            " ",
            screen.styled(text, **style) if row.colour in _TEXT_COLOURS else text.rstrip(),
        )


def _label(label: str, width: int) -> str:
    """Return the label fitted to its column; the Expert's key is shortened, never the Run's number."""
    expert, mark, number = label.rpartition("#")
    end = mark + number
    return shorten(expert, max(1, width - len(end))) + end if len(label) > width else pad(label, width)


# A Job for a user at a terminal: log rows as they arrive, and the current state below them.

_MIN_CELLS = 40  # screen width below which lines are only appended
_EVENT_FRAME_S = 0.1  # seconds between two drawings while events arrive
_TEXT_FRAME_S = 0.2  # seconds between two drawings if each renders a growing text
_CLOCK_FRAME_S = 1.0  # seconds between two drawings while only time passes


class LiveView:
    """The live view: on stdout, or as one line on stderr, where the program that reads stdout may write as well."""

    def __init__(
        self,
        *,
        to_stderr: bool = False,
        rows: RowPrinter | None = None,
        state: JobActivity | None = None,
        is_compact: bool = True,
        is_verbose: bool = False,
    ) -> None:
        """Show events as log rows if `is_compact`, otherwise as the model's texts.

        `rows` and `state` default to new ones.

        `is_verbose` shows the results of tools in full.
        """
        self._of_screen = Screen.of_stderr if to_stderr else Screen.of_stdout
        self._is_one_line = to_stderr
        screen = self._of_screen()
        self.state = state or JobActivity()
        self._region = LiveRegion(to_stderr=to_stderr) if screen.height and screen.width >= _MIN_CELLS else None
        write_line = (print_err if to_stderr else print_out) if self._region is None else self._add
        self._rows = rows or RowPrinter(screen)
        self._rows.write_line = write_line
        self._page = None if is_compact else JobPrinter(write_line, self._of_screen, cli_phrase, is_verbose=is_verbose)
        self._timer: asyncio.TimerHandle | None = None
        self._drawn = 0.0

    @property
    def finished_job_id(self) -> str | None:
        """The Job whose result was shown in full last; None if none was."""
        return None if self._page is None else self._page.finished_job_id

    def begin(self, summary: JobSummary) -> None:
        """Start with the totals of a Job that was driven before."""
        self.state.begin(summary)

    def show_event(self, event: Event, *, has_rows: bool = True) -> None:
        """Show an event, with its rows if `has_rows`. Raises OSError."""
        rows = self.state.apply(event)
        if self._page is not None:
            self._page.print_event(event, rows, self.state)
        elif has_rows:
            self._rows.widen(row.label for row in rows)
            for row in rows:
                self._rows.print(*row)
        if self._region is not None:
            self._draw_within(_EVENT_FRAME_S if self._page is None else _TEXT_FRAME_S)

    def pause(self) -> None:
        """Erase the live lines until the next event. Raises OSError."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._region is not None:
            self._region.erase()

    def forget(self) -> None:
        """Forget the live lines, since another program used the terminal."""
        if self._region is not None:
            self._region.forget()

    def _add(self, *parts: str | StyledText) -> None:
        if self._region is not None:
            self._region.add(render_line(*parts))

    def _draw_within(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        due = max(loop.time(), self._drawn + seconds)
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = loop.call_at(due, self._draw)

    def _draw(self) -> None:
        region = self._region
        if region is None:
            return
        self._timer = None
        self._drawn = asyncio.get_running_loop().time()
        screen = self._rows.screen = self._of_screen()
        now = SYSTEM.now()
        with suppress(OSError):  # the next event reports the error
            if self._is_one_line:
                region.draw([line_of(self.state, screen, now)] if self.state.lanes else [])
            else:
                unfinished = None if self._page is None else self._page.unfinished
                region.draw(lines_of(self.state, screen, now, self._rows.colour, unfinished))
            self._draw_within(_CLOCK_FRAME_S)
