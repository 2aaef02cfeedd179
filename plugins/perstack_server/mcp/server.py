"""The MCP server: the SDK's server with our handlers, independent of the transport, and its stdio transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server.lowlevel import Server
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.models import InitializationOptions
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from typing_extensions import override

from perstack.core.base.records import JsonObject
from perstack.doors.shared.consent import FORM, fitted_change
from perstack.doors.shared.next_step_phrases import mcp_phrase
from perstack.doors.shared.signals import cancel_on_stop_signal
from perstack.doors.shared.stdio import ProtocolStdio
from perstack.errors import DefinitionError, PerstackError
from perstack.version import VERSION
from perstack_server.mcp import resources
from perstack_server.mcp.client_config import NAME
from perstack_server.mcp.driving import LOG_LEVEL, ClientCall, Outcome
from perstack_server.mcp.elicitation import AgreementForm, Context, can_ask, uses_returned_questions
from perstack_server.mcp.notifications import CHECKPOINT, EVENTS, EXPERT, JOB, ClientProject, LogLevels, call_key
from perstack_server.mcp.tools import call_tool, drives, list_tools, operations_of
from perstack_server.mcp.workspaces import ServeOptions, Workspaces, serve_projects

# Completion of the ids in resource URIs.

_MAX_COMPLETIONS = 100  # maximum values in one answer, a limit of the protocol
_SEARCHED_JOBS = 200  # maximum Jobs that are searched for completions, the newest


async def _complete(client_project: ClientProject, params: types.CompleteRequestParams) -> types.CompleteResult:
    """Return the ids that begin with the typed text; empty for free-text arguments."""
    if not isinstance(params.ref, types.ResourceTemplateReference):
        return types.CompleteResult(completion=types.Completion(values=[]))
    values = [value for value in await _find_values(client_project, params.ref.uri, params.argument.value) if value]
    return types.CompleteResult(
        completion=types.Completion(
            values=values[:_MAX_COMPLETIONS], total=len(values), has_more=len(values) > _MAX_COMPLETIONS
        )
    )


async def _find_values(client_project: ClientProject, template: str, typed: str) -> list[str]:
    if template == EXPERT.template:
        return [expert.key for expert in client_project.definitions.experts.values() if expert.key.startswith(typed)]
    job_ids = [summary.id for summary in (await client_project.page_of_jobs(limit=_SEARCHED_JOBS)).jobs]
    if template == JOB.template:
        return [job_id for job_id in job_ids if job_id.startswith(typed)]
    if template not in (EVENTS.template, CHECKPOINT.template):
        return []
    values: list[str] = []
    for job_id in job_ids:
        if job_id.startswith(typed) or typed.startswith(job_id):
            values += await _values_of_job(client_project, template, job_id)
        if len(values) > 5 * _MAX_COMPLETIONS:
            break
    return [value for value in values if value.startswith(typed)]


async def _values_of_job(client_project: ClientProject, template: str, job_id: str) -> list[str]:
    try:
        if template == EVENTS.template:
            return [run_summary.id for run_summary in (await client_project.host.jobs.runs(job_id)).runs]
        return list((await client_project.host.jobs.checkpoints(job_id)).ids)
    except PerstackError:
        return []  # a Job that cannot be read gets no completions


# A prompt for each Expert, which editors show as a command.


def _list_prompts(client_project: ClientProject) -> list[types.Prompt]:
    argument = types.PromptArgument(name="query", description="what the Expert should do", required=True)
    return [
        types.Prompt(
            name=name,
            title=expert.key,
            description=expert.description or f"Asks the Expert {expert.key}.",
            arguments=[argument],
        )
        for name, expert in client_project.definitions.experts.items()
    ]


def _get_prompt(state: ClientProject, params: types.GetPromptRequestParams) -> types.GetPromptResult:
    """Return the prompt's text for the editor's model. Raises MCPError for an unknown prompt or a missing query."""
    expert = state.definitions.experts.get(params.name)
    if expert is None:
        raise MCPError(types.INVALID_PARAMS, f"Unknown prompt {params.name!r}")
    query = (params.arguments or {}).get("query", "").strip()
    if not query:
        raise MCPError(types.INVALID_PARAMS, f"Prompt {params.name!r} needs a query")
    text = (
        f"Call the tool {params.name} with this query, word for word, and give me its result. If it asks something, ask"
        f" me.\n\n{query}"
    )
    return types.GetPromptResult(
        description=expert.description or None,
        messages=[types.PromptMessage(role="user", content=types.TextContent(text=text))],
    )


class _Handlers:
    """Handlers of the protocol's requests and notifications, for all clients of one server."""

    def __init__(self, workspaces: Workspaces) -> None:
        self._workspaces = workspaces
        self._log_levels = LogLevels()

    async def list_tools(self, context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        client_project = await self._get_refreshed_project(context)
        tools = list_tools(client_project.definitions.experts, operations_of(client_project))
        return types.ListToolsResult(tools=tools)

    async def call_tool(self, context: Context, params: types.CallToolRequestParams) -> Outcome:
        """Answer `tools/call`. An error that the caller can correct is a result, which the model reads."""
        try:
            client_project = await self._workspaces.of(context)
            await client_project.refresh()
            call = await _with_consent(
                ClientCall(client_project, context, params, logs=self._log_levels.includes(LOG_LEVEL, context))
            )
            if isinstance(call, types.InputRequiredResult):
                return call
            return await call_tool(call)
        except PerstackError as error:
            return _error_result(error)

    async def list_resources(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=resources.list_resources(await self._get_refreshed_project(context)))

    async def list_templates(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=[kind.to_template() for kind in resources.KINDS])

    async def read_resource(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        return await resources.read(await self._get_project(context), params.uri)

    async def subscribe(self, context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        client_project = await self._get_project(context)
        client_project.clients.subscribe(params.uri, context)
        client_project.job_subscriptions.watch(params.uri)
        return types.EmptyResult()

    async def unsubscribe(self, context: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        (await self._get_project(context)).clients.unsubscribe(params.uri, context)
        return types.EmptyResult()

    async def listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Answer `subscriptions/listen`, which replaces subscribe and unsubscribe in the stateless era."""
        client_project = await self._get_project(context)
        for uri in params.notifications.resource_subscriptions or ():
            client_project.job_subscriptions.watch(uri)
        return await client_project.clients.listen_handler(context, params)

    async def list_prompts(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListPromptsResult:
        return types.ListPromptsResult(prompts=_list_prompts(await self._get_refreshed_project(context)))

    async def get_prompt(self, context: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        return _get_prompt(await self._get_project(context), params)

    async def set_log_level(self, context: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        self._log_levels.set(params.level, context)
        return types.EmptyResult()

    async def complete(self, context: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        return await _complete(await self._get_project(context), params)

    async def on_initialized(self, context: Context, params: types.NotificationParams | None) -> None:
        self._workspaces.register(context)

    async def on_cancelled(self, context: Context, params: types.CancelledNotificationParams) -> None:
        self._workspaces.cancel_call(call_key(context, params.request_id))

    async def on_roots_changed(self, context: Context, params: types.NotificationParams | None) -> None:
        await self._workspaces.roots_changed(context)

    async def _get_project(self, context: Context) -> ClientProject:
        try:
            return await self._workspaces.of(context)
        except PerstackError as error:
            raise MCPError(types.INTERNAL_ERROR, error.text_for(mcp_phrase)) from error

    async def _get_refreshed_project(self, context: Context) -> ClientProject:
        client_project = await self._get_project(context)
        await client_project.refresh()
        return client_project


_ERROR_KEY = "perstack/error"  # key in `_meta`, since a tool's output schema allows no error in the result itself


def _error_result(error: PerstackError) -> types.CallToolResult:
    """Return an error as a result, so that the model can read and correct it."""
    text = error.text_for(mcp_phrase)
    report: JsonObject = {"name": type(error).__name__, "message": text}
    if isinstance(error, DefinitionError):
        report["problems"] = [
            {
                "file": problem.file,
                "line": problem.line,
                "key": problem.key,
                "message": problem.message,
                "severity": problem.severity,
            }
            for problem in error.problems
        ]
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True, _meta={_ERROR_KEY: report})


INSTRUCTIONS = (
    "Each Expert is a tool of its own: a small agent that works on a query in the project's directory. A call is a Job,"
    " which is recorded step by step and never lost. Its result names the Job: continue with a new query by"
    " continueJob, or by the tool continue_job. A Job that asks a person something waits until the person answers, in"
    " a form that the tool answer shows. One that was interrupted, failed or reached its step limit continues with"
    " resume_job. For long work call with wait: false, and look with get_job."
)


class _ChangingServer(Server[Any]):
    """The SDK's server, which announces that its lists may change."""

    @override
    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        # over HTTP the SDK calls this without options, which would announce no changes
        changes = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
        return super().create_initialization_options(
            notification_options or changes, experimental_capabilities, extensions
        )


def build_server(workspaces: Workspaces) -> Server[Any]:
    """Return a server for any number of connections, in both eras."""
    handlers = _Handlers(workspaces)
    server = _ChangingServer(
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
    server.add_notification_handler("notifications/initialized", types.NotificationParams, handlers.on_initialized)
    server.add_notification_handler("notifications/cancelled", types.CancelledNotificationParams, handlers.on_cancelled)
    # not in the constructor, which would warn that later revisions deprecate roots and log messages
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, handlers.set_log_level)
    server.add_notification_handler(
        "notifications/roots/list_changed", types.NotificationParams, handlers.on_roots_changed
    )
    return server


# The server on the process's stdin and stdout, until the client closes them or a stop signal arrives.

_Streams: TypeAlias = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]
]

_LAST_MESSAGES_S = 1.0  # maximum seconds for the client to read the last messages


async def serve_stdio(offer: ServeOptions, wire: ProtocolStdio, opening: bytes | None) -> None:
    """Serve one client. `opening` is its first message."""
    with cancel_on_stop_signal():
        async with (
            serve_projects(offer) as workspaces,
            _streams(wire, opening) as (incoming, outgoing),
        ):
            server = build_server(workspaces)
            await server.run(incoming, outgoing, server.create_initialization_options())


@asynccontextmanager
async def _streams(wire: ProtocolStdio, opening: bytes | None) -> AsyncGenerator[_Streams]:
    messages = wire.start(_parse_message, "MCP", opening)
    incoming_sender, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, outgoing_receiver = anyio.create_memory_object_stream[SessionMessage](0)
    read_task = asyncio.create_task(_receive_messages(messages, incoming_sender))
    write_task = asyncio.create_task(_send_messages(wire, outgoing_receiver))
    try:
        yield incoming, outgoing
        outgoing.close()
        await asyncio.wait({write_task}, timeout=_LAST_MESSAGES_S)
    finally:
        for task in (read_task, write_task):
            task.cancel()
        for stream in (incoming_sender, incoming, outgoing, outgoing_receiver):
            stream.close()
        await asyncio.wait({read_task, write_task})


async def _receive_messages(
    messages: AsyncGenerator[SessionMessage], incoming_sender: MemoryObjectSendStream[SessionMessage | Exception]
) -> None:
    async with incoming_sender, aclosing(messages):
        async for message in messages:
            await incoming_sender.send(message)


def _parse_message(line: bytes) -> SessionMessage:
    return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))


