"""Messages API: pure functions that encode a request, and a decoder for the stream of a reply.

Other endpoints of the format (Bedrock, Vertex AI) use it too. Source: Anthropic API reference, "Create a Message"
(request), "Streaming messages" (events), "Prompt caching", "Extended thinking", "Adaptive thinking", "Server tools".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import assert_never

from pydantic import AliasPath, ConfigDict, Field, JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.base.text import is_blank
from perstack.core.base.usage import Usage
from perstack.core.definitions.settings import ReasoningBudget
from perstack.core.messages.adaptations import names_in
from perstack.core.messages.media import PDF
from perstack.core.messages.messages import (
    BlobPart,
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
    ToolResultPart,
    UserMessage,
)
from perstack.http_providers.errors import bad_response
from perstack.http_providers.messages import (
    BUDGET_TOKENS,
    CONTINUE,
    IMAGE_TYPES,
    NO_OUTPUT,
    NO_TEXT,
    ProviderToolBlocks,
    TurnEncoder,
    as_base64,
    blob_placeholder,
    budget_word,
    ends_unfinished,
    is_text,
    legal_id,
    message_encoder,
    offered_names,
    own_blocks,
    request_body,
    request_prefix,
    sent_back,
    signed_by,
    with_failed_result,
)
from perstack.http_providers.replies import (
    END_MARK,
    Count,
    Index,
    OrNone,
    ReplyProgress,
    StreamedText,
    Text,
    Wire,
    arguments_text,
    check_end,
    finish_reason,
    highest,
    is_object,
    join_arguments,
    read_arguments,
    read_event,
    whole_json,
)
from perstack.http_providers.schema_rules import MESSAGES
from perstack.http_providers.structured_output import schema_for
from perstack.http_providers.wire_tools import WireTool, WireTools, wire_tools
from perstack.ports.provider import Delta, Generation, GenerationRequest, OfferedProviderTool
from perstack_anthropic.settings import REQUIRED, AnthropicSettings

VENDOR = "anthropic"  # key of opaque parts that only this vendor may receive

DEFAULT_MAX_TOKENS = 32_000  # maximum reply tokens that every current model supports; the API requires a number

_ANSWER_TOKENS = 8_192
_MIN_BUDGET_TOKENS = 1_024
_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high"}

_CLAUDE_UP_TO_4_6 = re.compile(r"claude-(3|(opus|sonnet|haiku)-4(-[0-6])?(?=$|[-@:](\d{6,}|v\d|latest)))")
"""Models with a thinking budget in tokens; later models reject that and take an effort."""

_CLAUDE_FROM_4_5 = re.compile(r"claude-[a-z]+-(4-[5-9]|[5-9])(?!\d)")

_CACHE_MARK = b',"cache_control":{"type":"ephemeral"}'
_CONTINUE = b',{"role":"user","content":[{"type":"text","text":"%s"}]}' % CONTINUE.encode()
_NEVER_MARKED = (b'{"type":"thinking"', b'{"type":"redacted_thinking"')

_SERVER_TOOLS = {"webSearch": ("web_search", "web_search_20250305"), "webFetch": ("web_fetch", "web_fetch_20250910")}
"""Name and type at the API of each server tool. Source: Claude API, "Server tools", "Web search tool",
"Web fetch tool".

These versions of the tools need no code execution.
"""
_TOOL_NAMES = {name: tool for tool, (name, _) in _SERVER_TOOLS.items()}
_RESULT_SUFFIX = "_tool_result"  # suffix of the type of a block with a server tool's result


def encode(
    request: GenerationRequest,
    settings: AnthropicSettings,
    blobs: Mapping[str, bytes],
    *,
    opening: JsonObject | None = None,
) -> bytes:
    """Encode the body of `POST /v1/messages`. `blobs` has the blobs of the turns that `turns_of` has not encoded yet.

    `opening` has the fields that other endpoints of the format require instead of `model` and `stream`.
    """
    opening = {"model": request.model, "stream": True} if opening is None else opening
    turns = turns_of(request)
    turns.extend(request.messages, blobs)
    head = request_prefix(
        request, VENDOR, (settings, opening), lambda: {**opening, **_request_fields(request, settings)}, REQUIRED
    )
    continuation = (_CONTINUE,) if ends_unfinished(request, offered_names(request)) else ()
    finish_blocks = (
        _without_cache_mark if "cache_control" in names_in(request.adaptations, "field") else _add_cache_mark
    )
    return request_body(head, (*turns.parts(finish_blocks), *continuation))


def _without_cache_mark(blocks: list[bytes]) -> list[bytes]:
    return blocks


def turns_of(request: GenerationRequest) -> TurnEncoder:
    """Return the encoder of the Run's turns, with the turns that it has encoded before."""
    names, tools = offered_names(request), tools_of(request)

    def write(message: Message, blobs: Mapping[str, bytes]) -> list[JsonObject]:
        return _encode_message(message, blobs, tools, names)

    return message_encoder(request, (VENDOR, names, tools.key), TurnEncoder, lambda: write)


