"""What was done to files: by a Job, a Run or a step, between two checkpoints, or from one until now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from textual.binding import Binding, BindingType

from perstack.engine.job_files import FilesDiff
from perstack.errors import PerstackError
from perstack.frontends.tui.next_steps import said
from perstack.frontends.tui.screens.base import Program
from perstack.frontends.tui.screens.lines import LinesScreen
from perstack.frontends.tui.view.files import files_lines, words_lines
from perstack.frontends.tui.view.spans import Line, Span


class Compared(NamedTuple):
    """One comparison, as `host.jobs.diff` takes it."""

    title: str
    what: str | None = None
    run_id: str | None = None


class FilesScreen(LinesScreen):
    """Tab goes to the next comparison, if there are several."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "view(1)", show=False, priority=True),
        Binding("shift+tab", "view(-1)", show=False, priority=True),
    ]

    def __init__(self, over: Program, job_id: str, views: Sequence[Compared]) -> None:
        """The first of the views is shown at first."""
        super().__init__(over)
        self._job_id = job_id
        self._views = views
        self._at = 0
        self._found: dict[int, FilesDiff | str] = {}
        """What was found for each view, or why nothing could be."""

    def on_mount(self) -> None:
        if len(self._views) > 1:
            self.keys_line("Tab other comparison   Up, Down, PgUp, PgDn scroll   Esc back")
        self._show()

    def action_view(self, step: int) -> None:
        """The next comparison, or the one before."""
        self._at = (self._at + step) % len(self._views)
        self._show()

    def made(self, width: int) -> list[Line]:
        found = self._found.get(self._at)
        if found is None:
            return words_lines("…", width, "dim")
        if isinstance(found, str):
            return words_lines(found, width, "warn")
        return files_lines(found.files, width) or words_lines(f"{found.of}: no file was changed", width, "dim")

    def _show(self) -> None:
        titles = (Span(f"{one.title}  ", "person" if at == self._at else "dim") for at, one in enumerate(self._views))
        self.title_line((Span("Files  ", "strong"), *titles))
        self.draw()
        if self._at not in self._found:
            self.run_worker(self._read(self._at), exclusive=True, group="files")

    async def _read(self, at: int) -> None:
        view = self._views[at]
        try:
            self._found[at] = await self.over.host.jobs.diff(self._job_id, view.what, run_id=view.run_id)
        except PerstackError as error:
            self._found[at] = error.said(said)
        if at == self._at:
            self.draw()
