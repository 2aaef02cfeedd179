"""Activities through which orders reach a worker, called directly instead of through the SDK's worker.

The SDK's worker cannot be told to take one activity and then none, nor which of several to take, so a session polls for
itself. The second half keeps the list of workers with the server's worker heartbeats.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import timedelta

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import TaskQueueKind, WorkerStatus
from temporalio.api.failure.v1 import ApplicationFailureInfo, Failure
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.worker.v1 import WorkerHeartbeat
from temporalio.api.workflowservice.v1 import (
    ListWorkersRequest,
    PollActivityTaskQueueRequest,
    RecordActivityTaskHeartbeatRequest,
    RecordWorkerHeartbeatRequest,
    RespondActivityTaskCompletedRequest,
    RespondActivityTaskFailedRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perstack.dataclass import dataclass
from perstack.ports.dispatcher import SILENT_AFTER, WorkerInfo
from perstack.support.work_items import without_unstorable
from perstack_temporal import names

_POLL_TIMEOUT_S = 30
_CALL_TIMEOUT = timedelta(seconds=5)  # timeout of one attempt of a call


class _Input(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    refused: tuple[str, ...] = ()


@dataclass
class PolledActivity:
    """Activity that was polled; its receiver may claim the order, and the first claim gets it."""

    token: bytes
    workflow_id: str
    run_id: str
    id: str
    attempt: int
    urgency: int
    offered_at: int  # milliseconds since 1970 by the server's clock
    refused: tuple[str, ...]
    came_at: float = field(default_factory=time.monotonic)
    is_unsure: bool = False  # True if a claim was sent and its answer did not arrive

    @property
    def claim_id(self) -> str:
        """Id of the claim that this activity may become."""
        return f"{self.run_id}.{self.id}.{self.attempt}"


async def poll_activity(client: Client, queue: str, worker: str) -> PolledActivity | None:
    """Poll a queue for up to half a minute and return the activity; None if none came. Raises RPCError."""
    request = PollActivityTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=queue, kind=TaskQueueKind.TASK_QUEUE_KIND_NORMAL),
        identity=worker,
    )
    try:
        task = await client.workflow_service.poll_activity_task_queue(
            request, timeout=timedelta(seconds=_POLL_TIMEOUT_S)
        )
    except RPCError as error:
        if error.status == RPCStatusCode.DEADLINE_EXCEEDED:
            return None
        raise
    if not task.task_token:
        return None
    try:
        values = await client.data_converter.decode(task.input.payloads)
        task_input = _Input.model_validate(values[0] if values else {})
    except (ValidationError, RuntimeError, ValueError):
        task_input = _Input()
    return PolledActivity(
        token=task.task_token,
        workflow_id=task.workflow_execution.workflow_id,
        run_id=task.workflow_execution.run_id,
        id=task.activity_id,
        attempt=task.attempt,
        urgency=task.priority.priority_key,
        offered_at=task.scheduled_time.ToMilliseconds(),
        refused=task_input.refused,
    )


async def beat(client: Client, token: bytes) -> bool:
    """Send a heartbeat. Return False if the activity is no longer held. Raises RPCError."""
    request = RecordActivityTaskHeartbeatRequest(namespace=client.namespace, task_token=token)
    answer = await client.workflow_service.record_activity_task_heartbeat(request, retry=True, timeout=_CALL_TIMEOUT)
    return not answer.cancel_requested


async def complete(client: Client, token: bytes, result: Mapping[str, JsonValue]) -> None:
    """Complete an activity; the workflow reads `result` as `Completion`. Raises RPCError."""
    request = RespondActivityTaskCompletedRequest(
        namespace=client.namespace,
        task_token=token,
        result=Payloads(payloads=await client.data_converter.encode([result])),
    )
    await client.workflow_service.respond_activity_task_completed(request, retry=True, timeout=_CALL_TIMEOUT)


async def give_back(client: Client, token: bytes) -> None:
    """Return an activity unclaimed; it is offered again after a pause. Raises RPCError."""
    failure = ApplicationFailureInfo(type=names.UNCLAIMED)
    failure.next_retry_delay.FromMilliseconds(round(names.RETURN_DELAY_S * 1000))
    await _fail(client, token, failure)


async def leave(client: Client, token: bytes) -> None:
    """Give up a claimed order, which another worker may then take over. Raises RPCError."""
    await _fail(client, token, ApplicationFailureInfo(type=names.LEFT, non_retryable=True))


async def _fail(client: Client, token: bytes, failure: ApplicationFailureInfo) -> None:
    request = RespondActivityTaskFailedRequest(
        namespace=client.namespace,
        task_token=token,
        failure=Failure(message=failure.type, source="perstack", application_failure_info=failure),
    )
    await client.workflow_service.respond_activity_task_failed(request, retry=True, timeout=_CALL_TIMEOUT)


# List of workers, from the worker heartbeats that the server keeps in memory. For display only: no claim depends on it.

_NAME = "perstack"
_PAGE_SIZE = 200
_MAX_PAGES = 50
_MAX_JOBS = 200  # maximum number of Jobs shown per worker
_UNSUPPORTED_STATUS = (RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.PERMISSION_DENIED)
"""Status of a server that is too old for worker heartbeats, or has them disabled."""


class _Identity(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    labels: dict[str, str] = Field(default_factory=dict)
    concurrency: int = 1
    jobs: tuple[str, ...] = ()


class Presence:
    """Published heartbeat of one worker."""

    def __init__(self, key: str, queue: str, name: str, labels: Mapping[str, str], concurrency: int) -> None:
        self._key = key
        self._queue = queue
        self._identity = _Identity(
            name=without_unstorable(name),
            labels={without_unstorable(label): without_unstorable(value) for label, value in labels.items()},
            concurrency=concurrency,
        )
        self._since = time.time()

    async def report(self, client: Client, jobs: Sequence[str], *, leaves: bool = False) -> None:
        """Publish the Jobs that the worker holds now, or that it leaves. Raises RPCError."""
        status = WorkerStatus.WORKER_STATUS_SHUTDOWN if leaves else WorkerStatus.WORKER_STATUS_RUNNING
        identity = self._identity.model_copy(update={"jobs": tuple(jobs[:_MAX_JOBS])})
        beat = WorkerHeartbeat(
            worker_instance_key=self._key,
            worker_identity=identity.model_dump_json(),
            task_queue=self._queue,
            sdk_name=_NAME,
            status=status,
        )
        beat.start_time.FromMilliseconds(round(self._since * 1000))
        beat.heartbeat_time.FromMilliseconds(round(time.time() * 1000))
        request = RecordWorkerHeartbeatRequest(namespace=client.namespace, identity=self._key, worker_heartbeat=[beat])
        try:
            await client.workflow_service.record_worker_heartbeat(request, retry=True, timeout=_CALL_TIMEOUT)
        except RPCError as error:
            if error.status not in _UNSUPPORTED_STATUS:
                raise


async def list_workers(client: Client, queue: str) -> list[WorkerInfo]:
    """Return the workers with a recent heartbeat, by name; none if the server keeps no heartbeats. Raises RPCError."""
    workers: list[WorkerInfo] = []
    request = ListWorkersRequest(
        namespace=client.namespace, page_size=_PAGE_SIZE, query=f"TaskQueue={json.dumps(queue)}"
    )
    for _ in range(_MAX_PAGES):
        try:
            page = await client.workflow_service.list_workers(request, retry=True, timeout=_CALL_TIMEOUT)
        except RPCError as error:
            if error.status in _UNSUPPORTED_STATUS:
                return []
            raise
        for info in page.workers_info:
            if (worker := _info_of(info.worker_heartbeat)) is not None:
                workers.append(worker)
        if not page.next_page_token:
            break
        request.next_page_token = page.next_page_token
    return sorted(workers, key=lambda info: info.name)


def _info_of(beat: WorkerHeartbeat) -> WorkerInfo | None:
    heartbeat_at = beat.heartbeat_time.ToMilliseconds()
    if beat.sdk_name != _NAME or beat.status != WorkerStatus.WORKER_STATUS_RUNNING:
        return None
    if time.time() * 1000 - heartbeat_at > SILENT_AFTER * 1000:
        return None
    try:
        identity = _Identity.model_validate_json(beat.worker_identity)
    except ValidationError:
        return None
    started_at, concurrency = beat.start_time.ToMilliseconds(), identity.concurrency
    return WorkerInfo(identity.name, started_at, heartbeat_at, identity.labels, concurrency, identity.jobs)
