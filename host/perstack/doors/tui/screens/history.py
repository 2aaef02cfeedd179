"""F2: Jobs, newest first, filtered by typing; one is opened, or looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import Key

from perstack.core.job import JobSummary
from perstack.errors import PerstackError
from perstack.frontends.tui.next_steps import said
from perstack.frontends.tui.screens.base import Program
from perstack.frontends.tui.screens.job import JobScreen
from perstack.frontends.tui.screens.listing import ListScreen
from perstack.frontends.tui.view.history import job_line, matching
from perstack.frontends.tui.view.spans import Line, Span

_PAGE = 200
"""Jobs that are read before they are shown."""

_MOST = 10_000
"""Jobs that are listed: the newest."""


class HistoryScreen(ListScreen[JobSummary]):
    """Enter opens a Job in a tab; Tab looks at its Runs, checkpoints and events."""

    TITLE_TEXT = "History"
    KEYS = "type to filter   Up, Down choose   Enter opens   Tab looks into it   Esc back"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "look", show=False, priority=True),
        Binding("backspace", "less", show=False),
    ]

    def __init__(self, over: Program) -> None:
        super().__init__(over)
        self._typed = ""
        self._after: str | None = None
        """Where the Jobs continue that have not been read."""

    async def read(self) -> Sequence[JobSummary]:
        page = await self.over.host.jobs.list(limit=_PAGE)
        self._after = page.next
        self.run_worker(self._read_on(), exclusive=True, group="more")
        return page.jobs

    async def _read_on(self) -> None:
        """The older ones, while the newest are looked at."""
        try:
            while self._after is not None and len(self.rows) < _MOST:
                page = await self.over.host.jobs.list(limit=_PAGE, after=self._after)
                self._after, self.rows = page.next, [*self.rows, *page.jobs]
                self.list_again(self._list.chosen)
        except PerstackError as error:
            self.notify(error.said(said), severity="error", markup=False)

    @property
    def empty(self) -> str:
        """What is said where there is nothing, of as many as have been read."""
        if not self._typed:
            return "There are no Jobs yet."
        if self._after is None:
            return "No Job has these words."
        return f"None of the newest {len(self.rows):,} Jobs has these words."

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
