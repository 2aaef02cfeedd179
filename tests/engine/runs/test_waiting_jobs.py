"""A process may drive a thousand Jobs at once: what one of them keeps while it waits for its model is bounded."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from pathlib import Path

from hosts import Bench, expert, wait_for

from perstack.testing.scripted import ScriptedProvider, text

JOBS = 40
MAX_BYTES = 56_000  # of Python objects for each Job; 52 KB when this was written, 66 KB before definitions were shared


class Held(ScriptedProvider):
    """A model whose replies wait until `release`, once so many Jobs are awaited."""

    def __init__(self) -> None:
        super().__init__(lambda request: text("Done."))

    def hold(self, jobs: int) -> None:
        self.missing = jobs
        self.all_wait, self.release = asyncio.Event(), asyncio.Event()

    async def generate(self, request, on_delta):
        self.missing -= 1
        if not self.missing:
            self.all_wait.set()
        await self.release.wait()
        return await super().generate(request, on_delta)


async def summaries_written() -> None:
    """Wait until the summaries of all Jobs are written, whose tasks keep some KB each meanwhile."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if writing := {task for task in others if task.get_coro().__qualname__ == "JobSummaryFile._write_changes"}:
        await asyncio.wait(writing)


def test_a_job_that_waits_for_its_model_keeps_little_memory(tmp_path: Path) -> None:
    async def work() -> float:
        held = Held()
        async with Bench(tmp_path, "sqlite:state.db").host(held, expert("reader")) as host:

            async def start(jobs: int) -> list[asyncio.Task]:
                held.hold(jobs)
                tasks = [asyncio.create_task(host.run("reader", "Read.")) for _ in range(jobs)]
                await held.all_wait.wait()
                await summaries_written()
                gc.collect()
                return tasks

            async def finish(tasks: list[asyncio.Task]) -> None:
                held.release.set()
                assert {job.status for job in await asyncio.gather(*tasks)} == {"completed"}

            await finish(await start(2))  # imports, and what all Jobs share
            held.requests.clear()
            tracemalloc.start()
            try:
                tasks = await start(JOBS)
                size, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            await finish(tasks)
            return size / JOBS

    assert wait_for(work(), 60) < MAX_BYTES
