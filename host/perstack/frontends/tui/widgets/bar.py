"""One line of the screen, drawn from spans."""

from __future__ import annotations

from textual import events
from textual.message import Message

from perstack.frontends.tui.view.spans import Line, cells_of
from perstack.frontends.tui.widgets.lines import LinesView


class Bar(LinesView, can_focus=False):
    """A line that never scrolls; what is clicked on is told by its number."""

    DEFAULT_CSS = """
    Bar { height: 1; scrollbar-size: 0 0; padding: 0 1; }
    """

    class Clicked(Message):
        """The span of this number was clicked on."""

        def __init__(self, bar: Bar, number: int) -> None:
            super().__init__()
            self.bar = bar
            self.number = number

    def set(self, line: Line) -> None:
        """Show this line."""
        if [*self._lines] != [line]:
            self.show([line])

    def on_click(self, event: events.Click) -> None:
        """Which part it was."""
        left = event.x - 1
        for number, span in enumerate(self._lines[0] if self._lines else ()):
            left -= cells_of((span,))
            if left < 0:
                self.post_message(self.Clicked(self, number))
                return
