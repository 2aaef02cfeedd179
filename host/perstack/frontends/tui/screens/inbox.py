"""F3: every open question, of all Jobs and tasks."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.engine.inbox import InboxItem
from perstack.frontends.tui.screens.listing import ListScreen
from perstack.frontends.tui.view.inbox import inbox_line
from perstack.frontends.tui.view.spans import Line


class InboxScreen(ListScreen[InboxItem]):
    """Enter opens the Job that asks."""

    TITLE_TEXT = "Inbox"
    KEYS = "Up, Down choose   Enter opens   Esc back"
    EMPTY = "Nothing waits for you."

    async def read(self) -> Sequence[InboxItem]:
        return await self.over.host.inbox()

    def line(self, one: InboxItem, is_chosen: bool, width: int) -> Line:
        return inbox_line(one, is_chosen, self.over.host.clock.now(), width)

    def open(self, one: InboxItem) -> None:
        """Show the Job in a tab, where its question is answered. A task is answered by the command line."""
        if one.job_id is not None:
            self.over.open_job(one.job_id)
        elif one.task_id is not None:
            self.notify(f"perstack answer {one.task_id} ANSWER", title="A task is answered by a command", markup=False)
