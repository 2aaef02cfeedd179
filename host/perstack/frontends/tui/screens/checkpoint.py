"""A checkpoint: the messages as the model sees them there, or what is new in them."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType

from perstack.core.checkpoint import Checkpoint
from perstack.errors import PerstackError
from perstack.frontends.shared.checkpoints import new_in
from perstack.frontends.shared.log_entries import Place
from perstack.frontends.tui.actions import bindings_of
from perstack.frontends.tui.next_steps import said
from perstack.frontends.tui.screens.base import Program
from perstack.frontends.tui.screens.of_job import OfJob
from perstack.frontends.tui.screens.texts import PageScreen
from perstack.frontends.tui.view.history import name_of_place
from perstack.frontends.tui.view.items import Remark
from perstack.frontends.tui.view.messages import Fact, Page, checkpoint_page, new_page
from perstack.frontends.tui.view.spans import Span

_ALL, _NEW = _VIEWS = ("Messages", "New since the step before")


class CheckpointScreen(OfJob, PageScreen):
    """Tab goes from all messages to those that are new, and back."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab,shift+tab", "view", show=False, priority=True),
        *bindings_of(OfJob.ACTIONS),
    ]

    def __init__(self, over: Program, job_id: str, place: Place, *, marked: str | None = None) -> None:
        super().__init__(over)
        self._job_id = job_id
        self._place = place
        self.marked = marked
        self._view = _ALL
        self._pages: dict[str, Page] = {}
        self._checkpoint: Checkpoint | None = None

    def on_mount(self) -> None:
        self._show()

    def action_view(self) -> None:
        """The other view."""
        self._view = _NEW if self._view == _ALL else _ALL
        self._show()

    def _show(self) -> None:
        self.marked_another()
        if self._view in self._pages:
            self.page.begin(self._pages[self._view])
        else:
            self.page.begin(Page([Fact("", "…")]))
            self.run_worker(self._read(self._view), exclusive=True, group="page")

    async def _read(self, view: str) -> None:
        host = self.over.host
        try:
            checkpoint = self._checkpoint
            if checkpoint is None:
                checkpoint = self._checkpoint = await host.checkpoint(self._place.id, job_id=self._job_id)
            page = checkpoint_page(checkpoint) if view == _ALL else new_page(checkpoint, await new_in(host, checkpoint))
        except PerstackError as error:
            page = Page([Remark("error", error.said(said), "bad")])
        self._pages[view] = page
        if view == self._view:
            self.page.begin(page)

    # --- what actions are about -----------------------------------------------------------------------------------

    @property
    def job_id(self) -> str:
        return self._job_id

    @property
    def expert(self) -> str:
        return self._place.expert

    @property
    def run_id(self) -> str | None:
        return self._place.run_id

    @property
    def place(self) -> Place | None:
        return self._place

    def marked_another(self) -> None:
        mark = "● " if self.marked == self._place.id else ""
        views = (Span(f"  {one}", "person" if one == self._view else "dim") for one in _VIEWS)
        self.title_line((Span(mark, "person"), Span(name_of_place(self._place), "strong"), *views))
        self.keys_line(self.keys_that_fit("Tab other view", "Enter unfolds"))
