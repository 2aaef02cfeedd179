"""The clients to notify when tools or the contents of a resource change, and the Jobs whose changes they follow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from typing import get_args
from urllib.parse import quote, unquote

import mcp_types as types
from mcp.server import subscriptions
from mcp.server.connection import Connection
from mcp.server.session import ServerSession
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request

from perstack.core.base.ids import By, job_of_run
from perstack.core.runs.events import StartRun, StoredEvent
from perstack.core.runs.events.generations import FinishStep
from perstack.dataclass import dataclass
from perstack.doors.served_project import ServedProject
from perstack.doors.shared.job_tasks import CallKey
from perstack.engine.log.run_log import checkpoint_at
from perstack.errors import NotFound, PerstackError
from perstack.host import Host
from perstack.system.user import this_user
from perstack_server.mcp.elicitation import Context

_SESSION_ID = "mcp-session-id"

_NOTIFY_TIMEOUT_S = 2.0  # maximum seconds for a client to accept a notification


def client_of(context: Context) -> str:
    """Return the id of a request's client: its session over HTTP; empty on a pipe, which has one client."""
    request: object = context.request
    return request.headers.get(_SESSION_ID, "") if isinstance(request, Request) else ""


def call_key(context: Context, request_id: object) -> CallKey:
    """Return the key of a request: its client and its id."""
    return (client_of(context), str(request_id))


class LogLevels:
    """The levels of log messages that clients want, set for a connection or, in the stateless era, with each call."""

    def __init__(self) -> None:
        """Begin without levels: a client that sets none gets no messages."""
        self._levels: dict[str, types.LoggingLevel] = {}

    def set(self, level: types.LoggingLevel, context: Context) -> None:
        """Set the level for a client until its connection ends."""
        client = client_of(context)
        if client not in self._levels:
            on_disconnect(context, lambda: self._levels.pop(client, None))
        self._levels[client] = level

    def includes(self, level: types.LoggingLevel, context: Context) -> bool:
        """Return whether a request's client wants messages of this level."""
        wanted: object = self._levels.get(client_of(context))
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            wanted = (context.meta or {}).get(types.LOG_LEVEL_META_KEY)
        return wanted in _LEVELS[: _LEVELS.index(level) + 1]


_LEVELS = get_args(types.LoggingLevel)  # the least severe first


def caller(context: Context) -> By:
    """Return the author of an answer that a request brings: this user on a pipe, unknown over HTTP."""
    params = context.session.client_params
    client = f"{params.client_info.name} {params.client_info.version}" if params is not None else ""
    is_remote = isinstance(context.request, Request)
    return By(door="mcp", client=client) if is_remote else this_user("mcp", client)


MAY_DECIDE = "perstack.may_decide"  # key in the scope of an HTTP request whose token has the right to decide


def may_decide(context: Context) -> bool:
    """Return whether the request was sent with a token that has the right to make a person's decisions."""
    request: object = context.request
    return isinstance(request, Request) and request.scope.get(MAY_DECIDE) is True


def on_disconnect(context: Context, callback: Callable[[], object]) -> None:
    """Call `callback` when a request's connection ends: over HTTP, its session, or after the SDK's idle time."""
    # The SDK wants handlers to use the connection's exit stack, but does not expose it yet.
    connection: object = getattr(context.session, "_connection", None)
    if isinstance(connection, Connection):
        connection.exit_stack.callback(callback)


class Clients:
    """Clients with a handshake, and the streams that stateless clients listen to."""

    def __init__(self) -> None:
        self._bus = subscriptions.InMemorySubscriptionBus()
        self.listening = subscriptions.ListenHandler(self._bus)
        self._sessions: dict[str, ServerSession] = {}
        self._subscribed: dict[str, dict[str, ServerSession]] = {}

    def add(self, context: Context) -> None:
        """Add a client after its handshake. It is removed when its connection ends."""
        client = client_of(context)
        if client not in self._sessions:
            on_disconnect(context, lambda: self.remove(client))
        self._sessions[client] = context.session

    def remove(self, client: str) -> None:
        """Remove a client and its subscriptions."""
        self._sessions.pop(client, None)
        for uri in tuple(self._subscribed):
            self._unsubscribe(uri, client)

    def subscribe(self, uri: str, context: Context) -> None:
        self.add(context)
        self._subscribed.setdefault(uri, {})[client_of(context)] = context.session

    def unsubscribe(self, uri: str, context: Context) -> None:
        self._unsubscribe(uri, client_of(context))

    def _unsubscribe(self, uri: str, client: str) -> None:
        subscribed = self._subscribed.get(uri, {})
        subscribed.pop(client, None)
        if not subscribed:
            self._subscribed.pop(uri, None)

    async def definitions_changed(self) -> None:
        """Send the three `list_changed` notifications to all clients. A client that has disconnected is ignored."""
        for event in (
            subscriptions.ToolsListChanged(),
            subscriptions.PromptsListChanged(),
            subscriptions.ResourcesListChanged(),
        ):
            await self._bus.publish(event)
        await _await_each(send_lists_changed(session) for session in self._sessions.values())

    async def resource_updated(self, uri: str) -> None:
        """Send `notifications/resources/updated` to the resource's subscribers."""
        await self._bus.publish(subscriptions.ResourceUpdated(uri=uri))
        await _await_each(session.send_resource_updated(uri) for session in self._subscribed.get(uri, {}).values())


