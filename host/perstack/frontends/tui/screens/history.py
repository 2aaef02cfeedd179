"""F2: Jobs, newest first, filtered by typing; one is opened, or looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import Key

from perstack.core.job import JobSummary
from perstack.frontends.tui.screens.base import Program
from perstack.frontends.tui.screens.job import JobScreen
from perstack.frontends.tui.screens.listing import ListScreen
from perstack.frontends.tui.view.history import job_line, matching
from perstack.frontends.tui.view.spans import Line, Span

_MOST = 1000
"""Jobs that are listed: the newest."""


class HistoryScreen(ListScreen[JobSummary]):
    """Enter opens a Job in a tab; Tab looks at its Runs, checkpoints and events."""

    TITLE_TEXT = "History"
    KEYS = "type to filter   Up, Down choose   Enter opens   Tab looks into it   Esc back"
    EMPTY = "No Job is of these words."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "look", show=False, priority=True),
        Binding("backspace", "less", show=False),
    ]

    def __init__(self, over: Program) -> None:
        super().__init__(over)
        self._typed = ""

    async def read(self) -> Sequence[JobSummary]:
        return (await self.over.host.jobs.list(limit=_MOST)).jobs

    def line(self, one: JobSummary, is_chosen: bool, width: int) -> Line:
        return job_line(one, is_chosen, width)

    def open(self, one: JobSummary) -> None:
        """Show it in a tab."""
        self.over.open_job(one.id)

    @property
    def shown(self) -> Sequence[JobSummary]:
        return matching(self.rows, self._typed)

    def show_head(self) -> None:
        self.title_line((Span(self.TITLE_TEXT, "strong"), Span(f"  {self._typed}▏")))

    def on_key(self, event: Key) -> None:
        """What is typed filters the Jobs."""
        if event.character is not None and event.character.isprintable():
            event.stop()
            self._filter(self._typed + event.character)

    def action_less(self) -> None:
        """Take a character back."""
        self._filter(self._typed[:-1])

    def action_look(self) -> None:
        """Show what the Job that is chosen consists of."""
        if self.chosen is not None:
            self.over.show(JobScreen(self.over, self.chosen.id))

    def _filter(self, typed: str) -> None:
        self._typed = typed
        self.list_again()
