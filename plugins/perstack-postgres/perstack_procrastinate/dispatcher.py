"""Dispatcher port implemented with jobs of procrastinate, in a schema next to the storage's.

An order is one procrastinate job (`engine`). Its `lock` allows one running, its `queueing_lock` one waiting job per Job
or Run; submitting again makes the waiting one earlier and more urgent. Labels and refusals are expressed as queues: all
orders with equal labels and refusals share one, and a worker claims from the queues that fit it.

A worker (`worker`) is a row of procrastinate with a heartbeat. A claim is identified by job number and attempt count;
the server checks both, and the worker's number, before each change. An order of a worker that has been silent for
SILENT_AFTER seconds can be claimed by another.

Change together: `job_of` with `statements`, which read its arguments; our tables in `engine` with its VERSION and
`statements`.

Imports that take time are made on first use. `perstack.testing` has the contract tests of dispatchers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

from typing_extensions import override

from perstack.errors import DispatcherError
from perstack.ports.dispatcher import SILENT_AFTER, Dispatcher, Load, Order, WorkerInfo, order_key
from perstack_postgres.address import PostgresAddress

if TYPE_CHECKING:
    from psycopg.rows import TupleRow

    from perstack_postgres.connections import Connection
    from perstack_procrastinate.engine import Engine
    from perstack_procrastinate.worker import ProcrastinateSeat


class ProcrastinateDispatcher(Dispatcher):
    """Orders in one database, as one process accesses them. Each call takes a bounded time."""

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self.location = address.display_url

    @cached_property
    def _engine(self) -> Engine:
        from perstack_procrastinate.engine import Engine

        return Engine(self._address)

    @override
    async def submit(self, order: Order) -> None:
        engine = self._engine
        await engine.use(lambda connection: engine.submit_on(connection, order))

    @override
    async def withdraw(self, job_id: str, run_id: str | None = None) -> bool:
        from procrastinate.manager import JobManager

        key = order_key(job_id, run_id)
        waiting = await self._engine.call(lambda manager: manager.list_jobs_async(queueing_lock=key, status="todo"))
        for job in waiting:
            remove = partial(JobManager.cancel_job_by_id_async, job_id=job.id or 0, delete_job=True)
            if await self._engine.call(remove):
                return True
        return False

    @override
    async def order(self, job_id: str, run_id: str | None = None) -> Order | None:
        from perstack.support.work_items import order_of

        key = order_key(job_id, run_id)
        stored_jobs = await self._engine.call(lambda manager: manager.list_jobs_async(lock=key))
        jobs = sorted(
            (job for job in stored_jobs if job.status in ("todo", "doing")), key=lambda job: job.status == "doing"
        )
        if not jobs:
            return None
        order = order_of(jobs[0].task_kwargs)
        if order is None:
            raise DispatcherError(f"{self.location}: the order of Job {job_id} cannot be read: remove it, or upgrade")
        return order

    @override
    def seat(self, name: str, *, labels: Mapping[str, str] | None = None, concurrency: int = 1) -> ProcrastinateSeat:
        from perstack_procrastinate.worker import ProcrastinateSeat

        return ProcrastinateSeat(self._engine, name, dict(labels or {}), concurrency)

    @override
    async def workers(self) -> Sequence[WorkerInfo]:
        from perstack_procrastinate import statements

        async def work(connection: Connection) -> list[TupleRow]:
            return await (await connection.execute(statements.WORKERS, {"silent_after": SILENT_AFTER})).fetchall()

        rows = await self._engine.use(work)
        return [WorkerInfo(row[0], row[1], row[2], row[3], row[4], tuple(row[5])) for row in rows]

    @override
    async def load(self) -> Load:
        from perstack_procrastinate import statements

        row = await self._engine.row(statements.LOAD)
        return Load() if row is None else Load(*row)

    @override
    async def close(self) -> None:
        if "_engine" in vars(self):
            await self._engine.close()
