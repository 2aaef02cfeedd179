"""The number of open questions, which every page shows: counted at intervals rather than for each page.

A page waits for a count that takes at most `_MAX_PAGE_WAIT_S`, and otherwise shows the last one. The interval between
two counts grows with the duration of a count, so that even with many thousand Jobs it uses at most 5 % of a core.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from perstack.doors.served_project import ServedProject
from perstack.errors import PerstackError
from perstack.tasks.waiting_tasks import damaged_tasks, waiting_tasks

_MIN_INTERVAL_S = 2.0  # minimum seconds between two counts
_INTERVAL_PER_DURATION = 20  # seconds between two counts, for each second that a count takes
_MAX_PAGE_WAIT_S = 0.02  # maximum seconds that a page waits for a count
_MAX_WITHOUT_SUMMARY = 20  # maximum Jobs without job.json that one count reads
_ASKING_FIELD = b'"asking":{'  # only matches the field of job.json: within a text the quotes are escaped


class OpenQuestionCount:
    """The number of questions that wait for a person, in a project; None while it is unknown."""

    def __init__(self, count: Callable[[], Awaitable[int | None]]) -> None:
        self._count = count
        self._last_count: int | None = None
        self._next_count_at = 0.0
        self._duration_s = 0.0  # seconds that the last count took
        self._count_task: asyncio.Task[None] | None = None

    async def value(self) -> int | None:
        """Return the latest count, which may be some seconds old; None while it is unknown."""
        if self._count_task is None and time.monotonic() >= self._next_count_at:
            self._count_task = asyncio.create_task(self._renew())
            if self._duration_s <= _MAX_PAGE_WAIT_S:
                await asyncio.wait({self._count_task}, timeout=_MAX_PAGE_WAIT_S)
        return self._last_count

    def invalidate(self) -> None:
        """Make the next page count again, after an answer, a start or a stop."""
        self._next_count_at = 0.0

    async def close(self) -> None:
        """Cancel a running count."""
        if self._count_task is not None:
            self._count_task.cancel()
            await asyncio.wait({self._count_task})

    async def _renew(self) -> None:
        began = time.monotonic()
        # set before the await: a call of `invalidate` during it must not be overwritten
        self._next_count_at = began + _MIN_INTERVAL_S
        try:
            self._last_count = await self._count()
        finally:
            self._count_task = None
            self._duration_s = time.monotonic() - began
            if self._next_count_at:
                self._next_count_at = max(self._next_count_at, began + self._duration_s * _INTERVAL_PER_DURATION)


async def count_questions(served_project: ServedProject) -> int | None:
    """Return the number of open questions of Jobs and tasks; None if the storage cannot be read."""
    host = served_project.host
    try:
        summaries = await host.storage.summaries()
        asking_jobs = await asyncio.to_thread(_count_asking, summaries)
        unsummarized = [job_id for job_id, data in summaries.items() if not data][:_MAX_WITHOUT_SUMMARY]
        of_jobs = [row for row in await host.jobs.rows(unsummarized) if row.asking is not None or row.damaged]
        of_tasks = (*await waiting_tasks(host.tasks), *await damaged_tasks(host.tasks))
    except PerstackError:
        return None  # the page itself shows the error of the storage
    return asking_jobs + len(of_jobs) + sum(not served_project.definitions.hides(item.who) for item in of_tasks)


def _count_asking(summaries: Mapping[str, bytes]) -> int:
    return sum(_ASKING_FIELD in data for data in summaries.values())
