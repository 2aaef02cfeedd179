"""Worker session: polls activities, claims the orders behind them, and sends heartbeats for its claims."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Self
from uuid import uuid4

from pydantic import JsonValue
from temporalio.client import Client
from temporalio.service import RPCError
from typing_extensions import override

from perstack.dataclass import dataclass
from perstack.errors import DispatcherError
from perstack.ports.dispatcher import BEATS_EACH, Claim, Order, Seat
from perstack.support.work_items import order_of, to_json, without_unstorable
from perstack.system.concurrency import shield_until_done
from perstack_temporal import activities, names
from perstack_temporal.activities import PolledActivity, Presence, poll_activity
from perstack_temporal.connection import TemporalConnection
from perstack_temporal.job_workflow import ClaimReply

# maximum seconds that a claim waits for an order, since the server does not report an empty queue
_CLAIM_TIMEOUT_S = 0.25
_OTHER_QUEUES_TIMEOUT_S = 0.05
"""Seconds that a session with several queues waits for the others, to take the most urgent order."""
_UNCLAIMED_TIMEOUT_S = 1.5 * BEATS_EACH  # seconds after which an unclaimed activity is returned to other workers
_LEAVE_TIMEOUT_S = 5.0


@dataclass
class _WorkflowClaim:
    claim: Claim
    token: bytes
    workflow_id: str
    run_id: str
    is_ending: bool = False  # True during a release


class TemporalSeat(Seat):
    """Registration of one worker, with its claims."""

    def __init__(
        self,
        connection: TemporalConnection,
        name: str,
        labels: Mapping[str, str],
        concurrency: int,
    ) -> None:
        self._connection = connection
        self._name = without_unstorable(name)
        key, prefix = uuid4().hex, connection.address.queue
        stored_labels = {without_unstorable(label): without_unstorable(value) for label, value in labels.items()}
        self._presence = Presence(key, prefix, name, labels, concurrency)
        self._queues = names.queues_of_seat(prefix, stored_labels)
        self._polls: dict[str, asyncio.Task[None]] = {}
        self._inbox: list[PolledActivity] = []
        self._failure: DispatcherError | None = None
        self._news = asyncio.Event()
        self._claiming = asyncio.Lock()
        self._claims: dict[str, _WorkflowClaim] = {}

    async def __aenter__(self) -> Self:
        """Register the worker."""
        await self._connection.use(self._publish_claims, works=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Release the claims and unregister, for at most _LEAVE_TIMEOUT_S; if that fails the heartbeats time out."""
        for poll in self._polls.values():
            poll.cancel()
        await asyncio.gather(*self._polls.values(), return_exceptions=True)
        with suppress(DispatcherError, TimeoutError):
            await shield_until_done(asyncio.wait_for(self._unregister(), _LEAVE_TIMEOUT_S))

    @override
    async def claim(self) -> Claim | None:
        async with self._claiming:
            self._failure = None  # the answer of an earlier poll
            while (ticket := await self._next_activity(time.monotonic() + _CLAIM_TIMEOUT_S)) is not None:
                if (claim := await self._claim_order(ticket)) is not None:
                    with suppress(DispatcherError):
                        await self._connection.use(self._publish_claims)
                    return claim
            return None

    @override
    async def wait(self, seconds: float) -> None:
        if self._inbox or self._failure is not None:
            return
        self._news.clear()
        self._start_polls()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()

    async def _next_activity(self, until: float) -> PolledActivity | None:
        """Return the most urgent activity; None if none came until the monotonic time `until`."""
        while not self._inbox:
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            if time.monotonic() >= until:
                return None
            self._news.clear()
            self._start_polls()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + until - time.monotonic()):
                    await self._news.wait()
        if self._polls and len(self._queues) > 1:
            await asyncio.wait(self._polls.values(), timeout=_OTHER_QUEUES_TIMEOUT_S)
        ticket = min(self._inbox, key=lambda activity: (not activity.is_unsure, activity.urgency, activity.offered_at))
        self._inbox.remove(ticket)
        return ticket

    def _start_polls(self) -> None:
        for queue in self._queues:
            if queue not in self._polls:
                self._polls[queue] = asyncio.create_task(self._poll(queue))

    async def _poll(self, queue: str) -> None:
        """Poll a queue once and put the activity into the inbox, or the error into `_failure`."""
        try:
            client = await self._connection.use(_return_client, works=True)
            ticket = await poll_activity(client, queue, self._name)
        except RPCError as error:
            self._failure = self._connection.failure(error)
        except DispatcherError as error:
            self._failure = error
        else:
            if ticket is not None and self._name in ticket.refused:
                await self._try_call(lambda client: activities.give_back(client, ticket.token))
            elif ticket is not None:
                self._inbox.append(ticket)
        finally:
            del self._polls[queue]
            self._news.set()

    async def _claim_order(self, ticket: PolledActivity) -> Claim | None:
        """Claim the order behind an activity; None if others have it. After a DispatcherError it is claimed again."""

        async def ask(client: Client) -> ClaimReply | None:
            handle = client.get_workflow_handle(ticket.workflow_id, run_id=ticket.run_id)
            reply: ClaimReply | None = await handle.execute_update(  # pyright: ignore[reportUnknownMemberType]
                names.CLAIM,
                args=[ticket.id, ticket.attempt, self._name],
                id=ticket.claim_id,
                result_type=ClaimReply,
            )
            return reply

        try:
            reply = await self._connection.use(ask, works=True)
        except LookupError:
            return None
        except BaseException:
            ticket.is_unsure = True
            self._inbox.append(ticket)
            raise
        if reply is None:
            await self._try_call(lambda client: activities.give_back(client, ticket.token))
            return None
        order = order_of(reply["order"])
        if order is None:  # unreadable for this version; the Job's log still records that it waits
            await self._try_call(lambda client: activities.complete(client, ticket.token, {"again": None}))
            return None
        claim = Claim(ticket.claim_id, order, reply["is_taken_over"])
        self._claims[claim.id] = _WorkflowClaim(claim, ticket.token, ticket.workflow_id, ticket.run_id)
        return claim

    @override
    async def beat(self) -> Sequence[str]:
        active_claims = [workflow_claim for workflow_claim in self._claims.values() if not workflow_claim.is_ending]
        is_held = await asyncio.gather(*(self._renew_claim(workflow_claim) for workflow_claim in active_claims))
        lost = [
            workflow_claim.claim.id
            for workflow_claim, is_still_held in zip(active_claims, is_held, strict=True)
            if not is_still_held and not workflow_claim.is_ending and workflow_claim.claim.id in self._claims
        ]
        for id in lost:
            del self._claims[id]
        await self._connection.use(self._publish_claims)
        await self._return_unclaimed(_UNCLAIMED_TIMEOUT_S)
        return lost

    @override
    async def change(self, claim: Claim, order: Order) -> Claim:
        new_claim = Claim(claim.id, order, claim.is_taken_over)
        workflow_claim = self._claims.get(claim.id)
        if workflow_claim is not None:

            async def send(client: Client) -> None:
                handle = client.get_workflow_handle(workflow_claim.workflow_id, run_id=workflow_claim.run_id)
                await handle.signal(names.CHANGE, args=[claim.id, to_json(order)])

            with suppress(LookupError):
                await self._connection.use(send)
            workflow_claim.claim = new_claim
        return new_claim

    @override
    async def release(self, claim: Claim, new_order: Order | None = None) -> None:
        workflow_claim = self._claims.get(claim.id)
        if workflow_claim is None:
            return
        result: dict[str, JsonValue] = {"again": None if new_order is None else to_json(new_order)}
        workflow_claim.is_ending = True
        try:
            with suppress(LookupError):
                await shield_until_done(
                    self._connection.use(lambda client: activities.complete(client, workflow_claim.token, result))
                )
            self._claims.pop(claim.id, None)
        finally:
            workflow_claim.is_ending = False

    async def _renew_claim(self, claim: _WorkflowClaim) -> bool:
        """Send a heartbeat for a claim, and return whether it is still held."""
        try:
            return await self._connection.use(lambda client: activities.beat(client, claim.token))
        except LookupError:
            return False

    async def _return_unclaimed(self, seconds: float) -> None:
        """Return the unclaimed activities that arrived at least `seconds` ago."""
        for ticket in [activity for activity in self._inbox if time.monotonic() - activity.came_at >= seconds]:
            self._inbox.remove(ticket)
            finish = activities.leave if ticket.is_unsure else activities.give_back
            await self._try_call(partial(finish, token=ticket.token))

    async def _unregister(self) -> None:
        await self._return_unclaimed(0.0)
        for workflow_claim in list(self._claims.values()):
            await self._try_call(partial(activities.leave, token=workflow_claim.token))
        await self._connection.use(lambda client: self._presence.report(client, (), leaves=True))

    async def _publish_claims(self, client: Client) -> None:
        await self._presence.report(
            client,
            [
                order.run_id or order.job_id
                for order in (workflow_claim.claim.order for workflow_claim in self._claims.values())
            ],
        )

    async def _try_call(self, work: Callable[[Client], Awaitable[None]]) -> None:
        """Make a call and ignore its failure: a timeout on the server later has this effect."""
        with suppress(DispatcherError, LookupError):
            await self._connection.use(work)


async def _return_client(client: Client) -> Client:
    return client
