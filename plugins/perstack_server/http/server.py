"""The server over streamable HTTP, for several clients at once."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

from perstack.config.project_place import find_config
from perstack.doors.shared.http_connections import (
    ConnectionLimits,
    http_server,
    listen,
    place_of,
    protocol,
    stopped_by_signals,
)
from perstack.errors import UsageError
from perstack.system.user import notice
from perstack_server.http.access import MAX_REQUEST_BYTES, PATH, AccessMiddleware, AccessRules
from perstack_server.http.routes import job_routes, routes
from perstack_server.http.streams import RETRY_MS, MemoryEventStore, ResumableStreams
from perstack_server.mcp.server import build_server
from perstack_server.mcp.workspaces import OpenRoot, ServeOptions, Workspace, serve_projects

_MAX_HEAD_BYTES = 64 << 10  # maximum bytes of a request's line and headers
_MAX_IDLE_S = 30 * 60.0  # seconds without a message after which a session is dropped
_SHUTDOWN_TIME_S = 5  # maximum seconds for open connections to end after the Jobs were stopped


async def serve_http(offer: ServeOptions, access_rules: AccessRules, max_idle_s: float = _MAX_IDLE_S) -> None:
    """Serve until a stop signal; end sessions idle for `max_idle_s`. Raises UsageError for an unusable address."""
    access_rules.check()
    async with serve_projects(replace(offer, open_root=_refuse_foreign_folders(offer.open_root))) as workspaces:
        with listen(access_rules.address) as listener:
            app = build_server(workspaces).streamable_http_app(
                custom_starlette_routes=[
                    *routes(workspaces.home.host.tasks, hides=workspaces.home.definitions.hides),
                    *job_routes(workspaces.home),
                ],
                streamable_http_path=PATH,
                transport_security=access_rules.security(),
                max_request_body_size=MAX_REQUEST_BYTES,
                session_idle_timeout=max_idle_s,
                event_store=MemoryEventStore(),
                retry_interval=RETRY_MS,
            )
            streams = ResumableStreams(app)
            server = http_server(
                AccessMiddleware(streams, access_rules),
                # based on h11, since uvicorn's other parser keeps blanks after a header's value
                protocol(ConnectionLimits()),
                max_head_bytes=_MAX_HEAD_BYTES,
                shutdown_s=_SHUTDOWN_TIME_S,
            )

            async def finish() -> None:
                await workspaces.stop_jobs()
                streams.end_listening()

            with stopped_by_signals(server, finish):
                notice(f"serving MCP at {place_of(access_rules.address, listener, PATH)}")
                await server.serve([listener])


def _refuse_foreign_folders(open_root: OpenRoot | None) -> OpenRoot | None:
    """Refuse folders that others own or can write to: a client may name any, and a definition runs programs."""
    if open_root is None:
        return None

    def open_workspace(folder: Path) -> Workspace:
        config = find_config(folder)
        for path in (folder, *((config, config.parent) if config is not None else ())):
            status = path.stat()
            if status.st_uid != os.geteuid() or status.st_mode & stat.S_IWOTH:
                raise UsageError(f"{path} belongs to another user, or all can write to it: it is not served over HTTP")
        return open_root(folder)

    return open_workspace
