"""A Job as a person at a terminal watches it: the rows of the log as they come, and below them what is going on."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from perstack.core.events import Event
from perstack.core.job import JobSummary
from perstack.engine.clock import SYSTEM
from perstack.frontends.cli.live_lines import line_of, lines_of
from perstack.frontends.cli.row_printer import RowPrinter
from perstack.frontends.cli.terminal import Painted, Region, Screen, err, out, rendered
from perstack.frontends.shared.live_state import LiveState

_NARROWEST = 40
"""Cells below which lines are only added."""

_SOON = 0.1
"""Seconds between two drawings, while something happens."""

_LATER = 1.0
"""And while nothing does: only the time passes."""


class LiveView:
    """Shows events on stdout, or on stderr in one line below the rows: what reads stdout may write there as well."""

    def __init__(
        self, *, to_stderr: bool = False, rows: RowPrinter | None = None, state: LiveState | None = None
    ) -> None:
        self._of_screen = Screen.of_stderr if to_stderr else Screen.of_stdout
        self._is_one_line = to_stderr
        screen = self._of_screen()
        self.state = state or LiveState()
        self._region = Region(to_stderr=to_stderr) if screen.height and screen.width >= _NARROWEST else None
        self._rows = rows or RowPrinter(screen)
        self._rows.put = (err if to_stderr else out) if self._region is None else self._add
        self._timer: asyncio.TimerHandle | None = None
        self._drawn = 0.0

    def begin(self, job: JobSummary) -> None:
        """The Job was driven before."""
        self.state.begin(job)

    def take(self, event: Event, *, has_rows: bool = True) -> None:
        """Show what has happened, with rows of its own if it `has_rows`. Raises OSError."""
        told = self.state.take(event)
        if has_rows:
            self._rows.widen(one.label for one in told)
            for one in told:
                self._rows.print(*one)
        if self._region is not None:
            self._draw_within(_SOON)

    def pause(self) -> None:
        """Leave the terminal to others until the next event. Raises OSError."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._region is not None:
            self._region.erase()

    def forget(self) -> None:
        """Somebody else has used the terminal meanwhile."""
        if self._region is not None:
            self._region.forget()

    def _add(self, *parts: str | Painted) -> None:
        if self._region is not None:
            self._region.add(rendered(*parts))

    def _draw_within(self, seconds: float) -> None:
        """Draw when that much time has passed since it was drawn last."""
        loop = asyncio.get_running_loop()
        at = max(loop.time(), self._drawn + seconds)
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = loop.call_at(at, self._draw)

    def _draw(self) -> None:
        region = self._region
        if region is None:
            return
        self._timer = None
        self._drawn = asyncio.get_running_loop().time()
        screen = self._rows.screen = self._of_screen()
        now = SYSTEM.now()
        with suppress(OSError):  # the next event says so
            if self._is_one_line:
                region.draw([line_of(self.state, screen, now)] if self.state.lanes else [])
            else:
                region.draw(lines_of(self.state, screen, now, self._rows.colour))
            self._draw_within(_LATER)
