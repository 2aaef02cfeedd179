"""The server over streamable HTTP, for several clients at once."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import uvicorn

from perstack.config.places import find_config
from perstack.core.by import By
from perstack.core.ids import place_of as place_of_event
from perstack.core.job import JobSummary
from perstack.engine.notices import notice
from perstack.errors import UsageError
from perstack.frontends.mcp_server.connections import Census, protocol
from perstack.frontends.mcp_server.door import LARGEST_REQUEST, PATH, Door, Guard
from perstack.frontends.mcp_server.server import build_server
from perstack.frontends.mcp_server.state import ServerState
from perstack.frontends.mcp_server.workspaces import Offer, OpenRoot, Workspace, Workspaces, serving_all
from perstack.frontends.shared.listening import listening, place_of
from perstack.frontends.shared.stopping import on_stop_signals
from perstack.frontends.tasks.approvals import approval_routes
from perstack.frontends.tasks.http import routes
from perstack.frontends.tasks.jobs import job_routes

_LONGEST_HEAD = 64 << 10
"""Bytes of a request's line and headers."""
_LONGEST_IDLE = 30 * 60.0
"""Seconds."""
_PATIENCE = 5
"""Seconds for open connections to end once the Jobs have been stopped."""


async def serve_http(offer: Offer, guard: Guard, idle: float = _LONGEST_IDLE) -> None:
    """Serve until a signal comes. The Jobs that are driven then are recorded as interrupted.

    A session from which nothing has come for `idle` seconds, and which waits for nothing, is given up.

    Raises UsageError if the address cannot be listened on.
    """
    guard.check()
    async with serving_all(replace(offer, open_root=_only_own(offer.open_root))) as workspaces:
        with listening(guard.address) as listener:
            app = build_server(workspaces).streamable_http_app(
                custom_starlette_routes=[
                    *routes(workspaces.home.host.memory),
                    *approval_routes(workspaces.home.host, partial(_decide, workspaces.home)),
                    *job_routes(workspaces.home.host, partial(_check_offered, workspaces.home)),
                ],
                streamable_http_path=PATH,
                transport_security=guard.security(),
                max_request_body_size=LARGEST_REQUEST,
                session_idle_timeout=idle,
            )
            server = _Server(
                uvicorn.Config(
                    Door(app, guard),
                    # on h11: the other parser leaves blanks after a header's value, which mean nothing
                    http=protocol(Census()),
                    ws="none",
                    h11_max_incomplete_event_size=_LONGEST_HEAD,
                    log_level="error",  # what strangers send is no news
                    access_log=False,
                    timeout_graceful_shutdown=_PATIENCE,
                )
            )
            with _stopped_by_signals(workspaces, server):
                notice(f"serving MCP at {place_of(guard.address, listener, PATH)}")
                await server.serve([listener])


async def _decide(state: ServerState, question: str, answer: str, by: By, wait: bool) -> JobSummary:
    """Answer a question and drive its Job, which outlives the request. Raises PerstackError."""
    state.definitions.check_offered((await state.host.job(place_of_event(question)[0])).expert_key)
    running = state.jobs.start(partial(state.host.answer, answer, question_id=question, by=by), None)
    return await running.outcome() if wait else await state.host.job(await running.begun())


async def _check_offered(state: ServerState, expert_key: str) -> None:
    """By the definition as it is now. Raises UsageError."""
    await state.refresh()
    state.definitions.check_offered(expert_key)


def _only_own(open_root: OpenRoot | None) -> OpenRoot | None:
    """Not what another user of this machine has laid out: whoever reaches a port names the folder, and a definition
    is a program.
    """
    if open_root is None:
        return None

    def opened(folder: Path) -> Workspace:
        config = find_config(folder)
        for path in (folder, *((config, config.parent) if config is not None else ())):
            found = path.stat()
            if found.st_uid != os.geteuid() or found.st_mode & stat.S_IWOTH:
                raise UsageError(f"{path} is another user's, or everyone can write to it: over HTTP it is not served")
        return open_root(folder)

    return opened


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Signals are ours: the Jobs are stopped first, so that the calls that wait for them can end."""
        yield


@contextmanager
def _stopped_by_signals(workspaces: Workspaces, server: uvicorn.Server) -> Generator[None]:
    stopping: list[asyncio.Task[None]] = []

    async def stop() -> None:
        await workspaces.stop_jobs()
        server.should_exit = True

    def first() -> None:
        stopping.append(asyncio.create_task(stop()))

    def again() -> None:
        server.force_exit = True

    with on_stop_signals(first, again):
        yield
