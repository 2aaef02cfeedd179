"""F2: Jobs, newest first, and the checkpoints of one, from which it can be branched."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import Key
from textual.widget import Widget

from perstack.core.job import JobSummary
from perstack.engine.logs.runs import checkpoint_at
from perstack.errors import PerstackError
from perstack.frontends.tui.next_steps import said
from perstack.frontends.tui.screens.base import OverScreen, Program
from perstack.frontends.tui.view.history import Place, job_lines, matching, place_lines
from perstack.frontends.tui.view.spans import Line, Span
from perstack.frontends.tui.widgets.bar import Bar
from perstack.frontends.tui.widgets.lines import LinesView

_MOST = 1000
"""Jobs that are listed: the newest."""
_JOB_KEYS = "type to filter   Up, Down choose   Enter opens   Tab checkpoints   Esc back"
_PLACE_KEYS = "Up, Down choose   Enter branches from it   Esc back to the Jobs"


class HistoryScreen(OverScreen):
    """Enter opens a Job, or branches from a checkpoint; Tab shows the checkpoints of the Job that is chosen."""

    TITLE_TEXT = "History"
    KEYS = _JOB_KEYS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "choose(-1)", show=False, priority=True),
        Binding("down", "choose(1)", show=False, priority=True),
        Binding("pageup", "choose(-10)", show=False, priority=True),
        Binding("pagedown", "choose(10)", show=False, priority=True),
        Binding("enter", "open", show=False, priority=True),
        Binding("tab", "places", show=False, priority=True),
        Binding("backspace", "less", show=False, priority=True),
    ]

    def __init__(self, over: Program) -> None:
        super().__init__(over)
        self._jobs: tuple[JobSummary, ...] = ()
        self._typed = ""
        self._of: str | None = None
        self._places: tuple[Place, ...] = ()
        self._chosen = 0
        self._lines = LinesView(id="history")

    def body(self) -> list[Widget]:
        return [self._lines]

    def on_mount(self) -> None:
        self.run_worker(self._read(), exclusive=True)
        self._lines.focus()

    def on_resize(self) -> None:
        self._show()

    def on_key(self, event: Key) -> None:
        """What is typed filters the Jobs."""
        if self._of is None and event.character is not None and event.character.isprintable():
            event.stop()
            self._filter(self._typed + event.character)

    def action_less(self) -> None:
        """Take a character back."""
        if self._of is None:
            self._filter(self._typed[:-1])

    def action_choose(self, step: int) -> None:
        """So many further, or before."""
        those = self._shown if self._of is None else self._places
        if those:
            self._chosen = max(0, min(self._chosen + step, len(those) - 1))
            self._show()
            self._lines.scroll_to(y=max(0, self._chosen - self._lines.size.height + 1), animate=False)

    def action_open(self) -> None:
        """Open the Job, or branch from the checkpoint."""
        if self._of is not None:
            if self._places:
                self.over.branch(self._of, self._places[self._chosen].id)
        elif self._shown:
            self.over.open_job(self._shown[self._chosen].id)

    def action_places(self) -> None:
        """Show the checkpoints of the Job that is chosen."""
        if self._of is None and self._shown:
            self.run_worker(self._read_places(self._shown[self._chosen].id), exclusive=True)

    def action_back(self) -> None:
        """From the checkpoints to the Jobs, and from there to the program."""
        if self._of is None:
            super().action_back()
            return
        at = next((number for number, job in enumerate(self._shown) if job.id == self._of), 0)
        self._of, self._places, self._chosen = None, (), at
        self._show()

    @property
    def _shown(self) -> tuple[JobSummary, ...]:
        return matching(self._jobs, self._typed)

    def _filter(self, typed: str) -> None:
        self._typed, self._chosen = typed, 0
        self._show()

    async def _read(self) -> None:
        try:
            self._jobs = (await self.over.host.jobs.list(limit=_MOST)).jobs
        except PerstackError as error:
            self._lines.show([(Span(f"  {error.said(said)}", "bad"),)])
            return
        self._show()

    async def _read_places(self, job_id: str) -> None:
        found: list[Place] = []
        jobs = self.over.host.jobs
        try:
            for run in (await jobs.runs(job_id)).runs:
                for line in await jobs.events(run.id, job_id=job_id):
                    checkpoint = checkpoint_at(line.event)
                    if checkpoint is not None:
                        found.append(Place(line.event.step_number, checkpoint, run.expert_key))
        except PerstackError as error:
            self.notify(error.said(said), severity="error", markup=False)
            return
        self._of, self._places, self._chosen = job_id, tuple(found), max(0, len(found) - 1)
        self._show()

    def _show(self) -> None:
        width = self.size.width - 2
        title: Line = (
            Span(self.TITLE_TEXT, "strong"),
            Span(f"  {self._typed}▏" if self._of is None else f"  {self._of}"),
        )
        self.query_one("#title", Bar).set(title)
        self.query_one("#keys", Bar).set((Span(_JOB_KEYS if self._of is None else _PLACE_KEYS, "dim"),))
        if self._of is None:
            self._lines.show(job_lines(self._shown, self._chosen, width))
        else:
            self._lines.show(place_lines(self._places, self._chosen, width))
