"""job.json follows a Job only while it is driven."""

from __future__ import annotations

import asyncio
from pathlib import Path

from engine_workers import record_job
from hosts import Bench, expert, wait_for

from perstack.engine.log.job_summary_file import JobSummaryFile
from perstack.errors import Conflict
from perstack.testing.crashing_storage import CrashingStorage
from perstack.testing.scripted import text


class Lost(CrashingStorage):
    """A storage on which another process takes over the Job before job.json is written."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.writing, self.may_fail = asyncio.Event(), asyncio.Event()

    async def put_summary(self, job_id: str, summary: bytes) -> None:
        self.writing.set()
        await self.may_fail.wait()
        raise Conflict("the lease of this process ended")


def test_a_write_that_fails_as_the_job_ends_keeps_nobody_waiting(tmp_path: Path) -> None:
    async def work() -> None:
        bench = Bench(tmp_path, "file:perstack")
        await record_job(bench, "job")
        async with bench.host([text("done")], expert("a")) as host:
            storage = Lost(host.storage)
            kept = JobSummaryFile(storage, await host.jobs.load("job"))
            async with kept.keep_summary():
                kept.mark_changed()
                await storage.writing.wait()
                asyncio.get_running_loop().call_soon(storage.may_fail.set)

    wait_for(work(), 10)
