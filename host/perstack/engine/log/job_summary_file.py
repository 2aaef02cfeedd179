"""The file job.json of a driven Job: updated while it runs, and once more at its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from perstack.core.jobs.job import Job
from perstack.core.jobs.summary import JobSummary, as_running, summarize
from perstack.errors import StorageError
from perstack.ports.storage import Storage
from perstack.system.concurrency import cancel_and_wait, shield_until_done

_WRITE_INTERVAL_S = 0.1  # minimum seconds between two writes of job.json while a Job runs


class JobSummaryFile:
    """The stored summary of one Job: job.json."""

    def __init__(self, storage: Storage, job: Job) -> None:
        """Prepare the summary of this Job; nothing is written yet."""
        self._storage = storage
        self._job = job
        self._has_changed = False
        self._is_kept = False  # True while `mark_changed` starts updates
        self._updates: asyncio.Task[None] | None = None  # writes changes; None while there are none

    def mark_changed(self) -> None:
        self._has_changed = True
        if self._is_kept and self._updates is None:
            self._updates = asyncio.create_task(self._write_changes())

    @asynccontextmanager
    async def keep_summary(self) -> AsyncGenerator[None]:
        """Update the stored summary in the background while the block runs."""
        self._is_kept = True
        if self._has_changed:
            self.mark_changed()
        try:
            yield
        finally:
            self._is_kept = False
            await cancel_and_wait(self._updates)

    async def _write_changes(self) -> None:
        while self._has_changed:  # then end: a Job that waits keeps no task for its summary
            self._has_changed = False
            with suppress(StorageError):  # a cache; the logs and the last summary report problems of the disk
                await shield_until_done(self.write(is_driven=True))
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                return  # a failed write hides the cancellation
            await asyncio.sleep(_WRITE_INTERVAL_S)
        self._updates = None

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