def tools_of(request: GenerationRequest) -> WireTools:
    return wire_tools(request, MESSAGES)


def request_limits(request: GenerationRequest, settings: AnthropicSettings) -> tuple[int, JsonObject]:
    """Return `max_tokens` of a request, and the fields that limit thinking."""
    if request.max_tokens is not None:
        max_tokens = request.max_tokens_within(settings.max_tokens or DEFAULT_MAX_TOKENS)
        settings = settings.model_copy(update={"max_tokens": max_tokens})
    return limits_of(request.model, request.reasoning_budget, settings)


def complete_generation(generation: Generation, request: GenerationRequest, settings: AnthropicSettings) -> Generation:
    """Add to a decoded reply what only its request knows: original argument names, signer of thinking, token limit."""
    generation = tools_of(request).restored(signed_by(generation, request.model))
    return replace(generation, max_tokens=request_limits(request, settings)[0])


def _request_fields(request: GenerationRequest, settings: AnthropicSettings) -> JsonObject:
    """Return the body without messages: limits, sampling options, tools, result schema and instruction."""
    max_tokens, thinking = request_limits(request, settings)
    head: JsonObject = {"max_tokens": max_tokens, **thinking}
    temperature = temperature_of(request, settings)
    if temperature is not None:
        head["temperature"] = temperature
    if settings.top_p is not None:
        head["top_p"] = settings.top_p
    tools: list[JsonValue] = [_encode_tool(tool) for tool in tools_of(request).listed]
    tools += [_encode_server_tool(tool) for tool in request.provider_tools]
    if tools:
        head["tools"] = tools
    if tools and not request.allow_tools:
        head["tool_choice"] = {"type": "none"}
    schema = schema_for(request, settings.structured_output, is_known=takes_schemas(request.model))
    if schema is not None:
        output_config = head.get("output_config")
        format_field: JsonObject = {"format": {"type": "json_schema", "schema": schema}}
        head["output_config"] = {**output_config, **format_field} if isinstance(output_config, dict) else format_field
    if request.instruction.strip():
        head["system"] = [{"type": "text", "text": request.instruction, "cache_control": {"type": "ephemeral"}}]
    return {**head, "messages": []}


def takes_schemas(model: str) -> bool:
    """Return whether the model accepts a schema for its reply. Source: Claude API, "Structured outputs"."""
    return _CLAUDE_FROM_4_5.search(model) is not None


def _add_cache_mark(blocks: list[bytes]) -> list[bytes]:
    """Mark the last block, up to which the API caches the request. A conversation has at least one block."""
    if blocks[-1].startswith(_NEVER_MARKED):  # the last block of a paused reply, where the API refuses a mark
        return blocks
    return [*blocks[:-1], blocks[-1].removesuffix(b"}") + _CACHE_MARK + b"}"]


def limits_of(model: str, budget: ReasoningBudget | None, settings: AnthropicSettings) -> tuple[int, JsonObject]:
    """Return `max_tokens`, and the fields that limit thinking."""
    max_tokens = settings.max_tokens or DEFAULT_MAX_TOKENS
    if budget is None:
        return max_tokens, {}
    takes_token_budget = _takes_token_budget(model, settings)
    # the minimum budget is 1,024, and the API rejects a budget that is not below `max_tokens`
    if budget == "none" or budget == 0 or (takes_token_budget and max_tokens <= _MIN_BUDGET_TOKENS):
        return max_tokens, {"thinking": {"type": "disabled"}}
    if not takes_token_budget:
        return max_tokens, {
            "thinking": {"type": "adaptive", "display": "summarized"},
            "output_config": {"effort": effort_of(budget)},
        }
    tokens = max(_MIN_BUDGET_TOKENS, budget if isinstance(budget, int) else BUDGET_TOKENS[budget])
    if settings.max_tokens is None:
        max_tokens = max(max_tokens, tokens + _ANSWER_TOKENS)
    return max_tokens, {"thinking": {"type": "enabled", "budget_tokens": min(tokens, max_tokens - 1)}}


