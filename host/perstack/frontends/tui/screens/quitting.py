"""Ctrl+Q while Jobs are at work: keep waiting, or interrupt them."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from perstack.frontends.shared.words import count
from perstack.frontends.tui.view.spans import Span
from perstack.frontends.tui.widgets.lines import LinesView


class QuitScreen(ModalScreen[bool]):
    """Whether to leave."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,w,enter", "stay", show=False),
        Binding("i,ctrl+q", "leave", show=False),
    ]
    DEFAULT_CSS = """
    QuitScreen { align: center middle; background: $background 60%; }
    QuitScreen > Vertical { width: 62; height: auto; border: round $rule; background: $background; padding: 1 2; }
    QuitScreen LinesView { height: 4; background: $background; }
    """

    def __init__(self, jobs: int) -> None:
        super().__init__()
        self._jobs = jobs

    def compose(self) -> ComposeResult:
        are = "is" if self._jobs == 1 else "are"
        with Vertical():
            yield LinesView(
                [
                    (Span(f"{count(self._jobs, 'Job')} {are} at work.", "strong"),),
                    (),
                    (Span("w ", "person"), Span("keep waiting")),
                    (Span("i ", "person"), Span("interrupt, which is recorded, and leave")),
                ]
            )

    def action_stay(self) -> None:
        self.dismiss(False)

    def action_leave(self) -> None:
        self.dismiss(True)
