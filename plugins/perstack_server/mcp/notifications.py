"""Clients that are notified when tools or resources change, and the Jobs to which they subscribed."""

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


def client_id_of(context: Context) -> str:
    """Return the id of a request's client: its session over HTTP; empty on a pipe, which has one client."""
    request: object = context.request
    return request.headers.get(_SESSION_ID, "") if isinstance(request, Request) else ""


def call_key(context: Context, request_id: object) -> CallKey:
    """Return the key of a request: its client and its id."""
    return (client_id_of(context), str(request_id))


class LogLevels:
    """The levels of log messages that clients want, set for a connection or, in the stateless era, with each call."""

    def __init__(self) -> None:
        """Start without levels: a client that sets none gets no log messages."""
        self._levels: dict[str, types.LoggingLevel] = {}

    def set(self, level: types.LoggingLevel, context: Context) -> None:
        """Set the level for a client until its connection ends."""
        client_id = client_id_of(context)
        if client_id not in self._levels:
            on_disconnect(context, lambda: self._levels.pop(client_id, None))
        self._levels[client_id] = level

    def includes(self, level: types.LoggingLevel, context: Context) -> bool:
        """Return whether a request's client wants messages of this level."""
        wanted_level: object = self._levels.get(client_id_of(context))
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            wanted_level = (context.meta or {}).get(types.LOG_LEVEL_META_KEY)
        return wanted_level in _LEVELS[: _LEVELS.index(level) + 1]


_LEVELS = get_args(types.LoggingLevel)  # the least severe first


def caller(context: Context) -> By:
    """Return the author of what a request does: this user on a pipe, over HTTP the client without a person."""
    params = context.session.client_params
    client = f"{params.client_info.name} {params.client_info.version}" if params is not None else ""
    is_remote = isinstance(context.request, Request)
    return By(door="mcp", client=client) if is_remote else this_user("mcp", client)


MAY_DECIDE = "perstack.may_decide"  # key in the scope of an HTTP request whose token gives the right to decide


def may_decide(context: Context) -> bool:
    """Return whether the request was sent with a token that has the right to make a person's decisions."""
    request: object = context.request
    return isinstance(request, Request) and request.scope.get(MAY_DECIDE) is True


def on_disconnect(context: Context, callback: Callable[[], object]) -> None:
    """Call `callback` when a request's connection ends, over HTTP when its session ends."""
    # The SDK intends the connection's exit stack for this, but does not expose it yet.
    connection: object = getattr(context.session, "_connection", None)
    if isinstance(connection, Connection):
        connection.exit_stack.callback(callback)


class Clients:
    """Clients with a handshake, and the streams that stateless clients listen to."""

    def __init__(self) -> None:
        self._bus = subscriptions.InMemorySubscriptionBus()
        self.listen_handler = subscriptions.ListenHandler(self._bus)
        self._sessions: dict[str, ServerSession] = {}
        self._subscribers: dict[str, dict[str, ServerSession]] = {}

    def add(self, context: Context) -> None:
        """Add a client after its handshake. It is removed when its connection ends."""
        client_id = client_id_of(context)
        if client_id not in self._sessions:
            on_disconnect(context, lambda: self.remove(client_id))
        self._sessions[client_id] = context.session

    def remove(self, client_id: str) -> None:
        """Remove a client and its subscriptions."""
        self._sessions.pop(client_id, None)
        for uri in tuple(self._subscribers):
            self._unsubscribe(uri, client_id)

    def subscribe(self, uri: str, context: Context) -> None:
        self.add(context)
        self._subscribers.setdefault(uri, {})[client_id_of(context)] = context.session

    def unsubscribe(self, uri: str, context: Context) -> None:
        self._unsubscribe(uri, client_id_of(context))

    def _unsubscribe(self, uri: str, client_id: str) -> None:
        sessions = self._subscribers.get(uri, {})
        sessions.pop(client_id, None)
        if not sessions:
            self._subscribers.pop(uri, None)

    async def definitions_changed(self) -> None:
        """Send the three `list_changed` notifications to all clients. A client that has disconnected is ignored."""
        for event in (
            subscriptions.ToolsListChanged(),
            subscriptions.PromptsListChanged(),
            subscriptions.ResourcesListChanged(),
        ):
            await self._bus.publish(event)
        await _send_all(send_lists_changed(session) for session in self._sessions.values())

    async def resource_updated(self, uri: str) -> None:
        """Send `notifications/resources/updated` to the resource's subscribers."""
        await self._bus.publish(subscriptions.ResourceUpdated(uri=uri))
        await _send_all(session.send_resource_updated(uri) for session in self._subscribers.get(uri, {}).values())


async def send_lists_changed(session: ServerSession) -> None:
    """Send the three `list_changed` notifications to one client."""
    await session.send_tool_list_changed()
    await session.send_prompt_list_changed()
    await session.send_resource_list_changed()


async def _send_all(notifications: Iterable[Coroutine[object, object, None]]) -> None:
    """Send notifications concurrently, each with a timeout, so that a client that does not read delays no other."""

    async def send_in_time(notification: Coroutine[object, object, None]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_NOTIFY_TIMEOUT_S):
                await notification

    await asyncio.gather(*(send_in_time(notification) for notification in tuple(notifications)))


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
        quoted_value = uri[len(self.prefix) : len(uri) - len(self.suffix)]
        return unquote(quoted_value) if quoted_value and "/" not in quoted_value else None

    def uri(self, value: str) -> str:
        return f"{self.prefix}{quote(value, safe='@')}{self.suffix}"


JOB = UriTemplate(f"{JOBS}/{{id}}")
CHECKPOINT = UriTemplate(f"{SCHEME}checkpoints/{{id}}")
EVENTS = UriTemplate(f"{SCHEME}runs/{{id}}/events")
EXPERT = UriTemplate(f"{SCHEME}experts/{{key}}")


Notify = Callable[[str], Awaitable[None]]  # notifies the subscribers of a URI


def _job_of(uri: str) -> str | None:
    """Return the id of the Job that a URI belongs to; None if changes of it are not announced."""
    run_id = EVENTS.value_in(uri)
    if run_id is not None:
        with suppress(PerstackError):
            return job_of_run(run_id)
        return None
    return JOB.value_in(uri)


class JobSubscriptions:
    """A task for each driven Job with subscribers."""

    def __init__(self, host: Host, notify: Notify, offers: Callable[[str], bool]) -> None:
        """Follow Jobs of `host`. `offers(expert_key)` returns whether clients may see the Jobs of an Expert."""
        self._host = host
        self._offers = offers
        self._notify = notify
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def watch(self, uri: str) -> None:
        """Start to follow the Job of a URI and to notify its subscribers, unless it is followed already."""
        job_id = _job_of(uri)
        if job_id is None or job_id in self._tasks:
            return
        task = asyncio.create_task(self._follow(job_id))
        self._tasks[job_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(job_id, None))

    async def close(self) -> None:
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
            pass  # the client sees the error when it reads the resource
        await self._notify(JOB.uri(job_id))


def _is_visible_change(event: StoredEvent) -> bool:
    """Return whether the event changes what a person sees: a Run starts, a step ends, a Run stops."""
    return isinstance(event, StartRun | FinishStep) or checkpoint_at(event) is not None


@dataclass(frozen=True, slots=True)
class ClientProject(ServedProject):
    """The state of one workspace, with the clients to notify."""

    clients: Clients
    job_subscriptions: JobSubscriptions
    has_tasks: bool  # True if the operations on tasks are offered as tools
