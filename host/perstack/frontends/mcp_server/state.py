"""What the server's tools work with, and one call of them."""

from __future__ import annotations

from typing import TypeAlias

from mcp_types import CallToolRequestParams, CallToolResult, InputRequiredResult

from perstack.dataclass import dataclass
from perstack.frontends.mcp_server.asking import Context
from perstack.frontends.mcp_server.clients import Clients, client_of
from perstack.frontends.mcp_server.definitions import Definitions
from perstack.frontends.mcp_server.jobs import CallKey, JobTasks
from perstack.frontends.mcp_server.next_steps import said
from perstack.frontends.mcp_server.watching import Watching
from perstack.host import Host

Outcome: TypeAlias = CallToolResult | InputRequiredResult


@dataclass(frozen=True, slots=True)
class ServerState:
    """One for a workspace, whatever the number of its clients."""

    host: Host
    definitions: Definitions
    jobs: JobTasks
    clients: Clients
    watching: Watching
    has_tasks: bool = False
    """Whether execution memory is offered as tools."""

    async def refresh(self) -> None:
        """Take in what has changed in perstack.toml, and tell the clients."""
        if self.definitions.refresh():
            await self.clients.definitions_changed()


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool."""

    state: ServerState
    context: Context
    params: CallToolRequestParams

    @property
    def host(self) -> Host:
        return self.state.host

    @property
    def key(self) -> CallKey:
        """What a cancellation names it by."""
        return call_key(self.context, self.context.request_id)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the caller should know beside the result."""
        problem = self.state.definitions.live.problem
        return () if problem is None else (f"Note: {problem.said(said)}.",)


def call_key(context: Context, request_id: object) -> CallKey:
    """A request's id with the client that gave it."""
    return (client_of(context), str(request_id))
