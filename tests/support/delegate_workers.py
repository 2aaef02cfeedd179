"""Workers that share delegates: one engine, one store, and a Job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from engine_workers import AtWork, Engine
from hosts import Bench
from mortal_workers import Life, Mortal, MortalDispatcher, MortalStorage, mortal_at_work

from perstack.core.definitions.project import Workers
from perstack.core.jobs.summary import JobSummary
from perstack.host import Host
from perstack.ports.dispatcher import Dispatcher

DISTRIBUTED = Workers(delegates="distributed")


@dataclass
class Fleet:
    """Workers on one engine and one store that share delegates."""

    bench: Bench
    script: Any
    experts: tuple[Any, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    engine: Engine = field(default_factory=Engine)

    def host(self) -> Host:
        return self._host(self.engine.dispatcher)

    def _host(self, dispatcher: Dispatcher, **options: Any) -> Host:
        host = self.bench.host(self.script, *self.experts, dispatcher=dispatcher, **options)
        host.use(host.project.model_copy(update={"workers": DISTRIBUTED, **self.settings}))
        return host

    def mortal(self, life: Life, **settings: Any) -> AbstractAsyncContextManager[Mortal]:
        """Return a context manager for a worker that may die."""

        def make(life: Life, dispatcher: MortalDispatcher) -> Host:
            return self._host(dispatcher, wrap=lambda storage: MortalStorage(storage, life))

        return mortal_at_work(life, self.engine.orders, make, **settings)

    @asynccontextmanager
    async def at_work(self, *names: str, **settings: Any) -> AsyncGenerator[list[AtWork]]:
        async with AsyncExitStack() as stack:
            yield [
                await stack.enter_async_context(self.engine.at_work(self.host(), name, **settings)) for name in names
            ]


async def wait_for_end(host: Host, job_id: str, seconds: float = 25) -> JobSummary:
    """Wait until the Job is at rest, and return it."""
    async with asyncio.timeout(seconds):
        return await host.jobs.follow(job_id)


async def until_empty(engine: Engine, seconds: float = 10) -> None:
    """Wait until no work item is waiting or claimed."""
    async with asyncio.timeout(seconds):
        while not await engine.is_empty():
            await asyncio.sleep(0.02)  # a poll, bounded above


async def check_whole(host: Host, job: JobSummary) -> None:
    """Check that the logs are complete and match the totals."""
    report = await host.audit.verify(job.id)
    assert report.ok, report
    replayed = await host.audit.replay(job.id)
    assert replayed.ok, replayed
    assert job.total_steps == sum(run.steps for run in job.runs)
    assert job.usage.total_tokens == sum(run.usage.total_tokens for run in job.runs)
    loaded = await host.jobs.load(job.id)
    assert {run_id: run.head for run_id, run in loaded.runs.items()} == {
        run.id: type(loaded.runs[run.id].head)(run.head_seq, run.head_hash) for run in job.runs
    }


async def until_driven(host: Host, *run_ids: str, seconds: float = 15) -> None:
    """Wait until these Runs are running."""
    async with asyncio.timeout(seconds):
        while True:
            runs = (await host.jobs.load("job")).runs
            if all(run_id in runs and runs[run_id].status == "running" for run_id in run_ids):
                return
            await asyncio.sleep(0.02)  # a poll, bounded above


async def leftovers(host: Host) -> list[str]:
    """Return the ids of stored data about delegates, apart from the Jobs."""
    spaces = [host.storage.space(name) for name in ("delegates", "delegatestops")]
    return [job_id for space in spaces for job_id in (await space.jobs()).ids]


@asynccontextmanager
async def abandoned(fleet: Fleet) -> AsyncGenerator[AtWork]:
    """Yield the worker that drives a delegate of a Job whose own worker has left; the other delegates wait."""
    async with fleet.at_work("one", "two", concurrency=1, drain=0.1) as workers:
        await workers[0].host.submit("boss", "q", job_id="job")
        await until_driven(workers[0].host, "job-2", "job-3")
        (dead,) = [worker for worker in workers if any("run" not in news.facts for news in worker.of("taken"))]
        (rest,) = [worker for worker in workers if worker is not dead]
        dead.worker.leave()
        async with asyncio.timeout(10):
            await dead.task
        yield rest