async def send_lists_changed(session: ServerSession) -> None:
    """Send the three `list_changed` notifications to one client."""
    await session.send_tool_list_changed()
    await session.send_prompt_list_changed()
    await session.send_resource_list_changed()


async def _await_each(notifications: Iterable[Coroutine[object, object, None]]) -> None:
    """Await all notifications, each with a timeout: a client that does not read delays no other."""

    async def in_time(notification: Coroutine[object, object, None]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_NOTIFY_TIMEOUT_S):
                await notification

    await asyncio.gather(*(in_time(notification) for notification in tuple(notifications)))


# URIs of resources.

SCHEME = "perstack://"
JOBS = f"{SCHEME}jobs"


@dataclass(frozen=True, slots=True)
class UriTemplate:
    """A URI template with one variable in braces (RFC 6570, level 1)."""

    template: str

    @property
    def prefix(self) -> str:
        return self.template.partition("{")[0]

    @property
    def suffix(self) -> str:
        return self.template.partition("}")[2]

    def value_in(self, uri: str) -> str | None:
        """Return the variable's value in a URI; None if the template does not match."""
        if not uri.startswith(self.prefix) or not uri.endswith(self.suffix):
            return None
        raw = uri[len(self.prefix) : len(uri) - len(self.suffix)]
        return unquote(raw) if raw and "/" not in raw else None

    def uri(self, value: str) -> str:
        return f"{self.prefix}{quote(value, safe='@')}{self.suffix}"


JOB = UriTemplate(f"{JOBS}/{{id}}")
CHECKPOINT = UriTemplate(f"{SCHEME}checkpoints/{{id}}")
EVENTS = UriTemplate(f"{SCHEME}runs/{{id}}/events")
EXPERT = UriTemplate(f"{SCHEME}experts/{{key}}")


Notify = Callable[[str], Awaitable[None]]  # function that notifies the subscribers of a URI


def _job_of(uri: str) -> str | None:
    """Return the Job that a URI belongs to; None if it cannot be subscribed to."""
    run_id = EVENTS.value_in(uri)
    if run_id is not None:
        with suppress(PerstackError):
            return job_of_run(run_id)
        return None
    return JOB.value_in(uri)


class JobSubscriptions:
    """A task for each driven Job with subscribers."""

    def __init__(self, host: Host, notify: Notify, offers: Callable[[str], bool]) -> None:
        """Follow Jobs through `host`. `offers` returns for an Expert's key whether clients may see its Jobs."""
        self._host = host
        self._offers = offers
        self._notify = notify
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def watch(self, uri: str) -> None:
        """Start to notify of changes of this URI's contents; does nothing if its Job is followed already."""
        job_id = _job_of(uri)
        if job_id is None or job_id in self._tasks:
            return
        task = asyncio.create_task(self._follow(job_id))
        self._tasks[job_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(job_id, None))

    async def close(self) -> None:
        """Stop following all Jobs."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _follow(self, job_id: str) -> None:
        began = self._host.clock.now()
        try:
            if not self._offers((await self._host.job(job_id)).expert_key):
                return
            async for line in self._host.jobs.watch(job_id):
                if line.event.timestamp >= began and _is_visible_change(line.event):
                    await self._notify(EVENTS.uri(line.event.run_id))
                    await self._notify(JOB.uri(job_id))
        except NotFound:
            return
        except PerstackError:
            pass  # reading the resource reports the error
        await self._notify(JOB.uri(job_id))


def _is_visible_change(event: StoredEvent) -> bool:
    """Return whether the event changes what a person sees: a Run starts, a step ends, a Run stops."""
    return isinstance(event, StartRun | FinishStep) or checkpoint_at(event) is not None


@dataclass(frozen=True, slots=True)
class ClientProject(ServedProject):
    """The state of one workspace, with the clients to notify."""

    clients: Clients
    watching: JobSubscriptions
    has_tasks: bool  # True if the operations on tasks are offered as tools
