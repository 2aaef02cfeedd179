"""The help screen (F1), and the question whether to quit while Jobs are running (Ctrl+Q)."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widget import Widget
from typing_extensions import override

from perstack.core.base.text import count
from perstack.doors.shared.text import pad
from perstack_tui.actions import ACTIONS, HISTORY_ACTIONS, OTHER_KEYS
from perstack_tui.screens.base import OverlayScreen, ScreenHost
from perstack_tui.view.styled_text import Line, Span, wrap
from perstack_tui.widgets.lines import LinesView

# The help: every key and its effect.

_KEY_CELLS = 12


def _help_lines(width: int) -> list[Line]:
    lines: list[Line] = []
    action_rows = [(action.key_label, action.text) for action in ACTIONS if action.key_label]
    history_rows = [(action.key_label, action.text) for action in HISTORY_ACTIONS]
    for title, rows in (
        ("Keys", action_rows),
        ("While you type or read", OTHER_KEYS),
        ("In the History, on a Job, a Run or a checkpoint", history_rows),
    ):
        lines += [(Span(f"  {title}", "strong"),), ()]
        for key, text in rows:
            first, *more_lines = wrap(text, max(10, width - _KEY_CELLS - 4))
            lines.append((Span(f"  {pad(key, _KEY_CELLS)}", "person"), Span(first)))
            lines += [(Span(" " * (_KEY_CELLS + 2)), Span(line)) for line in more_lines]
        lines.append(())
    return lines


class HelpScreen(OverlayScreen):
    """The screen of keys."""

    TITLE_TEXT = "Help"
    KEYS = "Up, Down, PgUp, PgDn scroll   Esc back"

    def __init__(self, screen_host: ScreenHost) -> None:
        super().__init__(screen_host)
        self.id = "help-screen"

    @override
    def body(self) -> list[Widget]:
        return [LinesView(id="help")]

    def on_mount(self) -> None:
        self._show()
        self.query_one("#help").focus()

    def on_resize(self) -> None:
        self._show()

    def _show(self) -> None:
        self.query_one("#help", LinesView).show(_help_lines(self.size.width - 2))


class QuitScreen(ModalScreen[None]):
    """The question whether to quit. While the program is leaving, it stays: an unreachable storage may take long."""

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
        """Ask with the number of Jobs at work. `leave` exits when their interruption is recorded, the other at once."""
        super().__init__()
        self._jobs = jobs
        self._leave = leave
        self._leave_at_once = leave_at_once
        self._is_leaving = False
        self._lines = LinesView(self._question_lines())

    @override
    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._lines

    def _question_lines(self) -> list[Line]:
        verb = "is" if self._jobs == 1 else "are"
        return [
            (Span(f"{count(self._jobs, 'Job')} {verb} at work.", "strong"),),
            (),
            (Span("w ", "person"), Span("keep waiting")),
            (Span("i ", "person"), Span("interrupt (recorded), and leave")),
        ]

    def action_stay(self) -> None:
        """Close the question, unless the program is leaving already."""
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
                (Span("Interrupting and recording it; the program then exits.", "strong"),),
                (),
                (Span("i ", "person"), Span("leave at once, as if killed")),
                (Span("  what was recorded so far can be resumed", "dim"),),
            ]
        )
        self._leave()
