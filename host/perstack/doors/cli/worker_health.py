"""`/healthz` and `/metrics` of a worker; both only read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from perstack.doors.shared.http_connections import ListenAddress, StrictProtocol, http_server, listen
from perstack.errors import DispatcherError, UsageError
from perstack.ports.dispatcher import Dispatcher, Load
from perstack.system.clock import Clock
from perstack.workers.worker import Worker

_LOAD_TIMEOUT_S = 5.0  # seconds for the dispatcher to report its load
_OWN_NAMES = ("localhost", "127.0.0.1")
_MAX_HEAD_BYTES = 16 << 10
_MAX_CONNECTIONS = 64


def make_app(worker: Worker, dispatcher: Dispatcher, clock: Clock, address: ListenAddress) -> Starlette:
    """Return the application for that address. Raises UsageError if prometheus-client is not installed."""
    try:
        from perstack.doors.cli.worker_metrics import CONTENT_TYPE, metrics_text
    except ModuleNotFoundError as error:
        raise UsageError("a worker's metrics need prometheus-client: install `perstack[workers]`") from error

    async def health(_: Request) -> Response:
        problem = worker.health.problem
        facts = {"status": "ok"} if problem is None else {"status": "unavailable", "reason": problem}
        return JSONResponse({**facts, "worker": worker.name}, 200 if problem is None else 503)

    async def metrics(_: Request) -> Response:
        load = await _load(dispatcher)
        return Response(metrics_text(worker.counters, load, clock.now()), media_type=CONTENT_TYPE)

    # a web page on this machine could reach it by another host name (DNS rebinding)
    names = list(_OWN_NAMES) if address.is_loopback and ":" not in address.host else ["*"]
    guard = Middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False)
    return Starlette(routes=[Route("/healthz", health), Route("/metrics", metrics)], middleware=[guard])


async def _load(dispatcher: Dispatcher) -> Load | None:
    try:
        async with asyncio.timeout(_LOAD_TIMEOUT_S):
            return await dispatcher.load()
    except (DispatcherError, TimeoutError):
        return None


@asynccontextmanager
async def served(app: Starlette, address: ListenAddress) -> AsyncGenerator[str]:
    """Serve the application within the block and yield its URL. Raises UsageError if it cannot listen."""
    with listen(address) as listener:
        server = http_server(
            app,
            StrictProtocol,
            max_head_bytes=_MAX_HEAD_BYTES,
            shutdown_s=1,
            max_connections=_MAX_CONNECTIONS,
        )
        serving = asyncio.create_task(server.serve([listener]))
        try:
            yield address.url("", port=listener.getsockname()[1])
        finally:
            server.should_exit = True
            await serving
