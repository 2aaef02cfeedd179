"""Dispatcher port implemented with one Temporal workflow per queued Job or Run.

`job_workflow` has the workflow: it holds the order, waits until it is due, and offers it as activities in the queues of
the order's labels. `worker` polls these activities and claims the order with an update. A claim lives as long as the
activity has heartbeats; the server's heartbeat timeout makes the workflow offer the order again. Any process that asks
a workflow something also runs a worker for workflows (`connection`), since Temporal stores them but does not run them.

Change together: `names` is shared by workflows and workers. Running workflows were started by older versions, so a
changed workflow must replay their histories (see `job_workflow`).

Imports that take time are made on first use. `perstack.testing` has the contract tests of dispatchers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from typing_extensions import override

from perstack.errors import DispatcherError
from perstack.ports.dispatcher import SILENT_AFTER, Dispatcher, Load, Order, WorkerInfo, order_key
from perstack_temporal.names import MAX_HISTORY_EVENTS, TemporalAddress

if TYPE_CHECKING:
    from temporalio.client import Client

    from perstack_temporal.connection import TemporalConnection
    from perstack_temporal.job_workflow import WorkflowMemo
    from perstack_temporal.worker import TemporalSeat

T = TypeVar("T")

_WORKFLOW_TASK_TIMEOUT_S = 3
"""Maximum seconds for one step of a workflow; then another process runs it, since the first may have died."""
_MAX_LISTED = 20_000
_PAGE_SIZE = 1_000


class TemporalDispatcher(Dispatcher):
    """Orders on one server, as one process accesses them. Each call takes a bounded time."""

    def __init__(self, address: TemporalAddress) -> None:
        self._address = address
        self.location = address.display_address

    @cached_property
    def _connection(self) -> TemporalConnection:
        from perstack_temporal.connection import TemporalConnection

        return TemporalConnection(self._address)

    @override
    async def submit(self, order: Order) -> None:
        from temporalio.common import WorkflowIDConflictPolicy

        from perstack.support.work_items import to_json
        from perstack_temporal import names
        from perstack_temporal.job_workflow import WorkflowState, memo_of_waiting

        async def start(client: Client) -> None:
            await client.start_workflow(
                names.WORKFLOW,
                WorkflowState(
                    prefix=self._address.queue, silent_after=SILENT_AFTER, longest_history=MAX_HISTORY_EVENTS
                ),
                id=self._address.workflow_id(order.key),
                task_queue=self._address.queue,
                task_timeout=timedelta(seconds=_WORKFLOW_TASK_TIMEOUT_S),
                memo={names.FACTS: memo_of_waiting(order.due, order.submitted_at)},
                start_signal=names.SUBMIT,
                start_signal_args=[to_json(order)],
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            )

        await self._connection.use(start)

    @override
    async def withdraw(self, job_id: str, run_id: str | None = None) -> bool:
        from perstack_temporal import names

        async def ask(client: Client) -> bool:
            handle = client.get_workflow_handle(self._address.workflow_id(order_key(job_id, run_id)))
            was_waiting: bool = await handle.execute_update(  # pyright: ignore[reportUnknownMemberType]
                names.WITHDRAW, result_type=bool
            )
            return was_waiting

        try:
            return await self._connection.use(ask, works=True)
        except LookupError:
            return False

    @override
    async def order(self, job_id: str, run_id: str | None = None) -> Order | None:
        from perstack.support.work_items import order_of
        from perstack_temporal import names
        from perstack_temporal.job_workflow import StoredOrder

        stored_order = await self._query(order_key(job_id, run_id), names.ORDER, StoredOrder)
        if stored_order is None:
            return None
        order = order_of(stored_order)
        if order is None:
            raise DispatcherError(
                f"{self.location}: the order of Job {job_id} cannot be read: end its workflow, or upgrade"
            )
        return order

    @override
    def seat(self, name: str, *, labels: Mapping[str, str] | None = None, concurrency: int = 1) -> TemporalSeat:
        from perstack_temporal.worker import TemporalSeat

        return TemporalSeat(self._connection, name, dict(labels or {}), concurrency)

    @override
    async def workers(self) -> Sequence[WorkerInfo]:
        from perstack_temporal.activities import list_workers

        return await self._connection.use(lambda client: list_workers(client, self._address.queue))

    async def load(self) -> Load:
        """Return the load from the server's list of workflows, which is slightly out of date."""
        memos = await self._connection.use(self._list_memos)
        return _summarize_load(memos, int(time.time() * 1000))

    @override
    async def close(self) -> None:
        if "_connection" in vars(self):
            await self._connection.close()

    async def _query(self, key: str, query: str, type: type[T]) -> T | None:
        """Return the answer of an open workflow; None without one."""
        from temporalio.client import WorkflowQueryRejectedError
        from temporalio.common import QueryRejectCondition

        async def ask(client: Client) -> T | None:
            handle = client.get_workflow_handle(self._address.workflow_id(key))
            try:
                answer: T | None = await handle.query(
                    query, result_type=type, reject_condition=QueryRejectCondition.NOT_OPEN
                )
            except WorkflowQueryRejectedError:
                return None
            return answer

        try:
            return await self._connection.use(ask, works=True)
        except LookupError:
            return None

    async def _list_memos(self, client: Client) -> list[WorkflowMemo]:
        from perstack_temporal import names
        from perstack_temporal.job_workflow import WorkflowMemo

        queue = self._address.queue
        memos: list[WorkflowMemo] = []
        query = f"WorkflowType='{names.WORKFLOW}' AND TaskQueue='{queue}' AND ExecutionStatus='Running'"
        async for execution in client.list_workflows(query, page_size=_PAGE_SIZE, limit=_MAX_LISTED):
            memo = await execution.memo_value(names.FACTS, None, type_hint=WorkflowMemo)
            if memo is not None:
                memos.append(memo)
        return memos


def _summarize_load(memos: Sequence[WorkflowMemo], now: int) -> Load:
    waiting = [memo["waiting"] for memo in memos if memo["waiting"] is not None]
    due = [(due_ms, submitted_at) for due_ms, submitted_at in waiting if due_ms <= now]
    oldest = min((due_ms or submitted_at for due_ms, submitted_at in due), default=None)
    running = sum(memo["running"] for memo in memos)
    return Load(len(due), len(waiting) - len(due), running, oldest)
