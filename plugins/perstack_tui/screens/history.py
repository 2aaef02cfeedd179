"""The History (F2), which lists Jobs and filters them by typing, and the Inbox (F3)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import Key
from typing_extensions import override

from perstack.core.jobs.summary import JobSummary
from perstack.doors.shared.next_step_phrases import tui_phrase
from perstack.errors import PerstackError
from perstack.oversight.inbox import InboxItem
from perstack_tui.screens.base import ListScreen, ScreenHost
from perstack_tui.screens.job import JobScreen
from perstack_tui.view.history import filter_jobs, job_line
from perstack_tui.view.lines import inbox_line
from perstack_tui.view.styled_text import Line, Span

_FIRST_JOBS = 200  # number of Jobs that are read at once
_MAX_JOBS = 10_000  # maximum Jobs that are listed, the newest


class HistoryScreen(ListScreen[JobSummary]):
    """The History: Enter opens a Job in a tab; Tab shows its Runs, checkpoints and events."""

    TITLE_TEXT = "History"
    KEYS = "type to filter   Up, Down choose   Enter opens   Tab shows details   Esc back"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "look", show=False, priority=True),
        Binding("backspace", "less", show=False),
    ]

    def __init__(self, screen_host: ScreenHost) -> None:
        super().__init__(screen_host)
        self._filter_text = ""
        self._after: str | None = None  # cursor of the next Jobs to read; None after the last

    @override
    async def read(self) -> Sequence[JobSummary]:
        page = await self.screen_host.host.jobs.list(limit=_FIRST_JOBS)
        self._after = page.next
        self.run_worker(self._read_more(), exclusive=True, group="more")
        return page.jobs

    async def _read_more(self) -> None:
        try:
            while self._after is not None and len(self.rows) < _MAX_JOBS:
                page = await self.screen_host.host.jobs.list(limit=_FIRST_JOBS, after=self._after)
                self._after, self.rows = page.next, [*self.rows, *page.jobs]
                self.show_rows(self.chosen_index)
        except PerstackError as error:
            self.notify(error.text_for(tui_phrase), severity="error", markup=False)

    @property
    def empty_text(self) -> str:
        """The text shown if no Job matches; until all are read, with the number read so far."""
        if not self._filter_text:
            return "There are no Jobs yet."
        if self._after is None:
            return "No Job contains these words."
        return f"None of the newest {len(self.rows):,} Jobs contains these words."

    @override
    def line(self, summary: JobSummary, is_chosen: bool, width: int) -> Line:
        return job_line(summary, is_chosen, width)

    @override
    def open(self, summary: JobSummary) -> None:
        self.screen_host.open_job(summary.id)

    @property
    @override
    def visible_rows(self) -> Sequence[JobSummary]:
        return filter_jobs(self.rows, self._filter_text)

    @override
    def update_head(self) -> None:
        self.title_line((Span(self.TITLE_TEXT, "strong"), Span(f"  {self._filter_text}▏")))

    def on_key(self, key: Key) -> None:
        """Filter the Jobs by the typed text."""
        if key.character is not None and key.character.isprintable():
            key.stop()
            self._filter(self._filter_text + key.character)

    def action_less(self) -> None:
        """Delete the last typed character."""
        self._filter(self._filter_text[:-1])

    def action_look(self) -> None:
        """Show the Runs, checkpoints and events of the chosen Job."""
        if self.chosen_row is not None:
            self.screen_host.show(JobScreen(self.screen_host, self.chosen_row.id))

    def _filter(self, typed: str) -> None:
        self._filter_text = typed
        self.show_rows()


# The Inbox (F3): every open question of all Jobs and tasks.

_REFRESH_INTERVAL_S = 1.0  # minimum seconds between two readings: other processes also ask and answer
_PAUSE_FACTOR = 20  # minimum interval as a multiple of the duration of a reading


class InboxScreen(ListScreen[InboxItem]):
    """The Inbox; Enter opens the Job that asks."""

    TITLE_TEXT = "Inbox"
    KEYS = "Up, Down choose   Enter opens   Esc back"
    EMPTY = "Nothing waits for you."
    _initial_index = 0

    @override
    def reload(self) -> None:
        self.run_worker(self._keep_reading(), exclusive=True, group="rows")

    async def _keep_reading(self) -> None:
        while True:
            began = time.monotonic()
            await self.read_rows()
            await asyncio.sleep(max(_REFRESH_INTERVAL_S, _PAUSE_FACTOR * (time.monotonic() - began)))

    @override
    async def read(self) -> Sequence[InboxItem]:
        items = await self.screen_host.host.inbox()
        ids = [item.id for item in items]
        chosen_id = next((row.id for row in self.rows[self.chosen_index :] if row.id in ids), None)
        self._initial_index = self.chosen_index if chosen_id is None else ids.index(chosen_id)
        return items

    @override
    def initial_index(self) -> int:
        return self._initial_index

    @override
    def line(self, row: InboxItem, is_chosen: bool, width: int) -> Line:
        return inbox_line(row, is_chosen, self.screen_host.host.clock.now(), width)

    def open(self, row: InboxItem) -> None:
        """Show the Job in a tab, where it is answered. A task is answered on the command line."""
        if row.job_id is not None:
            self.screen_host.open_job(row.job_id)
        elif row.next_steps:
            self.notify("; ".join(map(tui_phrase, row.next_steps)), title="It cannot be answered", markup=False)
        elif row.damaged:
            self.notify(row.text, severity="error", markup=False)
        elif row.task_id is not None:
            self.notify(f"perstack answer {row.task_id} ANSWER", title="A task is answered by a command", markup=False)
