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
    CompleteRequestParams,
    CompleteResult,
    EmptyResult,
    GetPromptRequestParams,
    GetPromptResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    NotificationParams,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    UnsubscribeRequestParams,
)

from perstack.errors import PerstackError
from perstack.frontends.mcp_server import prompts, resources
from perstack.frontends.mcp_server.asking import Context
from perstack.frontends.mcp_server.completion import complete
from perstack.frontends.mcp_server.greeting import INSTRUCTIONS, NAME
from perstack.frontends.mcp_server.results import error_result
from perstack.frontends.mcp_server.state import Call, Outcome, ServerState, call_key
from perstack.frontends.mcp_server.task_tools import TASK_TOOLS, call_task_tool, listed_tasks
from perstack.frontends.mcp_server.tools import call_tool, listed
from perstack.version import VERSION


class Handlers:
    """Answers requests, each in words of the SDK."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._listening = ListenHandler(state.clients.bus)

    async def list_tools(self, context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        """`tools/list`."""
        await self._state.refresh()
        tasks = listed_tasks() if self._state.has_tasks else []
        return ListToolsResult(tools=[*listed(self._state.definitions.experts), *tasks])

    async def call_tool(self, context: Context, params: CallToolRequestParams) -> Outcome:
        """`tools/call`; what the caller did wrong is a result that says so."""
        await self._state.refresh()
        is_of_task = self._state.has_tasks and params.name in TASK_TOOLS
        try:
            return await (call_task_tool if is_of_task else call_tool)(Call(self._state, context, params))
        except PerstackError as error:
            return error_result(error)

    async def list_resources(self, context: Context, params: PaginatedRequestParams | None) -> ListResourcesResult:
        """`resources/list`."""
        await self._state.refresh()
        return ListResourcesResult(resources=resources.listed(self._state))

    async def list_templates(
        self, context: Context, params: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        """`resources/templates/list`."""
        return ListResourceTemplatesResult(resource_templates=[kind.listed() for kind in resources.KINDS])

    async def read_resource(self, context: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        """`resources/read`."""
        return await resources.read(self._state, params.uri)

    async def subscribe(self, context: Context, params: SubscribeRequestParams) -> EmptyResult:
        """`resources/subscribe`."""
        self._state.clients.subscribe(params.uri, context)
        self._state.watching.watch(params.uri)
        return EmptyResult()

    async def unsubscribe(self, context: Context, params: UnsubscribeRequestParams) -> EmptyResult:
        """`resources/unsubscribe`."""
        self._state.clients.unsubscribe(params.uri, context)
        return EmptyResult()

    async def listen(self, context: Context, params: SubscriptionsListenRequestParams) -> SubscriptionsListenResult:
        """`subscriptions/listen`, which the stateless era has in place of the two."""
        for uri in params.notifications.resource_subscriptions or ():
            self._state.watching.watch(uri)
        return await self._listening(context, params)

    async def list_prompts(self, context: Context, params: PaginatedRequestParams | None) -> ListPromptsResult:
        """`prompts/list`."""
        await self._state.refresh()
        return ListPromptsResult(prompts=prompts.listed(self._state))

    async def get_prompt(self, context: Context, params: GetPromptRequestParams) -> GetPromptResult:
        """`prompts/get`."""
        return prompts.filled(self._state, params)

    async def complete(self, context: Context, params: CompleteRequestParams) -> CompleteResult:
        """`completion/complete`."""
        return await complete(self._state, params)

    async def on_initialized(self, context: Context, params: NotificationParams | None) -> None:
        """`notifications/initialized`."""
        self._state.clients.add(context)

    async def on_cancelled(self, context: Context, params: CancelledNotificationParams) -> None:
        """`notifications/cancelled`."""
        self._state.jobs.cancel_call(call_key(context, params.request_id))


def build_server(state: ServerState) -> Server[Any]:
    """A server for any number of connections, in both eras."""
    handlers = Handlers(state)
    server: Server[Any] = Server(
        NAME,
        version=VERSION,
        instructions=INSTRUCTIONS,
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
        on_list_resources=handlers.list_resources,
        on_list_resource_templates=handlers.list_templates,
        on_read_resource=handlers.read_resource,
        on_subscribe_resource=handlers.subscribe,
        on_unsubscribe_resource=handlers.unsubscribe,
        on_list_prompts=handlers.list_prompts,
        on_get_prompt=handlers.get_prompt,
        on_completion=handlers.complete,
        on_subscriptions_listen=handlers.listen,
    )
    server.add_notification_handler("notifications/initialized", NotificationParams, handlers.on_initialized)
    server.add_notification_handler("notifications/cancelled", CancelledNotificationParams, handlers.on_cancelled)
    return server


def options_of(server: Server[Any]) -> InitializationOptions:
    """What the server says of itself in a handshake."""
    return server.create_initialization_options(
        NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
    )
