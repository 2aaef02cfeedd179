"""Who works, by the heartbeats that a server keeps of workers: in memory, for people. No claim hangs on it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from temporalio.api.enums.v1 import WorkerStatus
from temporalio.api.worker.v1 import WorkerHeartbeat
from temporalio.api.workflowservice.v1 import ListWorkersRequest, RecordWorkerHeartbeatRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perstack.ports.dispatcher import SILENT_AFTER, WorkerInfo
from perstack.ports.stored_orders import storable

_NAME = "perstack"
_CALL = timedelta(seconds=5)
_PAGE = 200
_PAGES = 50
_JOBS = 200
"""Of one worker, that are shown."""
_NOT_KEPT = (RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.PERMISSION_DENIED)
"""What an older server says, or one where they are turned off."""


class _Identity(BaseModel):
    """What a seat says of itself."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    labels: dict[str, str] = Field(default_factory=dict)
    concurrency: int = 1
    jobs: tuple[str, ...] = ()


class Presence:
    """One seat's."""

    def __init__(self, key: str, queue: str, name: str, labels: Mapping[str, str], concurrency: int) -> None:
        self._key = key
        self._queue = queue
        self._identity = _Identity(
            name=storable(name),
            labels={storable(label): storable(value) for label, value in labels.items()},
            concurrency=concurrency,
        )
        self._since = time.time()

    async def say(self, client: Client, jobs: Sequence[str], *, leaves: bool = False) -> None:
        """What it holds now. Raises RPCError."""
        status = WorkerStatus.WORKER_STATUS_SHUTDOWN if leaves else WorkerStatus.WORKER_STATUS_RUNNING
        identity = self._identity.model_copy(update={"jobs": tuple(jobs[:_JOBS])})
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
            await client.workflow_service.record_worker_heartbeat(request, retry=True, timeout=_CALL)
        except RPCError as error:
            if error.status not in _NOT_KEPT:
                raise


async def present(client: Client, queue: str) -> list[WorkerInfo]:
    """Those that are not silent, by name; none if the server keeps no heartbeats. Raises RPCError."""
    found: list[WorkerInfo] = []
    request = ListWorkersRequest(namespace=client.namespace, page_size=_PAGE, query=f"TaskQueue={json.dumps(queue)}")
    for _ in range(_PAGES):
        try:
            page = await client.workflow_service.list_workers(request, retry=True, timeout=_CALL)
        except RPCError as error:
            if error.status in _NOT_KEPT:
                return []
            raise
        for info in page.workers_info:
            if (one := _info_of(info.worker_heartbeat)) is not None:
                found.append(one)
        if not page.next_page_token:
            break
        request.next_page_token = page.next_page_token
    return sorted(found, key=lambda info: info.name)


def _info_of(beat: WorkerHeartbeat) -> WorkerInfo | None:
    seen = beat.heartbeat_time.ToMilliseconds()
    if beat.sdk_name != _NAME or beat.status != WorkerStatus.WORKER_STATUS_RUNNING:
        return None
    if time.time() * 1000 - seen > SILENT_AFTER * 1000:
        return None
    try:
        said = _Identity.model_validate_json(beat.worker_identity)
    except ValidationError:
        return None
    return WorkerInfo(said.name, beat.start_time.ToMilliseconds(), seen, said.labels, said.concurrency, said.jobs)
