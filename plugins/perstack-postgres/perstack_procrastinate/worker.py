"""Worker session: claims, heartbeats and releases, each checked by the server against the claim's current holder."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Self

from procrastinate.exceptions import ConnectorException, UniqueViolation
from procrastinate.jobs import Notification, Status
from psycopg.errors import ForeignKeyViolation
from psycopg.types.json import Jsonb
from typing_extensions import override

from perstack.errors import DispatcherError
from perstack.ports.dispatcher import BEATS_EACH, SILENT_AFTER, Claim, Order, Seat
from perstack.support.work_items import order_of, to_json
from perstack.system.concurrency import cancel_and_wait, shield_until_done
from perstack_postgres.connections import FAILURES, Connection
from perstack_procrastinate import statements
from perstack_procrastinate.engine import PLAIN, Engine, fetch_row, installed_version, labels_of, unwrap_errors

_LEAVE_TIMEOUT_S = 5.0
_DELETE_AFTER_S = 3600.0  # seconds without a heartbeat after which a worker's row is deleted
_LISTEN_RETRY_INTERVAL_S = 1.0  # seconds between attempts to listen after a failure
_POLL_INTERVAL_S = BEATS_EACH
"""Maximum seconds between two queries of the queue, since no notification is sent when a worker falls silent."""


class ProcrastinateSeat(Seat):
    """Registration of one worker, with its claims."""

    def __init__(self, engine: Engine, name: str, labels: Mapping[str, str], concurrency: int) -> None:
        self._engine = engine
        self._name = name
        self._labels = labels
        self._concurrency = concurrency
        self._number = 0
        self._claims: dict[str, Claim] = {}
        self._releasing: set[str] = set()
        self._claiming = asyncio.Lock()
        self._is_unsure = False
        self._notification_count = self._handled_count = 0
        self._news = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Register the worker and start listening."""
        await self._engine.call(lambda manager: manager.prune_stalled_workers(_DELETE_AFTER_S))
        await self._engine.row(statements.SWEEP, {"plain": PLAIN})
        await self._register()
        self._listening = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Unregister the worker, for at most _LEAVE_TIMEOUT_S; if that fails its heartbeat times out."""
        try:
            with suppress(DispatcherError, TimeoutError):
                await shield_until_done(asyncio.wait_for(self._unregister(), _LEAVE_TIMEOUT_S))
        finally:
            await cancel_and_wait(self._listening)

    @override
    async def claim(self) -> Claim | None:
        async with self._claiming:
            notification_count, was_unsure, self._is_unsure = self._notification_count, self._is_unsure, True
            claim = await self._engine.with_retries(lambda is_again: self._claim_registered(is_again or was_unsure))
            # while it is set, the server may have assigned an order to this worker whose answer was lost
            self._is_unsure = False
            if claim is None:
                self._handled_count = notification_count
            else:
                self._claims[claim.id] = claim
            return claim

    @override
    async def wait(self, seconds: float) -> None:
        self._news.clear()
        if self._notification_count != self._handled_count:
            return
        seconds = min(seconds, _POLL_INTERVAL_S)
        with suppress(*FAILURES, DispatcherError):
            row = await self._engine.row_once(statements.NEXT_DUE)
            if row is not None and row[0] is not None:
                seconds = min(seconds, row[0])
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()

    @override
    async def beat(self) -> Sequence[str]:
        own_ids = [id for id in self._claims if id not in self._releasing]
        row = await self._engine.row(statements.BEAT, {"seat": self._number})
        if row is None:
            await self._register()  # the row was deleted after a long silence
        held_ids = set[str](() if row is None else row[0])
        lost = [id for id in own_ids if id not in held_ids and id in self._claims and id not in self._releasing]
        for id in lost:
            del self._claims[id]
        return lost

    @override
    async def change(self, claim: Claim, order: Order) -> Claim:
        new_claim = Claim(claim.id, order, claim.is_taken_over)
        if claim.id in self._claims:
            await self._engine.row(statements.CHANGE, {**self._claim_values(claim), "args": Jsonb(to_json(order))})
            self._claims[claim.id] = new_claim
        return new_claim

    @override
    async def release(self, claim: Claim, new_order: Order | None = None) -> None:
        if claim.id not in self._claims:
            return

        async def work(connection: Connection) -> None:
            async with connection.transaction():
                if await fetch_row(connection, statements.RELEASE, self._claim_values(claim)) is None:
                    return
                if new_order is None:
                    await fetch_row(connection, statements.NOTIFY, {"key": claim.order.key})
                else:
                    await self._engine.submit_on(connection, new_order)

        self._releasing.add(claim.id)
        try:
            await shield_until_done(self._engine.use(work))
            self._claims.pop(claim.id, None)
        finally:
            self._releasing.discard(claim.id)

    async def _claim_registered(self, is_unsure: bool) -> Claim | None:
        try:
            return await self._claim(is_unsure)
        except ForeignKeyViolation:
            await self._register()  # the row was deleted after a long silence
            return await self._claim(is_unsure)

    async def _claim(self, is_unsure: bool) -> Claim | None:
        """Claim an order: an earlier claim whose answer was lost, an abandoned order, or the next due one."""
        if is_unsure and (claim := await self._find_lost_claim()) is not None:
            return claim
        row = await self._engine.row_once(statements.QUEUES, {"name": self._name, "labels": [*labels_of(self._labels)]})
        queues = None if row is None else row[0]
        if queues == []:
            return None
        values = {"seat": self._number, "queues": queues, "silent_after": SILENT_AFTER}
        row = await self._engine.row_once(statements.TAKE_OVER, values)
        if row is not None:
            return await self._accept_claim(row[0], row[1], row[2])
        manager = await self._engine.manager()
        with suppress(UniqueViolation):  # another worker has just claimed an order of this Job
            job = await unwrap_errors(manager.fetch_job(queues, self._number))
            if job is not None:
                return await self._accept_claim(job.id or 0, job.attempts, job.task_kwargs)
        return None

    async def _find_lost_claim(self) -> Claim | None:
        """Return a claim that the server assigned to this worker in an answer that was lost; None without one."""
        manager = await self._engine.manager()
        for job in await unwrap_errors(manager.list_jobs_async(worker_id=self._number, status="doing")):
            if _claim_id(job.id or 0, job.attempts) not in self._claims:
                return await self._accept_claim(job.id or 0, job.attempts, job.task_kwargs)
        return None

    async def _accept_claim(self, number: int, attempts: int, arguments: object) -> Claim | None:
        """Return the claim of a job; mark a job without a readable order as failed, so that it is not claimed again."""
        order = order_of(arguments)
        if order is None:
            manager = await self._engine.manager()
            await unwrap_errors(manager.finish_job_by_id_async(number, Status.FAILED, delete_job=False))
            return None
        return Claim(_claim_id(number, attempts), order, attempts > 0)

    def _claim_values(self, claim: Claim) -> dict[str, object]:
        number, _, attempts = claim.id.partition(".")
        return {"id": int(number), "attempts": int(attempts), "seat": self._number}

    async def _register(self) -> None:
        number = await self._engine.call(lambda manager: manager.register_worker())
        values = {"seat": number, "name": self._name, "labels": Jsonb(dict(self._labels))}
        await self._engine.row(
            statements.REGISTER_WORKER, {**values, "concurrency": self._concurrency, "engine": installed_version()}
        )
        self._number = number

    async def _unregister(self) -> None:
        await self._engine.call(lambda manager: manager.unregister_worker(self._number))
        if self._claims:
            await self._engine.row(statements.NOTIFY_ALL)

    async def _listen(self) -> None:
        while True:
            # Anybody may send to the channel. An unreadable notification still means that something may have changed.
            with suppress(ConnectorException, *FAILURES, ValueError, LookupError, TypeError):
                manager = await self._engine.manager()
                await manager.listen_for_jobs(on_notification=self._on_notification)
            self._notify()
            await asyncio.sleep(_LISTEN_RETRY_INTERVAL_S)

    async def _on_notification(self, *, channel: str, notification: Notification) -> None:
        self._notify()

    def _notify(self) -> None:
        self._notification_count += 1
        self._news.set()


def _claim_id(number: int, attempts: int) -> str:
    return f"{number}.{attempts}"
