"""job.json of a Job that is driven: it follows the work, and is written anew at its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from perstack.core.job import Job, JobSummary, summarize
from perstack.engine.session import uninterrupted
from perstack.errors import StorageError
from perstack.ports.storage import Storage

_EVERY = 0.1
"""Seconds between two writes while a Job runs, at least."""


class KeptSummary:
    """The summary of one Job, kept beside its logs."""

    def __init__(self, storage: Storage, job: Job) -> None:
        self._storage = storage
        self._job = job
        self._has_changed = asyncio.Event()

    def changed(self) -> None:
        """Something was written: the summary is behind."""
        self._has_changed.set()

    @asynccontextmanager
    async def followed(self) -> AsyncGenerator[None]:
        """Meanwhile the summary follows what is done, beside the work."""
        following = asyncio.create_task(self._follow())
        try:
            yield
        finally:
            following.cancel()
            await asyncio.wait({following})

    async def _follow(self) -> None:
        while True:
            await self._has_changed.wait()
            self._has_changed.clear()
            with suppress(StorageError):  # a cache; the logs and the last summary say what is wrong with the disk
                await uninterrupted(self.write(is_driven=True))
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                return  # a write that failed hides that it was to end
            await asyncio.sleep(_EVERY)

    async def write(self, *, is_driven: bool) -> JobSummary:
        """Write where the Job stands. Raises StorageError."""
        summary = summarize(self._job, is_driven=is_driven)
        # an end or stop that is noted and not written yet: job.json would say what a crash undoes
        if not is_driven or summary.status == "running":
            await self._storage.put_summary(self._job.id, summary.to_json())
        return summary
