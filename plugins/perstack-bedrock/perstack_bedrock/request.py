"""Encoder of ConverseStream requests, as pure functions.

Source: Amazon Bedrock API reference, "ConverseStream" and "ContentBlock"; user guide, "Prompt caching".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import assert_never

from pydantic import JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.base.text import is_blank
from perstack.core.messages.adaptations import names_in
from perstack.core.messages.media import PDF
from perstack.core.messages.messages import (
    BlobPart,
    ExpertMessage,
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
from perstack.http_providers.messages import (
    CONTINUE,
    IMAGE_TYPES,
    NO_OUTPUT,
    NO_TEXT,
    TurnEncoder,
    as_base64,
    blob_placeholder,
    ends_unfinished,
    is_text,
    legal_id,
    message_encoder,
    request_body,
    request_prefix,
    to_bytes,
    with_failed_result,
)
from perstack.http_providers.schema_rules import CONVERSE
from perstack.http_providers.structured_output import schema_for
from perstack.http_providers.wire_tools import WireTool, WireTools, wire_tools
from perstack.ports.provider import GenerationRequest
from perstack_anthropic.messages_api import takes_schemas, temperature_of
from perstack_bedrock.settings import BedrockSettings, accepts_cache_marks, accepts_error_status, limits_and_thinking

VENDOR = "bedrock"  # key of opaque parts that only this vendor may receive

NO_MORE_CALLS = "Answer as text now: no tool can be called any more."
"""Text sent when tools must not be called: `toolChoice` cannot express that, and results require their tools."""

_NO_TOOL: JsonObject = {
    "toolSpec": {
        "name": "no_tool",
        "description": "No tool is left. Do not call this one.",
        "inputSchema": {"json": {"type": "object", "properties": {}}},
    }
}
"""Tool that is listed if none is left after calls: the API refuses calls and results without `toolConfig`."""

_EMPTY_MESSAGE_BLOCK: JsonObject = {"text": NO_TEXT}
_CACHE_POINT: JsonObject = {"cachePoint": {"type": "default"}}
_DOCUMENT = b'{"document":'
_CONTINUE = b',{"role":"user","content":[{"text":"%s"}]}' % CONTINUE.encode()


def encode(request: GenerationRequest, settings: BedrockSettings, blobs: Mapping[str, bytes]) -> bytes:
    """Encode the body of `POST /model/MODEL/converse-stream`. `blobs` has the blobs not encoded in `turns_of`."""
    turns = turns_of(request, settings)
    turns.extend(request.messages, blobs)
    has_cache = accepts_cache_marks(request.model, settings) and "cachePoint" not in names_in(
        request.adaptations, "field"
    )
    lacks_tools = not request.tools and any(
        isinstance(message, ExpertMessage) and message.tool_calls for message in request.messages
    )
    may_not_call = lacks_tools or (bool(request.tools) and not request.allow_tools)

    def finish_blocks(blocks: list[bytes]) -> list[bytes]:
        with_notice = [*blocks, to_bytes({"text": NO_MORE_CALLS})] if may_not_call else blocks
        return _add_cache_mark(with_notice) if has_cache else with_notice

    head = request_prefix(
        request, VENDOR, (settings, lacks_tools), lambda: _request_fields(request, settings, lacks_tools)
    )
    return request_body(head, (*turns.parts(finish_blocks), *([_CONTINUE] if ends_unfinished(request) else [])))


def turns_of(request: GenerationRequest, settings: BedrockSettings) -> TurnEncoder:
    """Return the Run's turns encoded so far for this model."""
    marks_errors, tools = accepts_error_status(request.model), tools_of(request)
    key = (VENDOR, marks_errors, settings.images, settings.documents, tools.key)
    return message_encoder(request, key, TurnEncoder, lambda: _BlockWriter(settings, tools, marks_errors).blocks)


def tools_of(request: GenerationRequest) -> WireTools:
    return wire_tools(request, CONVERSE)


def _request_fields(request: GenerationRequest, settings: BedrockSettings, lacks_tools: bool) -> JsonObject:
    """Return the body without messages: limits, sampling options, instruction, tools and result schema."""
    head: JsonObject = {}
    max_tokens, fields = limits_and_thinking(request, settings)
    limits: JsonObject = {
        "maxTokens": max_tokens,
        "temperature": temperature_of(request, settings),
        "topP": settings.top_p,
    }
    set_limits: JsonObject = {key: value for key, value in limits.items() if value is not None}
    if set_limits:
        head["inferenceConfig"] = set_limits
    if fields:
        head["additionalModelRequestFields"] = fields
    schema = schema_for(request, settings.structured_output, is_known=takes_schemas(request.model))
    if schema is not None:
        schema_text = to_bytes(schema).decode()
        structure: JsonObject = {"jsonSchema": {"name": "result", "schema": schema_text}}
        head["outputConfig"] = {"textFormat": {"type": "json_schema", "structure": structure}}
    tools: list[JsonValue] = [{"toolSpec": _encode_tool(tool)} for tool in tools_of(request).listed]
    if lacks_tools:
        tools.append(_NO_TOOL)
    if tools:
        head["toolConfig"] = {"tools": tools}
    if request.instruction.strip():
        has_cache = accepts_cache_marks(request.model, settings)
        head["system"] = [{"text": request.instruction}, *([_CACHE_POINT] if has_cache else [])]
    return {**head, "messages": []}


