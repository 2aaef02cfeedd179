"""The file job.json of a driven Job: updated while it runs, and once more at its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from perstack.core.jobs.job import Job
from perstack.core.jobs.summary import JobSummary, as_running, summarize
from perstack.errors import StorageError
from perstack.ports.storage import Storage
from perstack.system.concurrency import shield_until_done

_WRITE_INTERVAL_S = 0.1  # minimum seconds between two writes of job.json while a Job runs


class JobSummaryFile:
    """The stored summary of one Job: job.json."""

    def __init__(self, storage: Storage, job: Job) -> None:
        """Prepare the summary of this Job; nothing is written yet."""
        self._storage = storage
        self._job = job
        self._has_changed = asyncio.Event()

    def mark_changed(self) -> None:
        self._has_changed.set()

    @asynccontextmanager
    async def keep_summary(self) -> AsyncGenerator[None]:
        """Update the stored summary in the background while the block runs."""
        updates = asyncio.create_task(self._follow())
        try:
            yield
        finally:
            updates.cancel()
            await asyncio.wait({updates})

    async def _follow(self) -> None:
        while True:
            await self._has_changed.wait()
            self._has_changed.clear()
            with suppress(StorageError):  # a cache; the logs and the last summary report problems of the disk
                await shield_until_done(self.write(is_driven=True))
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                return  # a failed write hides the cancellation
            await asyncio.sleep(_WRITE_INTERVAL_S)

    async def write(self, *, is_driven: bool) -> JobSummary:
        """Write the summary of the stored logs, and return that of the Job. Raises StorageError."""
        job = self._job.as_stored()
        # Skip events that are recorded but not flushed: a crash could undo what job.json reports.
        if job.coordinators:
            summary = summarize(job, is_driven=is_driven)
            if not is_driven or summary.status == "running":
                await self._storage.put_summary(self._job.id, summary.to_json())
        return summarize(self._job, is_driven=is_driven)

    async def mark_stale(self) -> None:
        """Write that the Job runs, so that readers read the logs until `write`. Raises StorageError."""
        job = self._job.as_stored()
        if job.coordinators:  # a Job without a log has no job.json, either
            stale = as_running(summarize(job, is_driven=False))
            await self._storage.put_summary(self._job.id, stale.to_json())
