"""F3: every open question, of all Jobs and tasks."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from perstack.core.plain import one_line
from perstack.engine.inbox import InboxItem
from perstack.errors import PerstackError
from perstack.frontends.shared.words import ago, cells, pad, shorten
from perstack.frontends.tui.next_steps import said
from perstack.frontends.tui.screens.base import OverScreen, Program
from perstack.frontends.tui.view.spans import Line, Span
from perstack.frontends.tui.widgets.lines import LinesView

_WHO = 18


def inbox_lines(items: tuple[InboxItem, ...], chosen: int, now: int, width: int) -> list[Line]:
    """A line for each."""
    if not items:
        return [(), (Span("  Nothing waits for you.", "dim"),)]
    found: list[Line] = []
    for number, item in enumerate(items):
        mark = "✗" if item.damaged else "?"
        when = ago(item.since, now)
        left = max(10, width - 6 - _WHO - cells(when) - 4)
        text = pad(shorten(item.text, left), left)
        found.append(
            (
                Span("❯ " if number == chosen else "  ", "person"),
                Span(f"{mark} ", "bad" if item.damaged else "ask"),
                Span(pad(one_line(item.who), _WHO), "expert"),
                Span("  "),
                Span(text, "" if number == chosen else "dim"),
                Span(f"  {when}", "dim"),
            )
        )
    return found


class InboxScreen(OverScreen):
    """Enter opens the Job that asks."""

    TITLE_TEXT = "Inbox"
    KEYS = "Up, Down choose   Enter opens   Esc back"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "choose(-1)", show=False, priority=True),
        Binding("down", "choose(1)", show=False, priority=True),
        Binding("enter", "open", show=False, priority=True),
    ]

    def __init__(self, over: Program) -> None:
        super().__init__(over)
        self._items: tuple[InboxItem, ...] = ()
        self._chosen = 0
        self._lines = LinesView(id="inbox")

    def body(self) -> list[Widget]:
        return [self._lines]

    def on_mount(self) -> None:
        self.run_worker(self._read(), exclusive=True)
        self._lines.focus()

    async def _read(self) -> None:
        try:
            self._items = await self.over.host.inbox()
        except PerstackError as error:
            self._lines.show([(Span(f"  {error.said(said)}", "bad"),)])
            return
        self._show()

    def on_resize(self) -> None:
        self._show()

    def _show(self) -> None:
        self._lines.show(inbox_lines(self._items, self._chosen, self.over.host.clock.now(), self.size.width - 2))

    def action_choose(self, step: int) -> None:
        """The next, or the one before."""
        if self._items:
            self._chosen = max(0, min(self._chosen + step, len(self._items) - 1))
            self._show()
            self._lines.scroll_to(y=max(0, self._chosen - self._lines.size.height + 1), animate=False)

    def action_open(self) -> None:
        """Show the Job in a tab, where its question is answered. A task is answered by the command line."""
        if not self._items:
            return
        item = self._items[self._chosen]
        if item.job_id is not None:
            self.over.open_job(item.job_id)
        elif item.task_id is not None:
            self.notify(f"perstack answer {item.task_id} ANSWER", title="A task is answered by a command", markup=False)