def _encode_tool(tool: WireTool) -> JsonObject:
    return {**tool.label, "inputSchema": {"json": tool.schema}}


def _add_cache_mark(blocks: list[bytes]) -> list[bytes]:
    """Insert the cache mark; Bedrock rejects one directly after a document."""
    end = len(blocks)
    while end and blocks[end - 1].startswith(_DOCUMENT):
        end -= 1
    return [*blocks[:end], to_bytes(_CACHE_POINT), *blocks[end:]] if end else blocks


class _BlockWriter:
    def __init__(self, settings: BedrockSettings, tools: WireTools, marks_errors: bool) -> None:
        self._settings = settings
        self._tools = tools
        self._marks_errors = marks_errors
        self._documents = 0

    def blocks(self, message: Message, blobs: Mapping[str, bytes]) -> list[JsonObject]:
        """Encode a message as content blocks."""
        match message:
            case UserMessage():
                blocks = self._encode_contents(message.contents, blobs)
                # the API rejects a document without a text
                return blocks if any("text" in block for block in blocks) else [_EMPTY_MESSAGE_BLOCK, *blocks]
            case ToolMessage():
                return self._encode_results(message.contents, blobs)
            case ExpertMessage():
                tools = self._tools
                blocks = [block for part in message.contents if (block := _encode_reply_part(part, tools)) is not None]
                text = blocks[-1].get("text") if blocks else None  # Claude refuses trailing blanks in a last reply
                return [*blocks[:-1], {"text": text.rstrip()}] if isinstance(text, str) else blocks
            case _:
                assert_never(message)

    def _encode_contents(self, contents: Iterable[ResultContent], blobs: Mapping[str, bytes]) -> list[JsonObject]:
        blocks = (
            _encode_text(part.text) if isinstance(part, TextPart) else self._encode_blob(part, blobs)
            for part in contents
        )
        return [block for block in blocks if block is not None]

    def _encode_blob(self, part: BlobPart, blobs: Mapping[str, bytes]) -> JsonObject | None:
        content = blobs.get(part.sha256, b"")
        if content and part.mime_type in IMAGE_TYPES and self._settings.images:
            kind = part.mime_type.removeprefix("image/")
            return {"image": {"format": kind, "source": {"bytes": as_base64(content)}}}
        if content and part.mime_type == PDF and self._settings.documents:
            return self._encode_document(content)
        if content and is_text(part.mime_type):
            return _encode_text(content.decode("utf-8", "replace"))
        return _encode_text(blob_placeholder(part))

    def _encode_document(self, content: bytes) -> JsonObject:
        """Encode a document. Names must differ within a request and must not look like an instruction to the model."""
        self._documents += 1
        name = f"Document {self._documents}"
        return {"document": {"format": "pdf", "name": name, "source": {"bytes": as_base64(content)}}}

    def _encode_results(self, results: Iterable[ToolResultPart], blobs: Mapping[str, bytes]) -> list[JsonObject]:
        """Encode results. Models with a status refuse media in a failed result, so these follow after all results."""
        blocks: list[JsonObject] = []
        media: list[JsonObject] = []
        for result in results:
            contents = self._encode_contents(result.contents, blobs)
            if result.is_error and self._marks_errors:
                media_blocks = [block for block in contents if "text" not in block]
                contents = [block for block in contents if "text" in block]
                if media_blocks:
                    media.append({"text": with_failed_result(result)})
                    media += media_blocks
            blocks.append(self._encode_result(result, contents))
        return blocks + media

    def _encode_result(self, result: ToolResultPart, contents: list[JsonObject]) -> JsonObject:
        block: JsonObject = {
            "toolUseId": legal_id(result.tool_call_id),
            "content": [*contents] or [{"text": NO_OUTPUT}],
        }
        if result.is_error and self._marks_errors:
            block["status"] = "error"
        return {"toolResult": block}


def _encode_text(text: str) -> JsonObject | None:
    return None if is_blank(text) else {"text": text}


def _encode_reply_part(part: ReplyPart, tools: WireTools) -> JsonObject | None:
    """Encode one part of an earlier reply; None for a part that this API does not accept."""
    match part:
        case TextPart():
            return _encode_text(part.text)
        case ToolCallPart():
            return {
                "toolUse": {
                    "toolUseId": legal_id(part.tool_call_id),
                    "name": tools.name(part.tool_name),
                    "input": tools.arguments(part),
                }
            }
        case ThinkingPart():
            return _encode_thinking(part)
        case ProviderToolPart():
            return _encode_text(part.shown)
        case _:
            assert_never(part)


def _encode_thinking(part: ThinkingPart) -> JsonObject | None:
    """Encode thinking; None without a signature of this vendor: models that do not sign thoughts reject them."""
    opaque = (part.opaque or {}).get(VENDOR)
    if not isinstance(opaque, dict):
        return None
    if "redacted" in opaque:
        return {"reasoningContent": {"redactedContent": opaque["redacted"]}}
    signed: JsonObject = {"text": part.thinking, "signature": opaque.get("signature", "")}
    return {"reasoningContent": {"reasoningText": signed}}
