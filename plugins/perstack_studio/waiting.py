"""The number of open questions, which every page shows: counted now and then rather than for each page.

A page waits for a count that takes at most `_PATIENCE_S`, and otherwise shows the last one. The rest between two counts
grows with what a count costs, so that a project of many thousand Jobs spends at most a twentieth of a core on it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from perstack.doors.served_project import ServedProject
from perstack.errors import PerstackError
from perstack.tasks.waiting_tasks import damaged_tasks, waiting_tasks

_FRESH_S = 2.0  # seconds for which a count is shown
_REST_PER_COST = 20  # seconds between two counts, for each second that one takes
_PATIENCE_S = 0.02  # seconds that a page waits for a count
_MAX_WITHOUT_SUMMARY = 20  # Jobs without job.json that one count reads
_ASKS = b'"asking":{'  # within a text of job.json its quotes are escaped


class OpenQuestionCount:
    """The number of questions that wait for a person, in a project; None while it is unknown."""

    def __init__(self, count: Callable[[], Awaitable[int | None]]) -> None:
        self._count = count
        self._known: int | None = None
        self._due = 0.0
        self._cost_s = 0.0  # seconds that the last count took
        self._counting: asyncio.Task[None] | None = None

    async def value(self) -> int | None:
        """Return the number, as it was a moment ago."""
        if self._counting is None and time.monotonic() >= self._due:
            self._counting = asyncio.create_task(self._renew())
            if self._cost_s <= _PATIENCE_S:
                await asyncio.wait({self._counting}, timeout=_PATIENCE_S)
        return self._known

    def invalidate(self) -> None:
        """Count again for the next page: something was answered, started or stopped."""
        self._due = 0.0

    async def close(self) -> None:
        """End a count that is under way."""
        if self._counting is not None:
            self._counting.cancel()
            await asyncio.wait({self._counting})

    async def _renew(self) -> None:
        began = time.monotonic()
        self._due = began + _FRESH_S  # before the first await: `invalidate` may come meanwhile
        try:
            self._known = await self._count()
        finally:
            self._counting = None
            self._cost_s = time.monotonic() - began
            if self._due:
                self._due = max(self._due, began + self._cost_s * _REST_PER_COST)


async def count_questions(served_project: ServedProject) -> int | None:
    """Return the number of questions by the stored summaries of Jobs; None if the storage cannot be read."""
    host = served_project.host
    try:
        summaries = await host.storage.summaries()
        asking = await asyncio.to_thread(_asking, summaries)
        unread = [job_id for job_id, data in summaries.items() if not data][:_MAX_WITHOUT_SUMMARY]
        of_jobs = [row for row in await host.jobs.rows(unread) if row.asking is not None or row.damaged]
        of_tasks = (*await waiting_tasks(host.tasks), *await damaged_tasks(host.tasks))
    except PerstackError:
        return None  # the page itself says what is wrong with the storage
    return asking + len(of_jobs) + sum(not served_project.definitions.hides(item.who) for item in of_tasks)


def _asking(summaries: Mapping[str, bytes]) -> int:
    return sum(_ASKS in data for data in summaries.values())
