"""Workflow of one Job: its order and the claim on it, and nothing of the Job itself.

It waits until the order is due and offers it as activities, one in each queue that a fitting worker may poll. A worker
that got one sends the update `claim`; the workflow gives the order to the first and cancels the other activities. The
activity lasts as long as the worker sends heartbeats. If it times out, or the worker gives it up, the order is offered
again as taken over. The workflow ends when no order is left.

Temporal replays this code, so it must be deterministic: no clock, randomness or I/O, and no import of ours except
`names`. Workflows that wait today were started by older versions: their histories must lead to unchanged commands. Put
a change of commands behind `workflow.patched`; `tests/plugins/temporal/histories` has the histories that each version
must replay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import NotRequired, TypedDict

from temporalio import workflow
from temporalio.common import Priority, RetryPolicy
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from perstack_temporal import names


class StoredOrder(TypedDict):
    """Stored form of an order."""

    job_id: str
    due: int
    priority: int
    labels: Mapping[str, str]
    submitted_at: int
    takeovers: int
    events: int
    refused: Mapping[str, str]
    run_id: NotRequired[str]
    storage: NotRequired[str]


class WorkflowState(TypedDict, total=False):
    """Input of a workflow run, passed on when it continues as a new one."""

    prefix: str
    silent_after: float
    longest_history: int  # history events after which the workflow continues as a new run
    waiting: StoredOrder | None
    lost: StoredOrder | None


class WorkflowMemo(TypedDict):
    """Memo of a workflow, shown in the server's list."""

    waiting: list[int] | None  # due time and submission time of the waiting order, in milliseconds since 1970
    running: bool


class ClaimReply(TypedDict):
    """Answer to a claim."""

    order: StoredOrder
    is_taken_over: bool


class Completion(TypedDict):
    """Result of an activity: the order is done, or `again` is to be queued."""

    again: StoredOrder | None


class _ClaimedOrder(TypedDict):
    ticket: str
    attempt: int
    claim: str
    order: StoredOrder


def memo_of_waiting(due: int, submitted_at: int) -> WorkflowMemo:
    """Return the memo of an order that nobody has claimed."""
    return {"waiting": [due, submitted_at], "running": False}


def merge(waiting: StoredOrder | None, stored_order: StoredOrder) -> StoredOrder:
    """Merge an order into the waiting one of its Job: the earlier time, the higher priority."""
    if waiting is None:
        return stored_order
    due, priority = min(waiting["due"], stored_order["due"]), max(waiting["priority"], stored_order["priority"])
    return {**waiting, "due": due, "priority": priority}


def _retrieve_error(ticket: asyncio.Task[Completion]) -> None:
    """Retrieve an activity's exception to avoid a warning; most offers are cancelled."""
    if not ticket.cancelled():
        ticket.exception()


