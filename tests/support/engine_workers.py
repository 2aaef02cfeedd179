"""Workers of a test that share an in-memory engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from hosts import Bench, expert, until_it_crashes
from terminal import Terminal

from perstack.core.jobs.summary import JobSummary
from perstack.host import Host
from perstack.ports.dispatcher import Dispatcher, Order
from perstack.testing.crashing_storage import CrashingStorage, CrashPoint
from perstack.testing.in_memory_dispatcher import InMemoryDispatcher, InMemoryOrders
from perstack.testing.scripted import text
from perstack.trust.definition_files import load_usable
from perstack.workers.driving_orders import Drive
from perstack.workers.reports import WorkerReport
from perstack.workers.worker import Worker, WorkerSettings


async def record_job(bench: Bench, job_id: str, *experts: object) -> None:
    """Record a Job that has begun and that nobody drives."""
    host = bench.host([text("never")], *(experts or (expert("a"),)), wrap=_dying)
    with until_it_crashes():
        await host.run("a", "q", job_id=job_id)


def _dying(inner: object) -> CrashingStorage:
    return CrashingStorage(inner, CrashPoint("after", 1))


def served(terminal: Terminal, job_id: str) -> JobSummary:
    """Let a worker serve the Job, and return its summary."""

    async def work() -> JobSummary:
        project = load_usable(terminal.workspace / "perstack.toml").project
        async with Host(project, workspace=terminal.workspace, env=terminal.env) as host:
            return await host.job_server.serve(job_id, worker="w")

    return asyncio.run(work())


async def queued(bench: Bench, job_id: str) -> Engine:
    """Return an engine with a work item for such a Job."""
    engine = Engine()
    await record_job(bench, job_id)
    await engine.submit(job_id)
    return engine


def worker_of(
    host: Host,
    dispatcher: Dispatcher,
    tell: Callable[[WorkerReport], None],
    drive: Drive | None = None,
    **settings: object,
) -> Worker:
    """Return a worker of that Host, not running yet."""
    return Worker(
        dispatcher,
        host.jobs,
        host.iterations,
        host.scheduler_of_worker,
        host.clock,
        WorkerSettings(**settings),  # type: ignore[arg-type]
        drive=lambda name: drive or partial(host.job_server.serve, worker=name),
        report=tell,
    )


@dataclass
class AtWork:
    """A worker that runs in a task."""

    worker: Worker
    host: Host
    task: asyncio.Task[None]
    news: list[WorkerReport] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def of(self, *kinds: str) -> list[WorkerReport]:
        return [report for report in self.news if report.event in kinds]

    def tell(self, news: WorkerReport) -> None:
        self.news.append(news)
        self.changed.set()

    async def steps(self, count: int, seconds: float = 10) -> None:
        """Wait until its Jobs have done `count` steps."""
        async with asyncio.timeout(seconds):
            while self.worker.counters.steps < count:
                await asyncio.sleep(0.01)  # a poll, bounded above

    async def generates(self, run_id: str, seconds: float = 10) -> None:
        """Wait until that Run has started a generation."""
        async with asyncio.timeout(seconds):
            while all(line.event.type != "startGeneration" for line in await self.host.events(run_id)):
                await asyncio.sleep(0.01)  # a poll, bounded above

    async def wait_for_report(self, kind: str, count: int = 1, seconds: float = 10) -> WorkerReport:
        """Wait for the `count`-th news of that kind, and return it."""
        return (await self.wait_until(lambda: len(self.of(kind)) >= count, seconds) or self.of(kind))[count - 1]

    async def wait_until(self, condition: Callable[[], bool], seconds: float = 10) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@dataclass
class Engine:
    """The queue of a test's workers."""

    orders: InMemoryOrders = field(default_factory=InMemoryOrders)

    @property
    def dispatcher(self) -> InMemoryDispatcher:
        return InMemoryDispatcher(self.orders)

    async def submit(self, *job_ids: str, **fields: object) -> None:
        for job_id in job_ids:
            await self.dispatcher.submit(Order(job_id, **fields))  # type: ignore[arg-type]

    async def is_empty(self) -> bool:
        load = await self.dispatcher.load()
        return load.queued + load.later + load.running == 0

    @asynccontextmanager
    async def at_work(
        self,
        host: Host,
        name: str = "w",
        *,
        dispatcher: Dispatcher | None = None,
        drive: Drive | None = None,
        **settings: object,
    ) -> AsyncGenerator[AtWork]:
        """Run a worker during the block. At the end it leaves, unless it was killed."""
        told: list[AtWork] = []
        worker = worker_of(
            host, dispatcher or self.dispatcher, lambda news: told[0].tell(news), drive, name=name, **settings
        )
        async with host:
            at_work = AtWork(worker, host, asyncio.create_task(worker.run()))
            told.append(at_work)
            try:
                yield at_work
                worker.leave()
                if not at_work.task.cancelled():
                    async with asyncio.timeout(15):
                        await at_work.task
            finally:
                at_work.task.cancel()
                await asyncio.wait({at_work.task})
