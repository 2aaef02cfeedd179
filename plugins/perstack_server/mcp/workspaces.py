"""The served folders: one for all clients, or the folder that each client has open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import ListRootsRequest, ListRootsResult
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from perstack.config.project_place import find_config
from perstack.dataclass import dataclass
from perstack.doors.served_project import Definitions
from perstack.doors.shared.job_tasks import CallKey, JobTasks
from perstack.errors import PerstackError, UsageError
from perstack.host import Host
from perstack.system.concurrency import shield_until_done
from perstack.system.user import notice
from perstack.toml_reader.definition_with_includes import LoadedProject
from perstack_server.mcp.elicitation import Context
from perstack_server.mcp.notifications import (
    ClientProject,
    Clients,
    JobSubscriptions,
    client_id_of,
    on_disconnect,
    send_lists_changed,
)
from perstack_server.mcp.tools import JOB_TOOLS, TASK_TOOLS

# The folders that a client has open. Source: MCP 2025-11-25, roots. The stateless era (2026-07-28) deprecates them:
# there a call may still ask for them, but `tools/list` may not, so they are not used there.

_ROOTS_TIMEOUT_S = 10.0  # maximum seconds for the client's answer, which needs no person


def _has_roots(context: Context) -> bool:
    capabilities = context.session.client_capabilities
    may_be_asked = context.protocol_version not in MODERN_PROTOCOL_VERSIONS
    return may_be_asked and capabilities is not None and capabilities.roots is not None


async def _request_roots(context: Context) -> tuple[Path, ...] | None:
    """Return the client's folders on this machine, in its order; None if it does not answer."""
    try:
        result = await context.session.send_request(
            ListRootsRequest(),
            ListRootsResult,
            request_read_timeout_seconds=_ROOTS_TIMEOUT_S,
            # ask on the stream of this request: over HTTP there may be no other
            metadata=ServerMessageMetadata(related_request_id=context.request_id),
        )
    except (MCPError, ValidationError) as error:
        notice(f"the client does not report which folders it has open: {error}")
        return None
    return tuple(_local_folders(str(root.uri) for root in result.roots))


def _local_folders(uris: Iterable[str]) -> Iterable[Path]:
    for uri in uris:
        parts = urlsplit(uri)
        folder = Path(unquote(parts.path))
        if parts.scheme == "file" and parts.netloc in ("", "localhost") and folder.is_dir():
            yield folder.resolve()


# The state of one workspace: the Host, the Jobs' tasks, and the check for changes of perstack.toml.


@asynccontextmanager
async def serve_project(
    host: Host, loaded: LoadedProject, experts: Sequence[str] = (), *, tasks: bool = False
) -> AsyncGenerator[ClientProject]:
    """Yield the state of one workspace. At the end its Jobs are interrupted and recorded; then the Host is closed."""
    async with host:
        definitions = Definitions(host, loaded, only=experts, taken=(*JOB_TOOLS, *TASK_TOOLS))
        clients = Clients()
        job_subscriptions = JobSubscriptions(host, clients.resource_updated, definitions.offers)
        job_tasks, on_change = JobTasks(host), clients.definitions_changed
        client_project = ClientProject(host, definitions, job_tasks, on_change, clients, job_subscriptions, tasks)
        watch_task = asyncio.create_task(definitions.watch(on_change))
        try:
            yield client_project
        finally:
            watch_task.cancel()
            await client_project.job_subscriptions.close()
            # A client may close stdin and send a signal a moment later, which must not stop the recording.
            await shield_until_done(client_project.job_tasks.close())


Workspace: TypeAlias = tuple[Host, LoadedProject]

OpenRoot: TypeAlias = Callable[[Path], Workspace]  # opens a folder; raises PerstackError if it may not be served


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The folders and Experts to serve."""

    home: Workspace | PerstackError  # workspace of the named or current folder, or the error why it cannot be served
    open_root: OpenRoot | None = None  # opens a client's folder; None if clients are not asked for their folders
    experts: Sequence[str] = ()
    tasks: bool = False


@dataclass(slots=True)
class _ClientRoots:
    """The workspace of a client that has folders open."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    client_project: ClientProject | None = None
    is_current: bool = False  # True if the client's last answer about its folders is still valid


