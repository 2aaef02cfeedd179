"""Ctrl+Q while Jobs are at work: keep waiting, or interrupt them; and what may be done while that takes long."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from perstack.frontends.shared.words import count
from perstack.frontends.tui.view.spans import Line, Span
from perstack.frontends.tui.widgets.lines import LinesView


class QuitScreen(ModalScreen[None]):
    """Whether to leave. Once that is said, nothing else can be begun: what is waited for may be a dead storage."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,w,enter", "stay", show=False),
        Binding("i", "leave", show=False),
    ]
    DEFAULT_CSS = """
    QuitScreen { align: center middle; background: $background 60%; }
    QuitScreen > Vertical { width: 62; height: auto; border: round $rule; background: $background; padding: 1 2; }
    QuitScreen LinesView { height: 4; background: $background; }
    """

    def __init__(self, jobs: int, leave: Callable[[], None], leave_at_once: Callable[[], None]) -> None:
        """`leave` interrupts what is at work, and leaves when that is recorded; `leave_at_once` waits for nothing."""
        super().__init__()
        self._jobs = jobs
        self._leave = leave
        self._leave_at_once = leave_at_once
        self._is_leaving = False
        self._lines = LinesView(self._asked())

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._lines

    def _asked(self) -> list[Line]:
        are = "is" if self._jobs == 1 else "are"
        return [
            (Span(f"{count(self._jobs, 'Job')} {are} at work.", "strong"),),
            (),
            (Span("w ", "person"), Span("keep waiting")),
            (Span("i ", "person"), Span("interrupt, which is recorded, and leave")),
        ]

    def action_stay(self) -> None:
        if not self._is_leaving:
            self.dismiss()

    def action_leave(self) -> None:
        """Interrupt and leave; the second time at once."""
        if self._is_leaving:
            self._leave_at_once()
            return
        self._is_leaving = True
        self._lines.show(
            [
                (Span("Interrupting, which is recorded; then it leaves.", "strong"),),
                (),
                (Span("i ", "person"), Span("leave at once, as if it were killed")),
                (Span("  what was recorded so far can be resumed", "dim"),),
            ]
        )
        self._leave()