def temperature_of(request: GenerationRequest, settings: AnthropicSettings) -> float | None:
    """Return the temperature to send. Models without a token budget reject most: they get only what the user set."""
    if _takes_token_budget(request.model, settings):
        return request.temperature_over(settings.temperature)
    return settings.temperature


def _takes_token_budget(model: str, settings: AnthropicSettings) -> bool:
    """Return whether the model takes a thinking budget in tokens; others take an effort."""
    if settings.thinking is not None:
        return settings.thinking == "budget"
    # compatible servers, whose models are not Claude, support the older form, a token budget
    return "claude" not in model or _CLAUDE_UP_TO_4_6.search(model) is not None


def effort_of(budget: ReasoningBudget) -> str:
    """Return `low`, `medium` or `high` for a budget other than none."""
    return _EFFORTS[budget_word(budget)]


def _encode_tool(tool: WireTool) -> JsonObject:
    return {**tool.label, "input_schema": tool.schema}


def _encode_server_tool(tool: OfferedProviderTool) -> JsonObject:
    name, kind = _SERVER_TOOLS[tool.name]
    options = {} if tool.options is None else tool.options.model_dump(mode="json", exclude_none=True)
    return {"type": kind, "name": name, **options}


def _encode_message(
    message: Message, blobs: Mapping[str, bytes], tools: WireTools, offered: frozenset[str]
) -> list[JsonObject]:
    match message:
        case UserMessage():
            return _encode_contents(message.contents, blobs) or [{"type": "text", "text": NO_TEXT}]
        case ToolMessage():
            return _encode_results(message.contents, blobs)
        case ExpertMessage():
            names = sent_back(message, offered)
            return _without_trailing_blanks(
                [block for part in message.contents for block in _encode_reply_part(part, tools, names)]
            )
        case _:
            assert_never(message)


def _without_trailing_blanks(blocks: list[JsonObject]) -> list[JsonObject]:
    """Return a reply's blocks without trailing blanks, which the API refuses at the end of a conversation."""
    last = blocks[-1] if blocks else None
    text = None if last is None or last["type"] != "text" else last["text"]
    return [*blocks[:-1], {**(last or {}), "text": text.rstrip()}] if isinstance(text, str) else blocks


def _encode_contents(contents: Iterable[ResultContent], blobs: Mapping[str, bytes]) -> list[JsonObject]:
    blocks = (_encode_text(part.text) if isinstance(part, TextPart) else _encode_blob(part, blobs) for part in contents)
    return [block for block in blocks if block is not None]


def _encode_text(text: str) -> JsonObject | None:
    return None if is_blank(text) else {"type": "text", "text": text}


def _encode_blob(part: BlobPart, blobs: Mapping[str, bytes]) -> JsonObject | None:
    content = blobs.get(part.sha256, b"")
    if not content:
        return _encode_text(blob_placeholder(part))
    if part.mime_type in IMAGE_TYPES:
        return {"type": "image", "source": _encode_source(part, content)}
    if part.mime_type == PDF:
        document: JsonObject = {"type": "document", "source": _encode_source(part, content)}
        return document if part.name is None else {**document, "title": part.name}
    if is_text(part.mime_type):
        return _encode_text(content.decode("utf-8", "replace"))
    return _encode_text(blob_placeholder(part))


def _encode_source(part: BlobPart, content: bytes) -> JsonObject:
    return {"type": "base64", "media_type": part.mime_type, "data": as_base64(content)}


