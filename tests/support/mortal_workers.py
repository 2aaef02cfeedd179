"""Workers that die at a chosen append, as processes do: nothing is written or released afterwards."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from engine_workers import worker_of
from hosts import until_it_crashes

from perstack.host import Host
from perstack.ports.dispatcher import Claim, Order, Seat
from perstack.ports.storage import RunRef, Storage
from perstack.testing.crashing_storage import Crash, CrashingStorage
from perstack.testing.in_memory_dispatcher import InMemoryDispatcher, InMemoryOrders
from perstack.workers.reports import WorkerReport
from perstack.workers.worker import Worker


class Death(NamedTuple):
    """The n-th append to a Run, counted from 1 over all processes."""

    run_id: str
    append: int
    moment: Literal["before", "after"]


@dataclass
class Fate:
    """Choice of the process that dies, of several on one store, and of its place."""

    death: Death | None = None
    appends: Counter[str] = field(default_factory=Counter)
    """Number of append calls by Run."""
    died: str = ""
    """Name of the dead process; empty while all live."""

    def deaths(self) -> list[Death]:
        """Return every place where these processes could have died."""
        return [
            Death(run_id, n, moment)
            for run_id, count in sorted(self.appends.items())
            for n in range(1, count + 1)
            for moment in ("before", "after")
        ]


class Life:
    """The life of one process."""

    def __init__(self, name: str, fate: Fate) -> None:
        self.name = name
        self.fate = fate
        self.is_over = False
        self.end: Callable[[], object] = lambda: None

    def check(self) -> None:
        """Raise Crash if the process is dead."""
        if self.is_over:
            raise Crash(f"{self.name} is dead")

    def reaches(self, death: Death) -> None:
        """Raise Crash if the process dies at this place, and at each later one."""
        if self.fate.death == death and not self.fate.died:
            self.die()
        self.check()

    def die(self) -> None:
        self.fate.died, self.is_over = self.name, True
        asyncio.get_running_loop().call_soon(self.end)


_CHANGES = (
    "create_job",
    "delete_job",
    "put_summary",
    "put_entry",
    "put_run_setting",
    "put_checkpoint",
    "put_blob",
    "redact",
)


class MortalStorage(CrashingStorage):
    """Storage of one process, which changes nothing after its death. Its leases end with their context."""

    def __init__(self, storage: Storage, life: Life) -> None:
        super().__init__(storage)
        self.life = life

    def __getattribute__(self, name: str) -> Any:
        if name in _CHANGES:
            self.life.check()
        return super().__getattribute__(name)

    async def append(self, run: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        self.life.check()
        self.life.fate.appends[run.run_id] += 1
        number = self.life.fate.appends[run.run_id]
        self.life.reaches(Death(run.run_id, number, "before"))
        await self.storage.append(run, expected_seq, records)
        self.life.reaches(Death(run.run_id, number, "after"))

    def space(self, name: str) -> Storage:
        return _MortalSpace(self.storage.space(name), self.life)

    def lease(self, job_id: str, holder: str) -> AbstractAsyncContextManager[None]:
        self.life.check()
        return self.storage.lease(job_id, holder)


class _MortalSpace(MortalStorage):
    """A space apart from the Jobs, whose appends are not counted."""

    async def append(self, run: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        self.life.check()
        await self.storage.append(run, expected_seq, records)


class _MortalSeat:
    """A session that blocks until cancelled once its process is dead."""

    def __init__(self, seat: Seat, life: Life) -> None:
        self._seat = seat
        self._life = life

    async def _alive(self) -> None:
        if self._life.is_over:
            await asyncio.get_running_loop().create_future()

    async def claim(self) -> Claim | None:
        await self._alive()
        return await self._seat.claim()

    async def wait(self, seconds: float) -> None:
        await self._alive()
        await self._seat.wait(seconds)

    async def beat(self) -> Sequence[str]:
        await self._alive()
        return await self._seat.beat()

    async def change(self, claim: Claim, order: Order) -> Claim:
        await self._alive()
        return await self._seat.change(claim, order)

    async def release(self, claim: Claim, replacement: Order | None = None) -> None:
        await self._alive()
        await self._seat.release(claim, replacement)


class MortalDispatcher(InMemoryDispatcher):
    """One process's view of an engine. After its death its claims can be taken over at once."""

    def __init__(self, orders: InMemoryOrders, life: Life) -> None:
        super().__init__(orders)
        self._life = life

    async def submit(self, order: Order) -> None:
        self._life.check()
        await super().submit(order)

    async def withdraw(self, job_id: str, run_id: str | None = None) -> bool:
        self._life.check()
        return await super().withdraw(job_id, run_id)

    @asynccontextmanager
    async def seat(  # type: ignore[override]
        self, name: str, *, labels: Mapping[str, str] | None = None, concurrency: int = 1
    ) -> AsyncGenerator[_MortalSeat]:
        async with super().seat(name, labels=labels, concurrency=concurrency) as seat:
            yield _MortalSeat(seat, self._life)


@dataclass
class Mortal:
    """A worker that may die."""

    worker: Worker
    host: Host
    life: Life
    news: list[WorkerReport]
    task: asyncio.Task[None]


@asynccontextmanager
async def mortal_at_work(
    life: Life, orders: InMemoryOrders, make: Callable[[Life, MortalDispatcher], Host], **settings: object
) -> AsyncGenerator[Mortal]:
    """Run a worker with that life during the block. At the end it leaves, unless it is dead."""
    dispatcher, news = MortalDispatcher(orders, life), list[WorkerReport]()
    host = make(life, dispatcher)
    worker = worker_of(host, dispatcher, news.append, name=life.name, **settings)

    async def run() -> None:
        with until_it_crashes():
            await worker.run()

    async with host:
        task = asyncio.create_task(run())
        life.end = task.cancel
        try:
            yield Mortal(worker, host, life, news, task)
        finally:
            worker.leave()
            done, _ = await asyncio.wait({task}, timeout=15)
            task.cancel()
            await asyncio.wait({task})
        assert done, f"{life.name} has not left"
