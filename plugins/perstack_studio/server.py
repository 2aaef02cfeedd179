"""Serve the studio until a stop signal."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from functools import partial

from perstack.audit.searched_texts import search_index_path
from perstack.dataclass import dataclass
from perstack.doors.cli.terminal import print_err
from perstack.doors.served_project import Definitions, ServedProject
from perstack.doors.shared.http_connections import (
    ConnectionLimits,
    ListenAddress,
    http_server,
    listen,
    protocol,
    stopped_by_signals,
)
from perstack.doors.shared.job_tasks import JobTasks
from perstack.host import Host
from perstack.system.concurrency import shield_until_done
from perstack.system.user import notice
from perstack.toml_reader.definition_with_includes import LoadedProject
from perstack_studio.access import ENTER, StudioAccess
from perstack_studio.app import build_app
from perstack_studio.job_states import JobStates
from perstack_studio.live import Feeds
from perstack_studio.question_count import OpenQuestionCount, count_questions
from perstack_studio.search_index import SearchIndex
from perstack_studio.studio import Studio, make_templates

_MAX_HEAD_BYTES = 64 << 10  # maximum bytes of a request's line and headers
_SHUTDOWN_TIME_S = 3  # maximum seconds for open responses to end
_CONNECT_TIMEOUT_S = 3.0  # maximum seconds for a program on this machine to accept a connection
_BUSY_REMEDY = "name another port, or, if it is this studio, print a link to it with --link"


@dataclass(frozen=True, slots=True)
class StudioOptions:
    """Address and mode of the studio."""

    address: ListenAddress
    is_read_only: bool = False
    public_name: str = ""  # host name of the proxy in front of it; empty without one
    tls: ssl.SSLContext | None = None  # None without TLS of its own


async def serve_studio(host: Host, loaded: LoadedProject, access: StudioAccess, serve_options: StudioOptions) -> None:
    """Serve until a stop signal, then interrupt the Jobs driven here. Raises UsageError for an unusable address."""
    async with host:
        definitions = Definitions(host, loaded)
        feeds = Feeds(host)
        served_project = ServedProject(host, definitions, JobTasks(host), _ignore_change)
        studio = Studio(
            served_project,
            access,
            make_templates(),
            feeds,
            JobStates(served_project),
            OpenQuestionCount(partial(count_questions, served_project)),
            SearchIndex(host.storage, search_index_path(host.storage.location, os.environ)),
            is_read_only=serve_options.is_read_only,
        )
        watch_task = asyncio.create_task(definitions.watch(_ignore_change))
        try:
            with listen(serve_options.address, _BUSY_REMEDY) as listener:
                server = http_server(
                    build_app(studio),
                    protocol(ConnectionLimits(replaces_oldest=True), serve_options.tls),
                    max_head_bytes=_MAX_HEAD_BYTES,
                    shutdown_s=_SHUTDOWN_TIME_S,
                )

                async def finish() -> None:
                    await served_project.job_tasks.close()
                    await feeds.close()

                with stopped_by_signals(server, finish):
                    port = listener.getsockname()[1]
                    notice("open in a browser, within ten minutes:")
                    print_err(new_link(serve_options, access, port))  # alone, so that it can be clicked and copied
                    await server.serve([listener])
        finally:
            watch_task.cancel()
            await feeds.close()
            await studio.open_questions.close()
            await studio.states.close()
            await shield_until_done(served_project.job_tasks.close())


async def _ignore_change() -> None:
    """Do nothing: each page reads the Experts when it is loaded."""


def is_listening(address: ListenAddress) -> bool:
    """Return whether a program accepts TCP connections at an address."""
    try:
        socket.create_connection((address.host, address.port), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def new_link(serve_options: StudioOptions, access: StudioAccess, port: int) -> str:
    path = f"{ENTER}?key={access.new_key()}"
    if serve_options.public_name:
        return f"https://{serve_options.public_name}{path}"
    if serve_options.tls is not None:
        return serve_options.address.url(path, access.names[0], port, scheme="https")
    return serve_options.address.url(path, port=port)
