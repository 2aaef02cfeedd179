"""A screen of lines that scroll, made for its width."""

from __future__ import annotations

from abc import abstractmethod

from textual.widget import Widget

from perstack.frontends.tui.screens.base import OverScreen, Program
from perstack.frontends.tui.view.spans import Line
from perstack.frontends.tui.widgets.lines import LinesView


class LinesScreen(OverScreen):
    """Up, Down and the page keys scroll."""

    KEYS = "Up, Down, PgUp, PgDn scroll   Esc back"

    def __init__(self, over: Program) -> None:
        super().__init__(over)
        self.lines_view = LinesView(id="lines")

    @abstractmethod
    def made(self, width: int) -> list[Line]:
        """The lines for that width."""

    def body(self) -> list[Widget]:
        return [self.lines_view]

    def on_mount(self) -> None:
        self.lines_view.focus()

    def on_resize(self) -> None:
        self.draw()

    def draw(self) -> None:
        """Make the lines again, and show them from the first."""
        self.lines_view.show(self.made(max(20, self.size.width - 2)))
        self.lines_view.scroll_to(y=0, animate=False, immediate=True, force=True)