def _encode_results(results: Iterable[ToolResultPart], blobs: Mapping[str, bytes]) -> list[JsonObject]:
    """Encode results. The API refuses an image or document in a failed result, so these follow after all results."""
    blocks: list[JsonObject] = []
    media: list[JsonObject] = []
    for result in results:
        contents = _encode_contents(result.contents, blobs)
        if result.is_error:
            media_blocks = [block for block in contents if block["type"] != "text"]
            contents = [block for block in contents if block["type"] == "text"]
            if media_blocks:
                media.append({"type": "text", "text": with_failed_result(result)})
                media += media_blocks
        blocks.append(_encode_result(result, contents))
    return blocks + media


def _encode_result(result: ToolResultPart, contents: list[JsonObject]) -> JsonObject:
    block: JsonObject = {
        "type": "tool_result",
        "tool_use_id": legal_id(result.tool_call_id),
        "content": [*contents] or [{"type": "text", "text": NO_OUTPUT}],
    }
    if result.is_error:
        block["is_error"] = True
    return block


def _encode_reply_part(part: ReplyPart, tools: WireTools, offered: frozenset[str]) -> Iterable[JsonObject]:
    """Encode one part of an earlier reply; empty for a part that this API does not accept."""
    block: JsonObject | None
    match part:
        case TextPart():
            block = _encode_text(part.text)
        case ToolCallPart():
            block = {
                "type": "tool_use",
                "id": legal_id(part.tool_call_id),
                "name": tools.name(part.tool_name),
                "input": tools.arguments(part),
            }
        case ThinkingPart():
            block = _encode_thinking(part)
        case ProviderToolPart():
            blocks = own_blocks(part, VENDOR, offered)
            if blocks is not None:
                return blocks
            block = _encode_text(part.shown)
        case _:
            assert_never(part)
    return [] if block is None else [block]


def _encode_thinking(part: ThinkingPart) -> JsonObject | None:
    """Encode thinking; None without a signature of this vendor, since the API only accepts thinking that it signed."""
    opaque = (part.opaque or {}).get(VENDOR)
    if not isinstance(opaque, dict):
        return None
    if "data" in opaque:
        return {"type": "redacted_thinking", "data": opaque["data"]}
    return {"type": "thinking", "thinking": part.thinking, "signature": opaque.get("signature", "")}


class _MessageUsage(Wire):
    input_tokens: Count = None
    output_tokens: Count = None
    cache_read_input_tokens: Count = None
    cache_creation_input_tokens: Count = None
    thinking_tokens: Count = Field(default=None, validation_alias=AliasPath("output_tokens_details", "thinking_tokens"))
    web_search_requests: Count = Field(
        default=None, validation_alias=AliasPath("server_tool_use", "web_search_requests")
    )
    web_fetch_requests: Count = Field(default=None, validation_alias=AliasPath("server_tool_use", "web_fetch_requests"))


class _ContentBlock(Wire):
    model_config = ConfigDict(extra="allow")  # blocks of server tools are sent back unchanged

    type: Text = ""
    id: Text = ""
    name: Text = ""
    text: Text = ""
    thinking: Text = ""
    signature: Text = ""
    data: Text = ""
    input: JsonValue = None
    tool_use_id: Text = ""
    content: JsonValue = None


class _WireMessage(Wire):
    content: OrNone[list[_ContentBlock]] = None
    stop_reason: Text = ""
    usage: OrNone[_MessageUsage] = None


class _BlockDelta(Wire):
    text: Text = ""
    thinking: Text = ""
    signature: Text = ""
    partial_json: JsonValue = None
    stop_reason: Text = ""


class _MessageStreamEvent(_WireMessage):
    type: Text = ""
    index: Index = None
    message: _WireMessage | None = None
    content_block: _ContentBlock | None = None
    delta: _BlockDelta | None = None


_FINISH_REASONS: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "toolCalls",
    "pause_turn": "paused",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}
"""Finish reasons. Source: Anthropic documentation, "Handling stop reasons"."""


