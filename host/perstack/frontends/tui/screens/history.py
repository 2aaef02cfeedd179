"""F2: Jobs, newest first."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.widget import Widget

from perstack.core.job import JobSummary
from perstack.errors import PerstackError
from perstack.frontends.tui.next_steps import said
from perstack.frontends.tui.screens.base import OverScreen, Program
from perstack.frontends.tui.view.history import history_lines, matching
from perstack.frontends.tui.view.spans import Span
from perstack.frontends.tui.widgets.bar import Bar
from perstack.frontends.tui.widgets.lines import LinesView

_MOST = 500
"""Jobs that are listed; `perstack jobs` lists all."""


class HistoryScreen(OverScreen):
    """Typing filters; Enter opens the Job, to be looked at, resumed, answered, or continued."""

    TITLE_TEXT = "History"
    KEYS = "type to filter   Up, Down choose   Enter opens   Esc back"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "choose(-1)", show=False, priority=True),
        Binding("down", "choose(1)", show=False, priority=True),
        Binding("enter", "open", show=False, priority=True),
    ]

    def __init__(self, over: Program) -> None:
        super().__init__(over)
        self._jobs: tuple[JobSummary, ...] = ()
        self._shown: list[JobSummary] = []
        self._typed = ""
        self._chosen = 0
        self._lines = LinesView(id="history")

    def body(self) -> list[Widget]:
        return [self._lines]

    def on_mount(self) -> None:
        self.run_worker(self._read(), exclusive=True)
        self._lines.focus()

    async def _read(self) -> None:
        try:
            self._jobs = (await self.over.host.jobs.list(limit=_MOST)).jobs
        except PerstackError as error:
            self._lines.show([(Span(f"  {error.said(said)}", "bad"),)])
            return
        self._show()

    def on_resize(self) -> None:
        self._show()

    def on_key(self, event: events.Key) -> None:
        """What is typed filters."""
        if event.key == "backspace":
            self._typed = self._typed[:-1]
        elif event.is_printable and event.character is not None:
            self._typed += event.character
        else:
            return
        event.stop()
        self._chosen = 0
        self._show()

    def _show(self) -> None:
        self._shown = matching(self._jobs, self._typed)
        self.query_one("#title", Bar).set((Span(f"{self.TITLE_TEXT}  ", "strong"), Span(self._typed, "person")))
        self._lines.show(history_lines(self._shown, self._chosen, max(40, self.size.width - 2)))

    def action_choose(self, step: int) -> None:
        """The next, or the one before."""
        if self._shown:
            self._chosen = max(0, min(self._chosen + step, len(self._shown) - 1))
            self._show()
            self._lines.scroll_to(y=max(0, self._chosen - self._lines.size.height + 2), animate=False)

    def action_open(self) -> None:
        """Show the Job in a tab."""
        if self._shown:
            self.over.open_job(self._shown[self._chosen].id)
