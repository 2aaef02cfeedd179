"""F1: every key, and what it does."""

from __future__ import annotations

from textual.widget import Widget

from perstack.frontends.shared.words import pad
from perstack.frontends.tui.actions import ACTIONS, OF_HISTORY, OTHER_KEYS
from perstack.frontends.tui.screens.base import OverScreen, Program
from perstack.frontends.tui.view.spans import Line, Span, wrap
from perstack.frontends.tui.widgets.lines import LinesView

_COLUMN = 12


def help_lines(width: int) -> list[Line]:
    """A line, or several, for each key."""
    found: list[Line] = []
    of_actions = [(action.shown, action.text) for action in ACTIONS if action.shown]
    of_history = [(action.shown, action.text) for action in OF_HISTORY]
    for title, rows in (
        ("Keys", of_actions),
        ("While you type, and look", OTHER_KEYS),
        ("In the History, from a Job, a Run or a checkpoint", of_history),
    ):
        found += [(Span(f"  {title}", "strong"),), ()]
        for key, text in rows:
            first, *others = wrap(text, max(10, width - _COLUMN - 4))
            found.append((Span(f"  {pad(key, _COLUMN)}", "person"), Span(first)))
            found += [(Span(" " * (_COLUMN + 2)), Span(other)) for other in others]
        found.append(())
    return found


class HelpScreen(OverScreen):
    """Every key."""

    TITLE_TEXT = "Help"
    KEYS = "Up, Down, PgUp, PgDn scroll   Esc back"

    def __init__(self, over: Program) -> None:
        super().__init__(over)
        self.id = "help-screen"

    def body(self) -> list[Widget]:
        return [LinesView(id="help")]

    def on_mount(self) -> None:
        self._show()
        self.query_one("#help").focus()

    def on_resize(self) -> None:
        self._show()

    def _show(self) -> None:
        self.query_one("#help", LinesView).show(help_lines(self.size.width - 2))
