"""Leases: a row with an expiry and a fence, and an advisory lock that ends with the connection that took the lease.

A lease is free after its release, when the connection that took it is gone, or when its heartbeat has been missing for
EXPIRY_S seconds by the server's clock. Each new holder gets a greater fence number, and the server refuses writes whose
fence is not the one in the row. All leases of a process share one connection; after a reconnect the process keeps those
that nobody else took meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple, TypeVar

from perstack.dataclass import dataclass
from perstack.errors import Conflict, StorageError
from perstack.support.storage import already_driven, no_job
from perstack.system.concurrency import cancel_and_wait, shield_until_done
from perstack_postgres import statements
from perstack_postgres.connections import FAILURES, Connection, Connections, is_idle
from perstack_postgres.schema import key_of

T = TypeVar("T")

EXPIRY_S = 8.0  # seconds without a heartbeat after which a lease is lost

_HEARTBEAT_INTERVAL_S = 2.0
_HEARTBEAT_TIMEOUT_S = 3.0  # maximum seconds for a heartbeat; then its connection counts as lost

_MAX_HOLDER_BYTES = 1000


class JobKey(NamedTuple):
    """Job id with its namespace."""

    space: str
    job_id: str


@dataclass(slots=True)
class _HeldLease:
    fence: int
    is_lost: bool = False


class PostgresLeases:
    """Leases of this process in one schema."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._key = key_of(connections.address.schema)
        self._held_leases: dict[JobKey, _HeldLease] = {}
        self._connection: Connection | None = None
        self._beating: asyncio.Task[None] | None = None
        self._turns: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    def fence(self, key: JobKey) -> int | None:
        """Return the fence of this process's lease on a Job; None without one. Raises Conflict if the lease is lost."""
        held = self._held_leases.get(key)
        if held is not None and held.is_lost:
            raise self.lost(key)
        return None if held is None else held.fence

    def lost(self, key: JobKey) -> Conflict:
        """Mark a lease as lost and return the exception for its former holder."""
        if held := self._held_leases.get(key):
            held.is_lost = True
        return Conflict(
            f"job {key.job_id}: the lease of this process ended, because it did not reach the database in time, so"
            " another process may drive the Job now: check the Job, then resume it"
        )

    @asynccontextmanager
    async def hold(self, key: JobKey, holder: str) -> AsyncGenerator[None]:
        """Hold a Job's lease. Raises NotFound, and Conflict naming the holder."""
        try:
            await shield_until_done(self._take(key, holder))
        except asyncio.CancelledError:  # the lease was taken
            await shield_until_done(self._give_up(key))
            raise
        try:
            yield
        finally:
            await shield_until_done(self._give_up(key))

    async def holder(self, key: JobKey) -> str | None:
        """Return the current holder's description of itself; None if the lease is free."""
        values = {"space": key.space, "job": key.job_id, "key": self._key}

        async def work(connection: Connection) -> str | None:
            row = await (await connection.execute(statements.HOLDER, values)).fetchone()
            return None if row is None else _words(row[0])

        return await self._connections.read(work, None)

    async def close(self) -> None:
        """Stop the heartbeat and close the connection, which frees the leases still held."""
        await self._stop_beating()
        await self._drop()

    async def _take(self, key: JobKey, holder: str) -> None:
        words = holder.encode()[:_MAX_HOLDER_BYTES]
        tried_fences = set[int]()
        async with self._turn():
            fence = await self._do(lambda connection: self._take_lease(connection, key, words, tried_fences))
            self._held_leases[key] = _HeldLease(fence)
        if self._beating is None or self._beating.done():
            self._beating = asyncio.create_task(self._beat())

    async def _take_lease(self, connection: Connection, key: JobKey, words: bytes, tried_fences: set[int]) -> int:
        """Take the lease and return its fence; `tried_fences` has the fences of attempts whose answers were lost."""
        values = {"space": key.space, "job": key.job_id, "key": self._key}
        async with connection.transaction():
            row = await (await connection.execute(statements.JOB_TO_LEASE, values)).fetchone()
            if row is None:
                raise no_job(key.job_id, self._connections.address.shown)
            values = {"n": row[0], "key": self._key, "holder": words, "seconds": EXPIRY_S}
            lease = await (await connection.execute(statements.LEASE, values)).fetchone()
            if lease is not None and lease[2] and int(lease[1]) not in tried_fences:
                holder = _words(lease[0])
                raise already_driven(key.job_id, holder)
            taken_row = await (await connection.execute(statements.TAKE_LEASE, values)).fetchone()
            fence = 0 if taken_row is None else int(taken_row[0])
            tried_fences.add(fence)
            await self._lock(connection, fence)
        return fence

    async def _give_up(self, key: JobKey) -> None:
        async with self._turn():
            held = self._held_leases.pop(key)
            connection = self._connection
            if not held.is_lost and connection is not None:
                values = {"key": self._key, "fence": held.fence}
                try:
                    async with asyncio.timeout(_HEARTBEAT_TIMEOUT_S):
                        await connection.execute(statements.FREE_LEASE, values)
                except FAILURES:  # the lease ends with the connection
                    await self._drop()
        if not self._held_leases:
            await self._stop_beating()

    async def _beat(self) -> None:
        while self._held_leases:
            await asyncio.sleep(_HEARTBEAT_INTERVAL_S)
            with suppress(StorageError):  # the next write reports it too
                async with self._turn():
                    await self._do(self._keep_leases, _HEARTBEAT_TIMEOUT_S)

    async def _keep_leases(self, connection: Connection) -> None:
        fences = {held.fence: held for held in self._held_leases.values() if not held.is_lost}
        values = {"fences": list(fences), "seconds": EXPIRY_S}
        renewed = {int(row[0]) for row in await (await connection.execute(statements.KEEP_LEASES, values)).fetchall()}
        for fence, held in fences.items():
            held.is_lost = fence not in renewed

    async def _do(self, work: Callable[[Connection], Awaitable[T]], seconds: float = EXPIRY_S) -> T:
        async def attempt(_: bool) -> T:
            try:
                async with asyncio.timeout(seconds):
                    return await work(await self._connected())
            finally:
                if self._connection is not None and not is_idle(self._connection):
                    await self._drop()

        return await self._connections.with_retries(attempt)

    async def _connected(self) -> Connection:
        """Return the connection. A new one first renews and locks the leases that nobody else took meanwhile."""
        if self._connection is None:
            self._connection = await self._connections.open_ready()
            await self._keep_leases(self._connection)
            for held in self._held_leases.values():
                if not held.is_lost:
                    await self._lock(self._connection, held.fence)
        return self._connection

    async def _lock(self, connection: Connection, fence: int) -> None:
        # A shared lock: the server may not have noticed the loss of the previous connection, which still holds its
        # lock.
        await connection.execute(statements.LOCK_LEASE, {"key": self._key, "fence": fence})

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _stop_beating(self) -> None:
        beating, self._beating = self._beating, None
        await cancel_and_wait(beating)

    def _turn(self) -> asyncio.Lock:
        loop = asyncio.get_running_loop()
        if self._turns is None or self._turns[0] is not loop:
            self._turns = (loop, asyncio.Lock())
        return self._turns[1]


def _words(holder: bytes) -> str:
    return bytes(holder).decode(errors="replace") or "another process"
