"""The activities by which orders reach a worker, by the calls that the SDK's own worker makes.

That worker cannot be told to take one activity now and none after it, nor which of several; so a seat asks for itself.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import field
from datetime import timedelta

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError
from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import TaskQueueKind
from temporalio.api.failure.v1 import ApplicationFailureInfo, Failure
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    PollActivityTaskQueueRequest,
    RecordActivityTaskHeartbeatRequest,
    RespondActivityTaskCompletedRequest,
    RespondActivityTaskFailedRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perstack.dataclass import dataclass
from perstack_temporal import names

_POLL_SECONDS = 30
_CALL = timedelta(seconds=5)
"""How long one try of a call may take."""


class _Input(BaseModel):
    """What stands in a ticket."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    refused: tuple[str, ...] = ()


@dataclass
class Ticket:
    """An order may be behind it, for the first who claims it."""

    token: bytes
    workflow_id: str
    run_id: str
    id: str
    attempt: int
    urgency: int
    offered_at: int
    """By the server's clock, in milliseconds."""
    refused: tuple[str, ...]
    came_at: float = field(default_factory=time.monotonic)
    is_unsure: bool = False
    """It was claimed, and the answer did not come."""

    @property
    def claim_id(self) -> str:
        """Of the claim that may come of it."""
        return f"{self.run_id}.{self.id}.{self.attempt}"


async def next_ticket(client: Client, queue: str, worker: str) -> Ticket | None:
    """What comes in a queue within half a minute. Raises RPCError."""
    request = PollActivityTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=queue, kind=TaskQueueKind.TASK_QUEUE_KIND_NORMAL),
        identity=worker,
    )
    try:
        found = await client.workflow_service.poll_activity_task_queue(
            request, timeout=timedelta(seconds=_POLL_SECONDS)
        )
    except RPCError as error:
        if error.status == RPCStatusCode.DEADLINE_EXCEEDED:
            return None
        raise
    if not found.task_token:
        return None
    try:
        values = await client.data_converter.decode(found.input.payloads)
        said = _Input.model_validate(values[0] if values else {})
    except (ValidationError, RuntimeError, ValueError):
        said = _Input()
    return Ticket(
        token=found.task_token,
        workflow_id=found.workflow_execution.workflow_id,
        run_id=found.workflow_execution.run_id,
        id=found.activity_id,
        attempt=found.attempt,
        urgency=found.priority.priority_key,
        offered_at=found.scheduled_time.ToMilliseconds(),
        refused=said.refused,
    )


async def beat(client: Client, token: bytes) -> bool:
    """Whether it is still held. Raises RPCError."""
    request = RecordActivityTaskHeartbeatRequest(namespace=client.namespace, task_token=token)
    answer = await client.workflow_service.record_activity_task_heartbeat(request, retry=True, timeout=_CALL)
    return not answer.cancel_requested


async def complete(client: Client, token: bytes, seen: Mapping[str, JsonValue]) -> None:
    """The order is seen to; `seen` is what the workflow reads as `Seen`. Raises RPCError."""
    request = RespondActivityTaskCompletedRequest(
        namespace=client.namespace,
        task_token=token,
        result=Payloads(payloads=await client.data_converter.encode([seen])),
    )
    await client.workflow_service.respond_activity_task_completed(request, retry=True, timeout=_CALL)


async def give_back(client: Client, token: bytes) -> None:
    """Another may have it, in a moment. Raises RPCError."""
    why = ApplicationFailureInfo(type=names.UNCLAIMED)
    why.next_retry_delay.FromMilliseconds(round(names.GIVEN_BACK_FOR * 1000))
    await _fail(client, token, why)


async def leave(client: Client, token: bytes) -> None:
    """Another may take over what is held. Raises RPCError."""
    await _fail(client, token, ApplicationFailureInfo(type=names.LEFT, non_retryable=True))


async def _fail(client: Client, token: bytes, why: ApplicationFailureInfo) -> None:
    request = RespondActivityTaskFailedRequest(
        namespace=client.namespace,
        task_token=token,
        failure=Failure(message=why.type, source="perstack", application_failure_info=why),
    )
    await client.workflow_service.respond_activity_task_failed(request, retry=True, timeout=_CALL)
