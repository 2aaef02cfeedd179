"""Notifications of writes to Jobs: sent with NOTIFY, received with LISTEN.

Notifications are sent in a separate statement soon after the write: inside the write's transaction, NOTIFY would
serialize all commits of the database. A lost notification only delays a watcher until its next poll.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from psycopg import sql
from typing_extensions import override

from perstack.errors import StorageError
from perstack.ports.storage import Watch
from perstack.system.concurrency import cancel_and_wait
from perstack_postgres.connections import FAILURES, Connection, Connections
from perstack_postgres.leases import JobKey

_SEND_DELAY_S = 0.02
_SEND_TIMEOUT_S = 5.0
_LISTEN_RETRY_INTERVAL_S = 1.0  # seconds between attempts to listen after a failure


class PostgresWatch(Watch):
    """Event that a watcher of a Job waits for."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()

    @override
    async def wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.changed.wait()
        self.changed.clear()


class Notices:
    """Notifications of this process in one schema."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._channel = f"perstack_{connections.address.schema}"
        self._unsent: set[JobKey] = set()
        self._sending: asyncio.Task[None] | None = None
        self._watched: dict[str, list[PostgresWatch]] = {}
        self._listening: asyncio.Task[None] | None = None

    def queue_notice(self, key: JobKey) -> None:
        """Queue a notification that something was written to a Job."""
        self._unsent.add(key)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_soon())

    @asynccontextmanager
    async def watching(self, key: JobKey) -> AsyncGenerator[PostgresWatch]:
        """Watch a Job; the first watcher starts the listening connection."""
        watch, name = PostgresWatch(), _channel_payload(key)
        self._watched.setdefault(name, []).append(watch)
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._listen())
        try:
            yield watch
        finally:
            self._watched[name].remove(watch)
            if not self._watched[name]:
                del self._watched[name]
            if not self._watched:
                await cancel_and_wait(self._listening)

    async def close(self) -> None:
        """Stop listening and send the queued notifications."""
        await cancel_and_wait(self._listening)
        await cancel_and_wait(self._sending)
        # A cancelled task would keep its half-open connection alive.
        self._listening = self._sending = None
        if self._unsent:
            await self._send()

    async def _send_soon(self) -> None:
        while self._unsent:
            await asyncio.sleep(_SEND_DELAY_S)
            await self._send()

    async def _send(self) -> None:
        names = [_channel_payload(key) for key in self._unsent]
        self._unsent.clear()

        async def work(connection: Connection) -> None:
            query = "SELECT pg_notify(%s, name) FROM unnest(%s::text[]) AS name"
            await connection.execute(query, [self._channel, names])

        with suppress(StorageError):
            await self._connections.once(work, _SEND_TIMEOUT_S)

    async def _listen(self) -> None:
        """Wake the watchers of each Job that a notification names, and reconnect after a failure."""
        while True:
            with suppress(StorageError, *FAILURES):
                connection = await self._connections.open_once()
                try:
                    await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
                    self._wake_all()
                    async for notice in connection.notifies():
                        for watch in self._watched.get(notice.payload, ()):
                            watch.changed.set()
                finally:
                    await connection.close()
            self._wake_all()
            await asyncio.sleep(_LISTEN_RETRY_INTERVAL_S)

    def _wake_all(self) -> None:
        """Wake all watchers, since writes before LISTEN took effect were not reported."""
        for watchers in self._watched.values():
            for watch in watchers:
                watch.changed.set()


def _channel_payload(key: JobKey) -> str:
    return f"{key.space}/{key.job_id}"
