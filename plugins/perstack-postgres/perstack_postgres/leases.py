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
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._loop_lock: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    def fence(self, key: JobKey) -> int | None:
        """Return the fence of this process's lease on a Job; None without one. Raises Conflict if the lease is lost."""
        held_lease = self._held_leases.get(key)
        if held_lease is not None and held_lease.is_lost:
            raise self.lost(key)
        return None if held_lease is None else held_lease.fence

    def lost(self, key: JobKey) -> Conflict:
        """Mark a lease as lost and return the exception for its former holder."""
        if held_lease := self._held_leases.get(key):
            held_lease.is_lost = True
        return Conflict(
            f"Job {key.job_id}: the lease of this process ended, because it did not reach the database in time, so"
            " another process may drive the Job now: check the Job, then resume it"
        )

    @asynccontextmanager
    async def hold(self, key: JobKey, holder: str) -> AsyncGenerator[None]:
        """Hold a Job's lease. Raises NotFound, and Conflict naming the holder."""
        try:
            await shield_until_done(self._acquire(key, holder))
        except asyncio.CancelledError:  # the lease was taken
            await shield_until_done(self._release(key))
            raise
        try:
            yield
        finally:
            await shield_until_done(self._release(key))

    async def holder(self, key: JobKey) -> str | None:
        """Return the current holder's description of itself; None if the lease is free."""
        values = {"space": key.space, "job": key.job_id, "key": self._key}

        async def work(connection: Connection) -> str | None:
            row = await (await connection.execute(statements.HOLDER, values)).fetchone()
            return None if row is None else _decode_holder(row[0])

        return await self._connections.read(work, None)

    async def close(self) -> None:
        """Stop the heartbeat and close the connection, which frees the leases still held."""
        await self._stop_heartbeats()
        await self._close_connection()

    async def _acquire(self, key: JobKey, holder: str) -> None:
        holder_bytes = holder.encode()[:_MAX_HOLDER_BYTES]
        tried_fences = set[int]()
        async with self._connection_lock():
            fence = await self._run_on_connection(
                lambda connection: self._acquire_on(connection, key, holder_bytes, tried_fences)
            )
            self._held_leases[key] = _HeldLease(fence)
        if self._heartbeat_task is None or self._heartbeat_task.done():
            self._heartbeat_task = asyncio.create_task(self._send_heartbeats())

    async def _acquire_on(
        self, connection: Connection, key: JobKey, holder_bytes: bytes, tried_fences: set[int]
    ) -> int:
        """Take the lease and return its fence; `tried_fences` has the fences of attempts whose answers were lost."""
        values = {"space": key.space, "job": key.job_id, "key": self._key}
        async with connection.transaction():
            row = await (await connection.execute(statements.JOB_TO_LEASE, values)).fetchone()
            if row is None:
                raise no_job(key.job_id, self._connections.address.display_url)
            values = {"n": row[0], "key": self._key, "holder": holder_bytes, "seconds": EXPIRY_S}
            lease = await (await connection.execute(statements.LEASE, values)).fetchone()
            if lease is not None and lease[2] and int(lease[1]) not in tried_fences:
                holder = _decode_holder(lease[0])
                raise already_driven(key.job_id, holder)
            taken_row = await (await connection.execute(statements.TAKE_LEASE, values)).fetchone()
            fence = 0 if taken_row is None else int(taken_row[0])
            tried_fences.add(fence)
            await self._lock(connection, fence)
        return fence

    async def _release(self, key: JobKey) -> None:
        """Free the lease unless it is lost; without leases end the heartbeat."""
        async with self._connection_lock():
            held_lease = self._held_leases.pop(key)
            connection = self._connection
            if not held_lease.is_lost and connection is not None:
                values = {"key": self._key, "fence": held_lease.fence}
                try:
                    async with asyncio.timeout(_HEARTBEAT_TIMEOUT_S):
                        await connection.execute(statements.FREE_LEASE, values)
                except FAILURES:  # the lease ends with the connection
                    await self._close_connection()
        if not self._held_leases:
            await self._stop_heartbeats()

    async def _send_heartbeats(self) -> None:
        while self._held_leases:
            await asyncio.sleep(_HEARTBEAT_INTERVAL_S)
            with suppress(StorageError):  # the next write reports it too
                async with self._connection_lock():
                    await self._run_on_connection(self._renew_leases, _HEARTBEAT_TIMEOUT_S)

    async def _renew_leases(self, connection: Connection) -> None:
        """Extend the leases in the database, and mark those that it no longer has as lost."""
        fences = {held_lease.fence: held_lease for held_lease in self._held_leases.values() if not held_lease.is_lost}
        values = {"fences": list(fences), "seconds": EXPIRY_S}
        renewed_fences = {
            int(row[0]) for row in await (await connection.execute(statements.KEEP_LEASES, values)).fetchall()
        }
        for fence, held_lease in fences.items():
            held_lease.is_lost = fence not in renewed_fences

    async def _run_on_connection(self, work: Callable[[Connection], Awaitable[T]], seconds: float = EXPIRY_S) -> T:
        """Run work on the leases' connection, with retries; close a connection with an unfinished transaction."""

        async def attempt(_: bool) -> T:
            try:
                async with asyncio.timeout(seconds):
                    return await work(await self._ready_connection())
            finally:
                if self._connection is not None and not is_idle(self._connection):
                    await self._close_connection()

        return await self._connections.with_retries(attempt)

    async def _ready_connection(self) -> Connection:
        """Return the connection. A new one first renews and locks the leases that nobody else took meanwhile."""
        if self._connection is None:
            self._connection = await self._connections.open_ready()
            await self._renew_leases(self._connection)
            for held_lease in self._held_leases.values():
                if not held_lease.is_lost:
                    await self._lock(self._connection, held_lease.fence)
        return self._connection

    async def _lock(self, connection: Connection, fence: int) -> None:
        # A shared lock: the server may not have noticed the loss of the previous connection, which still holds its
        # lock.
        await connection.execute(statements.LOCK_LEASE, {"key": self._key, "fence": fence})

    async def _close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _stop_heartbeats(self) -> None:
        heartbeat_task, self._heartbeat_task = self._heartbeat_task, None
        await cancel_and_wait(heartbeat_task)

    def _connection_lock(self) -> asyncio.Lock:
        loop = asyncio.get_running_loop()
        if self._loop_lock is None or self._loop_lock[0] is not loop:
            self._loop_lock = (loop, asyncio.Lock())
        return self._loop_lock[1]


def _decode_holder(holder: bytes) -> str:
    return bytes(holder).decode(errors="replace") or "another process"
