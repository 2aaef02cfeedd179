"""The MCP server: the SDK's, with our handlers. Which transport it speaks on is no concern of it."""

from __future__ import annotations

from typing import Any

from mcp.server.lowlevel import Server
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.models import InitializationOptions
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    CallToolRequestParams,
    CancelledNotificationParams,
    CompleteRequestParams,
    CompleteResult,
    EmptyResult,
    GetPromptRequestParams,
    GetPromptResult,
    InputRequiredResult,
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
from perstack.frontends.mcp_server.consent import with_consent
from perstack.frontends.mcp_server.greeting import INSTRUCTIONS, NAME
from perstack.frontends.mcp_server.next_steps import said
from perstack.frontends.mcp_server.results import error_result
from perstack.frontends.mcp_server.state import Call, Outcome, ServerState, call_key
from perstack.frontends.mcp_server.task_tools import TASK_TOOLS, call_task_tool, listed_tasks
from perstack.frontends.mcp_server.tools import call_tool, listed
from perstack.frontends.mcp_server.workspaces import Workspaces
from perstack.version import VERSION


class Handlers:
    """Answers requests, each in words of the SDK."""

    def __init__(self, workspaces: Workspaces) -> None:
        self._workspaces = workspaces

    async def list_tools(self, context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        """`tools/list`."""
        state = await self._refreshed(context)
        tasks = listed_tasks() if state.has_tasks else []
        return ListToolsResult(tools=[*listed(state.definitions.experts), *tasks])

    async def call_tool(self, context: Context, params: CallToolRequestParams) -> Outcome:
        """`tools/call`; what the caller did wrong is a result that says so."""
        try:
            state = await self._workspaces.of(context)
            await state.refresh()
            is_of_task = state.has_tasks and params.name in TASK_TOOLS
            call = await with_consent(Call(state, context, params))
            if isinstance(call, InputRequiredResult):
                return call
            return await (call_task_tool if is_of_task else call_tool)(call)
        except PerstackError as error:
            return error_result(error)

    async def list_resources(self, context: Context, params: PaginatedRequestParams | None) -> ListResourcesResult:
        """`resources/list`."""
        return ListResourcesResult(resources=resources.listed(await self._refreshed(context)))

    async def list_templates(
        self, context: Context, params: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        """`resources/templates/list`."""
        return ListResourceTemplatesResult(resource_templates=[kind.listed() for kind in resources.KINDS])

    async def read_resource(self, context: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        """`resources/read`."""
        return await resources.read(await self._state(context), params.uri)

    async def subscribe(self, context: Context, params: SubscribeRequestParams) -> EmptyResult:
        """`resources/subscribe`."""
        state = await self._state(context)
        state.clients.subscribe(params.uri, context)
        state.watching.watch(params.uri)
        return EmptyResult()

    async def unsubscribe(self, context: Context, params: UnsubscribeRequestParams) -> EmptyResult:
        """`resources/unsubscribe`."""
        (await self._state(context)).clients.unsubscribe(params.uri, context)
        return EmptyResult()

    async def listen(self, context: Context, params: SubscriptionsListenRequestParams) -> SubscriptionsListenResult:
        """`subscriptions/listen`, which the stateless era has in place of the two."""
        state = await self._state(context)
        for uri in params.notifications.resource_subscriptions or ():
            state.watching.watch(uri)
        return await state.clients.listening(context, params)

    async def list_prompts(self, context: Context, params: PaginatedRequestParams | None) -> ListPromptsResult:
        """`prompts/list`."""
        return ListPromptsResult(prompts=prompts.listed(await self._refreshed(context)))

    async def get_prompt(self, context: Context, params: GetPromptRequestParams) -> GetPromptResult:
        """`prompts/get`."""
        return prompts.filled(await self._state(context), params)

    async def complete(self, context: Context, params: CompleteRequestParams) -> CompleteResult:
        """`completion/complete`."""
        return await complete(await self._state(context), params)

    async def on_initialized(self, context: Context, params: NotificationParams | None) -> None:
        """`notifications/initialized`."""
        self._workspaces.greeted(context)

    async def on_cancelled(self, context: Context, params: CancelledNotificationParams) -> None:
        """`notifications/cancelled`."""
        self._workspaces.cancel_call(call_key(context, params.request_id))

    async def on_roots_changed(self, context: Context, params: NotificationParams | None) -> None:
        """`notifications/roots/list_changed`."""
        await self._workspaces.roots_changed(context)

    async def _state(self, context: Context) -> ServerState:
        try:
            return await self._workspaces.of(context)
        except PerstackError as error:
            raise MCPError(INTERNAL_ERROR, error.said(said)) from error

    async def _refreshed(self, context: Context) -> ServerState:
        state = await self._state(context)
        await state.refresh()
        return state


def build_server(workspaces: Workspaces) -> Server[Any]:
    """A server for any number of connections, in both eras."""
    handlers = Handlers(workspaces)
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
    # not by the constructor, which warns that roots are deprecated: they are asked for in the era that has them
    server.add_notification_handler("notifications/roots/list_changed", NotificationParams, handlers.on_roots_changed)
    return server


def options_of(server: Server[Any]) -> InitializationOptions:
    """What the server says of itself in a handshake."""
    return server.create_initialization_options(
        NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
    )
