"""F3: every open question, of all Jobs and tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from perstack.engine.inbox import InboxItem
from perstack.frontends.tui.next_steps import said
from perstack.frontends.tui.screens.listing import ListScreen
from perstack.frontends.tui.view.inbox import inbox_line
from perstack.frontends.tui.view.spans import Line

_PAUSE = 1.0
"""Seconds after which it is read again: others ask and answer meanwhile."""

_SHARE = 20
"""How many times as long as a reading took the pause after it is, at least."""


class InboxScreen(ListScreen[InboxItem]):
    """Enter opens the Job that asks."""

    TITLE_TEXT = "Inbox"
    KEYS = "Up, Down choose   Enter opens   Esc back"
    EMPTY = "Nothing waits for you."
    _at = 0

    def reload(self) -> None:
        """Read it, and again, as long as it is shown."""
        self.run_worker(self._read_on(), exclusive=True, group="rows")

    async def _read_on(self) -> None:
        while True:
            began = time.monotonic()
            await self.read_rows()
            await asyncio.sleep(max(_PAUSE, _SHARE * (time.monotonic() - began)))

    async def read(self) -> Sequence[InboxItem]:
        found = await self.over.host.inbox()
        ids = [one.id for one in found]
        stays = next((one.id for one in self.rows[self._list.chosen :] if one.id in ids), None)
        self._at = self._list.chosen if stays is None else ids.index(stays)
        return found

    def first_chosen(self) -> int:
        """What is chosen stays so; when it is answered, what follows it is chosen."""
        return self._at

    def line(self, one: InboxItem, is_chosen: bool, width: int) -> Line:
        return inbox_line(one, is_chosen, self.over.host.clock.now(), width)

    def open(self, one: InboxItem) -> None:
        """Show the Job in a tab, where its question is answered. A task is answered by the command line."""
        if one.job_id is not None:
            self.over.open_job(one.job_id)
        elif one.next_steps:
            self.notify("; ".join(map(said, one.next_steps)), title="No answer helps", markup=False)
        elif one.damaged:
            self.notify(one.text, severity="error", markup=False)
        elif one.task_id is not None:
            self.notify(f"perstack answer {one.task_id} ANSWER", title="A task is answered by a command", markup=False)
