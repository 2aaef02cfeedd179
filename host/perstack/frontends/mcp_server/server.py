"""The MCP server: the SDK's, with our handlers. Which transport it speaks on is no concern of it."""

from __future__ import annotations

from typing import Any

from mcp.server.lowlevel import Server
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.models import InitializationOptions
from mcp.server.subscriptions import ListenHandler
from mcp_types import (
    CallToolRequestParams,
    CancelledNotificationParams,
    ListToolsResult,
    NotificationParams,
    PaginatedRequestParams,
)

from perstack.errors import PerstackError
from perstack.frontends.mcp_server.asking import Context
from perstack.frontends.mcp_server.greeting import INSTRUCTIONS, NAME
from perstack.frontends.mcp_server.results import error_result
from perstack.frontends.mcp_server.state import Call, Outcome, ServerState, call_key
from perstack.frontends.mcp_server.tools import call_tool, listed
from perstack.version import VERSION


def build_server(state: ServerState) -> Server[Any]:
    """A server for any number of connections, in both eras."""

    async def list_tools(context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        await state.refresh()
        return ListToolsResult(tools=listed(state.definitions.experts))

    async def on_call(context: Context, params: CallToolRequestParams) -> Outcome:
        await state.refresh()
        try:
            return await call_tool(Call(state, context, params))
        except PerstackError as error:
            return error_result(error)

    async def on_initialized(context: Context, params: NotificationParams | None) -> None:
        state.clients.add(context.session)

    async def on_cancelled(context: Context, params: CancelledNotificationParams) -> None:
        state.jobs.cancel_call(call_key(context, params.request_id))

    server: Server[Any] = Server(
        NAME,
        version=VERSION,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=on_call,
        on_subscriptions_listen=ListenHandler(state.clients.bus),
    )
    server.add_notification_handler("notifications/initialized", NotificationParams, on_initialized)
    server.add_notification_handler("notifications/cancelled", CancelledNotificationParams, on_cancelled)
    return server


def options_of(server: Server[Any]) -> InitializationOptions:
    """What the server says of itself in a handshake."""
    return server.create_initialization_options(NotificationOptions(tools_changed=True))
