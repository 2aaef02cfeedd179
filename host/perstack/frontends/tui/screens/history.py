"""F2: Jobs, newest first."""

from __future__ import annotations

from textual.widget import Widget

from perstack.frontends.tui.screens.base import OverScreen
from perstack.frontends.tui.widgets.lines import LinesView


class HistoryScreen(OverScreen):
    """Past Jobs."""

    TITLE_TEXT = "History"

    def body(self) -> list[Widget]:
        return [LinesView(id="history")]
