"""Connection of one process to the server. Each call takes a bounded time and raises DispatcherError."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import cache
from typing import TypeVar

from temporalio.client import (
    Client,
    RPCTimeoutOrCancelledError,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.envconfig import ClientConfig
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.service import RetryConfig, RPCError, RPCStatusCode
from temporalio.worker import Worker

from perstack.core.base.text import one_line
from perstack.errors import DispatcherError
from perstack_temporal.job_workflow import JobWorkflow
from perstack_temporal.names import TemporalAddress

T = TypeVar("T")

CALL_TIMEOUT_S = 10.0  # maximum seconds for one call with all its attempts
_RETRY_INTERVAL_S = 0.1  # seconds between attempts while the server is not ready
_STICKY_TIMEOUT = timedelta(seconds=1)
"""Time that a workflow waits for the worker that has it cached; short, so that a dead one does not delay a takeover."""
_MAX_CACHED_WORKFLOWS = 200  # workflows that a process keeps in memory and need not replay
_SHUTDOWN_TIMEOUT_S = 5.0
_MAX_MESSAGE_CHARS = 300  # maximum characters of a server's message in ours
_TRANSIENT = (RPCStatusCode.FAILED_PRECONDITION, RPCStatusCode.UNAVAILABLE, RPCStatusCode.UNKNOWN)
"""Status of a server that is not ready, or of a broken connection. All our calls can be repeated safely."""


class TemporalConnection:
    """Connection to one namespace, with a worker for the workflows, which any process may run."""

    def __init__(self, address: TemporalAddress) -> None:
        self.address = address
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._worker: tuple[Worker, asyncio.Task[None]] | None = None

    async def use(self, work: Callable[[Client], Awaitable[T]], *, works: bool = False) -> T:
        """Return the result of a call, repeated while the server is not ready. Raises DispatcherError.

        With `works` the answer comes from a workflow, so this process runs a workflow worker from then on. Raises
        LookupError if the workflow or the activity does not exist any more.
        """
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                while True:
                    client = await self._ensure_client()
                    if works:
                        self._ensure_worker(client)
                    try:
                        return await work(client)
                    except RPCError as error:
                        if error.status not in _TRANSIENT:
                            raise
                    await asyncio.sleep(_RETRY_INTERVAL_S)
        except RPCError as error:
            if is_gone(error):
                raise LookupError(error.message) from None
            raise self.failure(error) from None
        except WorkflowUpdateFailedError as error:
            raise LookupError(str(error.cause)) from None  # the workflow ended before it could answer
        except (TimeoutError, RPCTimeoutOrCancelledError, WorkflowQueryFailedError, _Unreachable) as error:
            raise self.failure(error) from None

    def failure(self, error: BaseException) -> DispatcherError:
        """Return the exception for a failure, with a message of one line."""
        text = one_line(str(error))[:_MAX_MESSAGE_CHARS] or f"no answer within {CALL_TIMEOUT_S:g} s"
        if isinstance(error, RPCError):
            text = f"{error.status.name.lower().replace('_', ' ')}: {text}"
        return DispatcherError(
            f"{self.address.display_address}: {text}: check that the server runs, and that its namespace exists"
        )

    async def close(self) -> None:
        """Stop the workflow worker. The connection closes with the client."""
        if self._worker is not None:
            worker, task = self._worker
            self._worker = None
            ending = asyncio.ensure_future(worker.shutdown())
            await asyncio.wait({ending, task}, timeout=_SHUTDOWN_TIMEOUT_S)
            for pending in (ending, task):
                pending.cancel()
            await asyncio.gather(ending, task, return_exceptions=True)
        self._client = None

    async def _ensure_client(self) -> Client:
        async with self._connecting:
            if self._client is None:
                self._client = await self._connect()
            return self._client

    async def _connect(self) -> Client:
        try:
            config = ClientConfig.load_client_connect_config(disable_file=True)
        except (ValueError, OSError) as error:
            raise DispatcherError(
                f"{self.address.display_address}: TEMPORAL_… in the environment: {one_line(str(error))}"
            ) from None
        config["target_host"] = self.address.target
        config["namespace"] = self.address.namespace
        retrying = RetryConfig(
            initial_interval_millis=100,
            max_interval_millis=1000,
            max_elapsed_time_millis=round(CALL_TIMEOUT_S * 900),
            max_retries=100,
        )
        try:
            return await Client.connect(**config, retry_config=retrying, runtime=_runtime())
        except RuntimeError as error:
            raise _Unreachable(str(error)) from None

    def _ensure_worker(self, client: Client) -> None:
        if self._worker is not None and not self._worker[1].done():
            return
        if self._worker is not None and not self._worker[1].cancelled():
            self._worker[1].exception()  # retrieve the error, to avoid a warning; calls that need the worker report it
        worker = Worker(
            client,
            task_queue=self.address.queue,
            workflows=[JobWorkflow],
            max_cached_workflows=_MAX_CACHED_WORKFLOWS,
            sticky_queue_schedule_to_start_timeout=_STICKY_TIMEOUT,
        )
        self._worker = worker, asyncio.create_task(worker.run())


class _Unreachable(Exception):
    """Error of a connection that could not be made."""


def is_gone(error: RPCError) -> bool:
    """Return whether a workflow or an activity does not exist any more, as opposed to the namespace."""
    return error.status == RPCStatusCode.NOT_FOUND and "amespace" not in error.message


@cache
def _runtime() -> Runtime:
    """Return the process's SDK runtime, without its logs: errors are raised where a call needs the server."""
    logging.getLogger("temporalio").addHandler(logging.NullHandler())
    return Runtime(telemetry=TelemetryConfig(logging=None), worker_heartbeat_interval=None)
