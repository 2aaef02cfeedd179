"""Provider `mcp-sampling`: the calling editor's model. Source: MCP 2025-11-25, `sampling/createMessage` with tools."""

from __future__ import annotations

import warnings
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeAlias, assert_never

import mcp_types as types
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError, NoBackChannelError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from perstack.core.base.usage import NO_USAGE
from perstack.core.messages.messages import (
    ExpertMessage,
    FinishReason,
    Message,
    ProviderToolPart,
    ReplyPart,
    ResultContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolMessage,
    UserMessage,
    text_of,
)
from perstack.dataclass import dataclass
from perstack.errors import ProviderError, UsageError
from perstack.ports.hooks import hookimpl
from perstack.ports.provider import (
    BlobReader,
    Delta,
    Generation,
    GenerationRequest,
    Provider,
    ProviderConfig,
    ProviderFactory,
)

if TYPE_CHECKING:
    from perstack_server.mcp.elicitation import Context


# context of the client's call that drives the current Job; None without one
CALLER: ContextVar[Context | None] = ContextVar("CALLER", default=None)

NAME = "mcp-sampling"

_MAX_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class _SamplingProvider(Provider):
    """The model of the client whose call drives the Job."""

    max_tokens: int

    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        generation = await _sample(CALLER.get(), request, self.max_tokens)
        if generation.reply.text:
            on_delta(Delta("text", generation.reply.text))
        return generation

    def takes(self, model: str, mime_type: str) -> bool:
        """Return True for images: sampling has no other attachments."""
        return mime_type.startswith("image/")

    async def close(self) -> None:
        """Do nothing: the connection belongs to the server."""


@dataclass(frozen=True, slots=True)
class _SamplingFactory(ProviderFactory):
    """The provider's factory, registered only by `perstack mcp`."""

    name: str = NAME
    priority: int = 1000
    default_model: str | None = "default"
    needs_name: bool = True  # the user must choose this explicitly, since it decides whose model is used and paid for
    has_one_model: bool = True
    how_to_configure: str = "run `perstack mcp` from an editor that offers sampling"

    def is_configured(self, env: Mapping[str, str]) -> bool:
        """Return True: whether the client offers sampling is known only when it calls."""
        return True

    def create(self, config: ProviderConfig) -> Provider:
        limit = config.setting.get("maxTokens", _MAX_TOKENS)
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1 or set(config.setting) - {"maxTokens"}:
            raise UsageError(f"provider {NAME} has one setting, `maxTokens`, a whole number from 1")
        return _SamplingProvider(limit)


class SamplingPlugin:
    """The plugin for `Host(plugins=…)`."""

    @hookimpl
    def perstack_providers(self) -> Sequence[ProviderFactory]:
        return [_SamplingFactory()]


_Block: TypeAlias = types.SamplingMessageContentBlock

_REASONS: dict[str, FinishReason] = {
    "endTurn": "stop",
    "stopSequence": "stop",
    "maxTokens": "length",
    "toolUse": "toolCalls",
}


async def _sample(context: Context | None, request: GenerationRequest, max_tokens: int) -> Generation:
    """Generate with the client's model. Raises ProviderError if the client has no sampling, or none with tools."""
    client = _check_client(context, needs_tools=bool(request.tools))
    messages = [await _convert_message(message, request.blobs) for message in request.messages]
    tools = [
        types.Tool(name=spec.name, description=spec.description, input_schema=spec.input_schema)
        for spec in request.tools
    ]
    preferences = (
        None if request.model == "default" else types.ModelPreferences(hints=[types.ModelHint(name=request.model)])
    )
    with warnings.catch_warnings():
        # the SDK warns that later revisions deprecate this; earlier ones have no other way
        warnings.simplefilter("ignore", MCPDeprecationWarning)
        reply = client.session.create_message(  # pyright: ignore[reportDeprecated]
            [message for message in messages if message is not None],
            max_tokens=request.max_tokens_within(max_tokens) or max_tokens,
            temperature=request.temperature,
            system_prompt=request.instruction or None,
            model_preferences=preferences,
            tools=tools,
            tool_choice=types.ToolChoice(mode="auto" if request.allow_tools else "none") if tools else None,
            related_request_id=client.request_id,
        )
    try:
        return _convert_result(await reply)
    except NoBackChannelError as error:
        raise ProviderError("the client has disconnected, so its model is not available", name="NoSampling") from error
    except MCPError as error:
        raise ProviderError(f"the client's model: {error}", name="Sampling") from error


def _check_client(context: Context | None, *, needs_tools: bool) -> Context:
    """Return the context if its client offers what is needed. Raises ProviderError otherwise."""

    def refuse(why: str) -> ProviderError:
        return ProviderError(f"{why}: choose another provider in perstack.toml, or --provider", name="NoSampling")

    if context is None:
        raise refuse("there is no client whose model could be used")
    if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
        raise refuse(f"the client speaks MCP {context.protocol_version}, a revision without sampling")
    capabilities = context.session.client_capabilities
    sampling = capabilities.sampling if capabilities is not None else None
    if sampling is None:
        raise refuse("the client offers no sampling")
    if needs_tools and sampling.tools is None:
        raise refuse("the client's sampling does not take tools, which an Expert needs")
    return context


async def _convert_message(message: Message, blobs: BlobReader) -> types.SamplingMessage | None:
    blocks: list[_Block]
    match message:
        case UserMessage():
            blocks = [await _convert_content(part, blobs) for part in message.contents]
        case ExpertMessage():
            parts = (part for part in message.contents if not isinstance(part, ThinkingPart))
            blocks = [
                _convert_part(TextPart(text=part.shown) if isinstance(part, ProviderToolPart) else part)
                for part in parts
            ]
        case ToolMessage():
            blocks = [
                types.ToolResultContent(
                    tool_use_id=result.tool_call_id,
                    content=[await _convert_content(part, blobs) for part in result.contents],
                    is_error=result.is_error or None,
                )
                for result in message.contents
            ]
        case _:
            assert_never(message)
    if not blocks:
        return None
    return types.SamplingMessage(role="assistant" if isinstance(message, ExpertMessage) else "user", content=blocks)


def _convert_part(part: TextPart | ToolCallPart) -> types.TextContent | types.ToolUseContent:
    if isinstance(part, TextPart):
        return types.TextContent(text=part.text)
    return types.ToolUseContent(id=part.tool_call_id, name=part.tool_name, input=dict(part.args))


async def _convert_content(part: ResultContent, blobs: BlobReader) -> types.TextContent | types.ImageContent:
    if isinstance(part, TextPart):
        return types.TextContent(text=part.text)
    if part.mime_type.startswith("image/"):
        return types.ImageContent(data=b64encode(await blobs(part.sha256)).decode(), mime_type=part.mime_type)
    return types.TextContent(text=text_of([part]))


def _convert_result(result: types.CreateMessageResult | types.CreateMessageResultWithTools) -> Generation:
    blocks: list[types.ContentBlock | _Block] = (
        [*result.content] if isinstance(result.content, list) else [result.content]
    )
    contents: list[ReplyPart] = []
    for block in blocks:
        if isinstance(block, types.TextContent):
            contents.append(TextPart(text=block.text))
        elif isinstance(block, types.ToolUseContent):
            contents.append(ToolCallPart(tool_call_id=block.id, tool_name=block.name, args=block.input))
    reply = ExpertMessage(contents=tuple(contents))
    reason = _REASONS.get(result.stop_reason or "endTurn", "other")
    return Generation(reply, NO_USAGE, "toolCalls" if reply.tool_calls else reason)