class _Block:
    def __init__(self, index: int, block: _ContentBlock, on_delta: Callable[[Delta], None]) -> None:
        self.index = index
        self.start = block
        self.text = StreamedText(on_delta, "text" if block.type == "text" else "reasoning")
        self.json: list[str] = []
        self.signature: list[str] = []

    @property
    def arguments(self) -> str:
        """The text of the arguments, which arrive in pieces, in the start, or in both."""
        whole = self.start.input if self.start.input else None
        joined = join_arguments(self.json)
        return joined if whole is None or is_object(joined) else arguments_text(whole)

    def takes(self, delta: _BlockDelta) -> bool:
        """Return whether a delta of this kind extends this block. A block of an unknown kind takes any delta."""
        if delta.text:
            return self.start.type not in ("thinking", "redacted_thinking", "tool_use")
        if delta.thinking or delta.signature:
            return self.start.type not in ("text", "tool_use")
        return self.start.type not in ("text", "thinking", "redacted_thinking")


class MessagesDecoder:
    """Decoder of a reply from the data of its stream's events.

    Blocks are distinguished by index and kind: some servers omit the start of a block, or use an index twice. A
    whole message in one document is accepted too.
    """

    def __init__(self, on_delta: Callable[[Delta], None]) -> None:
        self._on_delta = on_delta
        self._blocks: list[_Block] = []
        self._message: _WireMessage | None = None  # the start event, which may have the whole content
        self._counts: dict[str, int] = {}
        self._stop_reason = ""
        self._has_mark = False  # True once the stream's end mark, `message_stop`, or a whole message has arrived
        self._has_stop = False  # True once `message_stop` has arrived

    def feed(self, data: str) -> ReplyProgress:
        """Process one event. Raises ProviderError for an error event."""
        if data.strip() == END_MARK:
            self._has_mark = True
            return ReplyProgress.LAST
        stream_event = read_event(_MessageStreamEvent, data, "the Messages API")
        self._add_usage(stream_event.usage)
        self._stop_reason = stream_event.stop_reason or self._stop_reason
        match stream_event.type:
            case "message_start":
                self._start_message(stream_event.message or _WireMessage())
            case "message":
                self._start_message(stream_event)
                self._has_mark = True
            case "content_block_start":
                self._start_block(stream_event.index, stream_event.content_block or _ContentBlock())
            case "content_block_delta":
                self._extend_block(stream_event.index, stream_event.delta or _BlockDelta())
            case "content_block_stop":
                self._end_text()
            case "message_delta":
                self._stop_reason = (stream_event.delta or _BlockDelta()).stop_reason or self._stop_reason
            case "message_stop":
                self._has_mark = self._has_stop = True
            case _:
                return ReplyProgress.IDLE
        if self._has_mark:
            return ReplyProgress.LAST
        return ReplyProgress.FINISHED if self._stop_reason else ReplyProgress.MORE

    def finish(self) -> Generation:
        """Return the reply. Raises ProviderError if the stream ended early, or as failed."""
        if self._message is not None and not self._blocks:
            for index, block in enumerate(self._message.content or ()):
                self._start_block(index, block)
        self._end_text()
        indexes = [block.index for block in self._blocks]
        if len(set(indexes)) == len(indexes):
            self._blocks.sort(key=lambda block: block.index)
        reply = ExpertMessage(contents=_decode_blocks(self._blocks))
        if self._stop_reason or not self._has_stop:
            check_end(
                self._stop_reason,
                _FINISH_REASONS,
                reply.contents,
                has_mark=self._has_mark,
                missing="there was no message_stop",
            )
        return Generation(
            reply, self._convert_usage(), finish_reason(_FINISH_REASONS.get(self._stop_reason, "other"), reply)
        )

    def _start_message(self, message: _WireMessage) -> None:
        self._add_usage(message.usage)
        self._stop_reason = message.stop_reason or self._stop_reason
        self._message = message

    def _start_block(self, index: int | None, content_block: _ContentBlock) -> _Block:
        self._end_text()
        block = _Block(len(self._blocks) if index is None else index, content_block, self._on_delta)
        self._blocks.append(block)
        block.text.add(content_block.text or content_block.thinking)
        block.signature.append(content_block.signature)
        return block

    def _extend_block(self, index: int | None, delta: _BlockDelta) -> None:
        block = self._find_or_start_block(index, delta)
        block.text.add(delta.text or delta.thinking)
        block.signature.append(delta.signature)
        arguments = arguments_text(delta.partial_json)
        if arguments:
            block.json.append(arguments)

    def _find_or_start_block(self, index: int | None, delta: _BlockDelta) -> _Block:
        for block in reversed(self._blocks):
            if (index is None or block.index == index) and block.takes(delta):
                return block
        if delta.partial_json:
            raise bad_response(f"there is a delta of block {index}, which has no start", retryable=True)
        return self._start_block(index, _ContentBlock(type="text" if delta.text else "thinking"))

    def _end_text(self) -> None:
        if self._blocks:
            self._blocks[-1].text.end()

    def _add_usage(self, message_usage: _MessageUsage | None) -> None:
        if message_usage is not None:
            highest(self._counts, message_usage.model_dump())

    def _convert_usage(self) -> Usage:
        """Return the usage. The API's `input_tokens` exclude cached tokens; ours include them."""
        cached = self._counts.get("cache_read_input_tokens", 0)
        cache_writes = self._counts.get("cache_creation_input_tokens", 0)
        input_tokens = self._counts.get("input_tokens", 0) + cached + cache_writes
        generated = self._counts.get("output_tokens", 0)
        reasoning = self._counts.get("thinking_tokens", 0)
        usage = Usage.of(input_tokens, generated, reasoning=reasoning, cached=cached, cache_writes=cache_writes)
        uses = {tool: self._counts.get(f"{name}_requests", 0) for tool, (name, _) in _SERVER_TOOLS.items()}
        uses = {tool: count for tool, count in uses.items() if count}
        return usage.model_copy(update={"provider_tools": uses}) if uses else usage


