"""Texts under their titles, which fold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from perstack.core.plain import one_line
from perstack.frontends.tui.screens.base import OverScreen, Program
from perstack.frontends.tui.view.messages import Page, texts_page
from perstack.frontends.tui.view.spans import Span
from perstack.frontends.tui.widgets.nodes import NodesView


class PageScreen(OverScreen):
    """A page of items. Up and Down choose, Enter folds, Ctrl+O folds all."""

    KEYS = "Up, Down choose   Enter unfolds   ^O all   PgUp, PgDn   Esc back"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+o", "fold_all", show=False)]

    def __init__(self, over: Program) -> None:
        super().__init__(over)
        self.page = NodesView(Page(), over.host.clock.now, follows=False, id="page")

    def body(self) -> list[Widget]:
        return [self.page]

    def on_mount(self) -> None:
        self.page.focus()

    def action_fold_all(self) -> None:
        """Show more, or less, of all."""
        self.page.fold_all()


class TextsScreen(PageScreen):
    """Texts that are there already."""

    def __init__(self, over: Program, title: str, texts: Sequence[tuple[str, str]]) -> None:
        super().__init__(over)
        self._shown = title
        self._texts = texts

    def on_mount(self) -> None:
        self.title_line((Span(one_line(self._shown), "strong"),))
        self.page.begin(texts_page(self._texts))