class Workspaces:
    """The served workspaces. Each has its own `ClientProject`, so clients of one see nothing of another."""

    def __init__(self, offer: ServeOptions, stack: AsyncExitStack) -> None:
        """Open workspaces of `offer` on `stack`, which closes them."""
        self._offer = offer
        self._stack = stack
        self._projects: dict[Path, ClientProject] = {}
        self._home: ClientProject | PerstackError
        self._clients: dict[str, _ClientRoots] = {}
        self._open_lock = asyncio.Lock()

    async def open_home(self) -> None:
        """Open the home workspace. Must be called before any other method."""
        home = self._offer.home
        self._home = home if isinstance(home, PerstackError) else await self._serve(home)

    @property
    def home(self) -> ClientProject:
        """The project for clients without roots. Raises PerstackError if it cannot be served."""
        if isinstance(self._home, PerstackError):
            raise self._home
        return self._home

    async def of(self, context: Context) -> ClientProject:
        """Return the project for a client. Raises PerstackError if no folder can be served to it."""
        if self._offer.open_root is None or not _has_roots(context):
            return self.home
        client_roots = self._client_roots(context)
        async with client_roots.lock:
            if client_roots.client_project is None or not client_roots.is_current:
                await self._update_roots(client_roots, context)
            return client_roots.client_project or self.home

    def register(self, context: Context) -> None:
        """Register a client after its handshake. Its folders are asked for at its first request."""
        if (self._offer.open_root is None or not _has_roots(context)) and isinstance(self._home, ClientProject):
            self._home.clients.add(context)

    async def roots_changed(self, context: Context) -> None:
        """Ask the client for its folders again at its next request, and notify it of changed lists."""
        if self._offer.open_root is None or not _has_roots(context):
            return
        self._client_roots(context).is_current = False
        await send_lists_changed(context.session)

    def cancel_call(self, key: CallKey) -> None:
        """Interrupt the Jobs that a call started."""
        for client_project in self._projects.values():
            client_project.job_tasks.cancel_call(key)

    async def stop_jobs(self) -> None:
        """Interrupt all Jobs and wait until that is recorded."""
        await asyncio.gather(*(client_project.job_tasks.close() for client_project in self._projects.values()))

    def _client_roots(self, context: Context) -> _ClientRoots:
        key = client_id_of(context)
        if key not in self._clients:
            on_disconnect(context, partial(self._clients.pop, key, None))
        return self._clients.setdefault(key, _ClientRoots())

    async def _update_roots(self, client_roots: _ClientRoots, context: Context) -> None:
        """Ask a client for its folders, and serve their project to it. Keep the previous one without an answer."""
        client_roots.is_current = True
        previous_project, is_updated = client_roots.client_project, False
        try:
            roots = await _request_roots(context)
            if roots is not None or previous_project is None:
                client_roots.client_project = None
                client_roots.client_project = await self._open(roots or ())
                client_roots.client_project.clients.add(context)
            is_updated = True
        finally:
            client_roots.is_current &= is_updated
            if previous_project is not None and previous_project is not client_roots.client_project:
                previous_project.clients.remove(client_id_of(context))

    async def _open(self, roots: Sequence[Path]) -> ClientProject:
        """Return the project of the first folder with a perstack.toml in it or above it; otherwise home."""
        folder = next((root for root in roots if find_config(root) is not None), None)
        if folder is None or self._offer.open_root is None:
            if roots and isinstance(self._home, PerstackError):
                names = ", ".join(map(str, roots))
                raise UsageError(f"there is no perstack.toml in your open folders ({names}) or above; {self._home}")
            return self.home
        async with self._open_lock:
            return self._projects.get(folder) or await self._serve(self._offer.open_root(folder), folder)

    async def _serve(self, workspace: Workspace, folder: Path | None = None) -> ClientProject:
        """Open a workspace. `folder` is the client's folder, which may differ from the workspace of its Experts."""
        host, loaded = workspace
        client_project = await self._stack.enter_async_context(
            serve_project(host, loaded, self._offer.experts, tasks=self._offer.tasks)
        )
        self._projects[folder or host.workspace] = client_project
        return client_project


@asynccontextmanager
async def serve_projects(offer: ServeOptions) -> AsyncGenerator[Workspaces]:
    """Yield the workspaces for a server; at the end all Jobs are interrupted and recorded."""
    async with AsyncExitStack() as stack:
        workspaces = Workspaces(offer, stack)
        await workspaces.open_home()
        try:
            yield workspaces
        finally:
            await shield_until_done(workspaces.stop_jobs())