def _decode_blocks(blocks: Iterable[_Block]) -> tuple[ReplyPart, ...]:
    """Convert the blocks to parts; a server tool's use and its result become one part."""
    collector = ProviderToolBlocks(VENDOR)
    for block in blocks:
        content_block = block.start
        if content_block.type == "server_tool_use":
            raw = _original_block(block)
            name, args = _TOOL_NAMES.get(content_block.name, content_block.name), raw.get("input")
            collector.use(content_block.id, name, args if isinstance(args, dict) else {}, raw)
        elif content_block.type.endswith(_RESULT_SUFFIX):
            name = content_block.type.removesuffix(_RESULT_SUFFIX)
            is_error = isinstance(content_block.content, dict) and "error_code" in content_block.content
            lines = _result_lines(content_block.content)
            collector.result(
                content_block.tool_use_id, _TOOL_NAMES.get(name, name), lines, _original_block(block), is_error=is_error
            )
        elif (part := _decode_block(block)) is not None:
            collector.part(part)
    return collector.parts()


def _original_block(block: _Block) -> JsonObject:
    """Return a block as it was sent. The input of a tool use, which arrives in pieces after the block, is put in."""
    raw: JsonObject = whole_json(block.start.model_dump(exclude_unset=True))
    if block.json:
        raw["input"], _ = read_arguments(block.arguments)
    return raw


def _result_lines(result: JsonValue) -> Iterable[str]:
    """Return the titles and addresses in a result, and the text of a page; or the code of an error."""
    if isinstance(result, list):
        return [line for item in result for line in _result_lines(item)] or ["nothing found"]
    if not isinstance(result, dict):
        return []
    if "error_code" in result:
        return [str(result["error_code"])]
    page = result.get("content")
    document = page if isinstance(page, dict) else {}
    source = document.get("source")
    text = source.get("data") if isinstance(source, dict) and source.get("type") == "text" else None
    titles = (result.get("title"), document.get("title"), result.get("url"))
    return [" ".join(str(title) for title in titles if title), *([text] if isinstance(text, str) else [])]


def _decode_block(block: _Block) -> ReplyPart | None:
    """Convert a block; None if it is empty or of an unknown type."""
    text, signature = block.text.text, "".join(block.signature)
    match block.start.type:
        case "text":
            return TextPart(text=text) if text else None
        case "thinking":
            opaque: JsonObject | None = {VENDOR: {"signature": signature}} if signature else None
            return ThinkingPart(thinking=text, opaque=opaque) if text or signature else None
        case "redacted_thinking":
            return ThinkingPart(thinking="", opaque={VENDOR: {"data": block.start.data}})
        case "tool_use":
            args, raw_args = read_arguments(block.arguments)
            return ToolCallPart(tool_call_id=block.start.id, tool_name=block.start.name, args=args, raw_args=raw_args)
        case _:
            return None