@workflow.defn(name=names.WORKFLOW)
class JobWorkflow:
    """Workflow of one Job."""

    @workflow.init
    def __init__(self, state: WorkflowState) -> None:
        """Continue with the orders of an earlier run, if there was one."""
        self._prefix = state.get("prefix", "")
        self._silent_after = state.get("silent_after", 0.0)
        self._longest_history = state.get("longest_history", names.MAX_HISTORY_EVENTS)
        self._waiting: StoredOrder | None = state.get("waiting")
        self._lost_order: StoredOrder | None = state.get("lost")
        """Claimed order whose worker timed out or left, until another takes it over."""
        self._claimed_order: _ClaimedOrder | None = None
        self._has_begun = self._waiting is not None or self._lost_order is not None
        self._offered: set[str] = set()
        self._round = 0
        self._memo: WorkflowMemo | None = None

    @workflow.run
    async def run(self, state: WorkflowState) -> None:
        """Offer orders until none is left."""
        await workflow.wait_condition(lambda: self._has_begun)
        while self._waiting is not None or self._lost_order is not None:
            self._publish_memo()
            if workflow.info().get_current_history_length() > self._longest_history:
                workflow.continue_as_new(WorkflowState({**state, "waiting": self._waiting, "lost": self._lost_order}))
            if self._lost_order is not None:
                await self._offer_until_claimed(self._lost_order)
            elif await self._wait_until_due(self._waiting):
                await self._offer_until_claimed(self._waiting)

    @workflow.signal(name=names.SUBMIT)
    def submit(self, stored_order: StoredOrder) -> None:
        """Queue an order, or merge it into the waiting one."""
        self._has_begun = True
        self._waiting = merge(self._waiting, stored_order)

    @workflow.signal(name=names.CHANGE)
    def change(self, claim: str, stored_order: StoredOrder) -> None:
        """Replace the claimed order, if this claim still holds it."""
        if self._claimed_order is not None and self._claimed_order["claim"] == claim:
            self._claimed_order["order"] = stored_order

    @workflow.update(name=names.WITHDRAW)
    def withdraw(self) -> bool:
        """Remove the waiting order. Return False if there is none."""
        had_order, self._waiting = self._waiting is not None, None
        self._publish_memo()
        return had_order

    @workflow.update(name=names.CLAIM)
    def claim(self, ticket: str, attempt: int, seat: str) -> ClaimReply | None:
        """Give the order to the first worker that claims it; None for later ones and for a worker that it refuses."""
        claimed = self._claimed_order
        if claimed is not None and claimed["ticket"] == ticket and claimed["attempt"] < attempt:
            # the server restarted the activity, so the holder has lost the order
            order, is_taken_over = claimed["order"], True
        elif claimed is None and ticket in self._offered and self._lost_order is not None:
            order, is_taken_over = self._lost_order, True
        elif claimed is None and ticket in self._offered and self._waiting is not None:
            order, is_taken_over = self._waiting, False
        else:
            return None
        if seat in order["refused"]:
            return None
        if claimed is None and is_taken_over:
            self._lost_order = None
        elif claimed is None:
            self._waiting = None
        id = f"{workflow.info().run_id}.{ticket}.{attempt}"
        self._claimed_order = {"ticket": ticket, "attempt": attempt, "claim": id, "order": order}
        self._publish_memo()
        return {"order": order, "is_taken_over": is_taken_over}

    @workflow.query(name=names.ORDER)
    def order(self) -> StoredOrder | None:
        """Return the waiting order, else the claimed one."""
        if self._waiting is not None:
            return self._waiting
        return self._lost_order if self._claimed_order is None else self._claimed_order["order"]

    def _current_memo(self) -> WorkflowMemo:
        waiting = None if self._waiting is None else [self._waiting["due"], self._waiting["submitted_at"]]
        return {"waiting": waiting, "running": self._claimed_order is not None or self._lost_order is not None}

    async def _wait_until_due(self, stored_order: StoredOrder | None) -> bool:
        """Return True once the order is due; False if it changed or the timer ended before."""
        if stored_order is None:
            return False
        seconds = stored_order["due"] / 1000 - workflow.time()
        if seconds <= 0:
            return True
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._waiting is not stored_order, timeout=min(seconds, names.MAX_TIMER_S)
            )
        return False

    async def _offer_until_claimed(self, stored_order: StoredOrder | None) -> None:
        """Offer an order in its queues until it is claimed or changes; then await the claim's completion."""
        if stored_order is None:
            return
        self._round += 1
        tickets = {
            f"{self._round}.{number}": self._start_activity(f"{self._round}.{number}", queue, stored_order)
            for number, queue in enumerate(names.queues_of_order(self._prefix, stored_order["labels"]))
        }
        self._offered = set(tickets)
        is_lost = self._lost_order is not None
        await workflow.wait_condition(
            lambda: (
                self._claimed_order is not None
                or any(ticket.done() for ticket in tickets.values())
                or (not is_lost and self._needs_new_offer(stored_order))
            )
        )
        self._offered = set()
        for id, ticket in tickets.items():
            if self._claimed_order is None or id != self._claimed_order["ticket"]:
                ticket.cancel()
        if self._claimed_order is not None:
            await self._await_completion(tickets[self._claimed_order["ticket"]])

    async def _await_completion(self, ticket: workflow.ActivityHandle[Completion]) -> None:
        """Wait for the claimed activity; queue the order that follows, or keep a lost one for another worker."""
        next_order: StoredOrder | None = None
        try:
            next_order = (await ticket)["again"]
        except ActivityError:
            if self._claimed_order is not None:
                self._lost_order = self._claimed_order["order"]
        self._claimed_order = None
        if next_order is not None:
            self._waiting = merge(self._waiting, next_order)
        self._publish_memo()

    def _start_activity(self, id: str, queue: str, stored_order: StoredOrder) -> workflow.ActivityHandle[Completion]:
        ticket: workflow.ActivityHandle[Completion] = workflow.start_activity(
            names.DRIVE_ACTIVITY,
            args=[{"refused": sorted(stored_order["refused"])}],
            activity_id=id,
            task_queue=queue,
            result_type=Completion,
            heartbeat_timeout=timedelta(seconds=self._silent_after),
            start_to_close_timeout=timedelta(days=3650),
            priority=Priority(priority_key=names.urgency_of(stored_order["priority"])),
            retry_policy=RetryPolicy(
                initial_interval=timedelta(seconds=names.RETURN_DELAY_S),
                backoff_coefficient=1.0,
                non_retryable_error_types=list(names.NOT_REPEATED),
            ),
        )
        ticket.add_done_callback(_retrieve_error)
        return ticket

    def _needs_new_offer(self, stored_order: StoredOrder) -> bool:
        """Return whether the waiting order differs from the offered one in what an offer contains."""
        waiting = self._waiting
        return (
            waiting is None
            or any(waiting[key] != stored_order[key] for key in ("due", "labels", "refused"))
            or names.urgency_of(waiting["priority"]) != names.urgency_of(stored_order["priority"])
        )

    def _publish_memo(self) -> None:
        memo = self._current_memo()
        if memo != self._memo:
            self._memo = memo
            workflow.upsert_memo({names.FACTS: memo})
