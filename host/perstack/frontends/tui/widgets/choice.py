"""Rows of which one is chosen: as many as there are, made when they are seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeAlias

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip

from perstack.frontends.tui.view.spans import Line, Span
from perstack.frontends.tui.widgets.lines import LinesView

Row: TypeAlias = Callable[[int, bool, int], Line]
"""The row of that number, from 0; whether it is the chosen one; and how many cells it has."""


class Choice(LinesView):
    """Up and Down choose, Enter opens. Ten thousand rows cost what is seen of them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "choose(-1)", show=False),
        Binding("down", "choose(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "choose_at(0)", show=False),
        Binding("end", "choose_at(-1)", show=False),
        Binding("enter", "open", show=False),
    ]

    class Opened(Message):
        """Enter was pressed on a row, or it was clicked on when it was chosen already."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.chosen = 0
        self.count = 0
        self._row: Row = lambda at, is_chosen, width: ()
        self._empty = ""

    def offer(self, count: int, row: Row, *, chosen: int = 0, empty: str = "") -> None:
        """These from now on; `empty` is said if there are none."""
        self.count, self._row, self._empty = count, row, empty
        self.measure()
        self.choose_at(chosen)
        self.call_after_refresh(self._into_view)

    def choose_at(self, at: int) -> None:
        """This one, and have it seen; a negative number counts from the end."""
        at = self.count + at if at < 0 else at
        self.chosen = max(0, min(at, self.count - 1))
        self._into_view()
        self.refresh()

    def action_choose(self, step: int) -> None:
        self.choose_at(max(0, self.chosen + step))

    def action_page(self, pages: int) -> None:
        self.choose_at(max(0, self.chosen + pages * max(1, self.size.height - 1)))

    def action_choose_at(self, at: int) -> None:
        self.choose_at(at)

    def action_open(self) -> None:
        if self.count:
            self.post_message(self.Opened())

    def on_resize(self) -> None:
        """What is chosen stays in sight, also when a scrollbar has come."""
        self.measure()
        self._into_view()
        self.call_after_refresh(self._into_view)

    def whole_height(self) -> int:
        return max(self.count, 2)

    def on_click(self, event: events.Click) -> None:
        """What is clicked on is chosen, and opened if it was chosen before."""
        at = event.y + round(self.scroll_y)
        if at < self.count:
            was = self.chosen
            self.choose_at(at)
            if was == at:
                self.post_message(self.Opened())

    def _into_view(self) -> None:
        top = round(self.scroll_y)
        if self.size.height and not top <= self.chosen < top + self.size.height:
            above = 0 if self.chosen < top else self.size.height - 1
            self.scroll_to(y=max(0, self.chosen - above), animate=False, immediate=True, force=True)

    def render_line(self, y: int) -> Strip:
        at = y + round(self.scroll_y)
        if at < self.count:
            is_chosen = at == self.chosen
            width = self.scrollable_content_region.width  # `size` counts the scrollbar in
            return self.strip(self._row(at, is_chosen, width), has_cursor=is_chosen)
        return self.strip((Span(f"  {self._empty}", "dim"),) if at == 1 and not self.count else ())