async def _send_messages(wire: ProtocolStdio, outgoing_receiver: MemoryObjectReceiveStream[SessionMessage]) -> None:
    async for item in outgoing_receiver:
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        await wire.send(line.encode("utf-8", "replace") + b"\n")


# Consent to a changed definition that would execute something new.

_TRUST_FORM = AgreementForm("trust", "Use it")


async def _with_consent(client_call: ClientCall) -> ClientCall | types.InputRequiredResult:
    """Return the call, or the result that asks the user about a changed definition first. Raises StorageError."""
    decision = _TRUST_FORM.returned_decision(client_call.params)
    if decision is not None:
        await _apply_decision(client_call.served_project, *decision)
        params = client_call.params.model_copy(update={"request_state": None, "input_responses": None})
        return replace(client_call, params=params)
    live = client_call.served_project.definitions.live
    change = live.open_change
    if change is None or live.is_asked or not can_ask(client_call.context) or not drives(client_call.params.name):
        return client_call
    page = fitted_change(change, FORM)
    if not page.is_whole:  # too long for a form: the notes of the result name the command that shows it
        return client_call
    if uses_returned_questions(client_call.context):
        if client_call.params.request_state is not None:
            return client_call  # the call answers another question
        return _TRUST_FORM.ask_by_result(page.text, change.digest)
    live.is_asked = True
    try:
        agreed = await _TRUST_FORM.ask_now(client_call.context, page.text)
        await _apply_decision(client_call.served_project, change.digest, agreed)
    finally:
        live.is_asked = False
    return client_call


async def _apply_decision(client_project: ClientProject, digest: str, agreed: bool) -> None:
    if not agreed:
        client_project.definitions.live.refuse(digest)
    elif client_project.definitions.agree(digest):
        await client_project.on_change()
