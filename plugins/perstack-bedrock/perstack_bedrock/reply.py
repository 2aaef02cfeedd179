"""Decoders for the streams of both APIs.

Source: Amazon Bedrock API reference, "ConverseStream" (`ConverseStreamOutput`), "InvokeModelWithResponseStream"
(`ResponseStream`) and the errors of both.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from binascii import Error as NoBase64
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeVar, cast

from pydantic import Field, JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.base.usage import Usage
from perstack.core.messages.messages import ExpertMessage, FinishReason, ReplyPart, TextPart, ThinkingPart, ToolCallPart
from perstack.errors import ProviderError
from perstack.http_providers.errors import bad_response, error_from_status, stream_interrupted
from perstack.http_providers.event_streams import server_sent_events
from perstack.http_providers.replies import (
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
    join_arguments,
    read_arguments,
    read_event,
)
from perstack.ports.provider import Delta, Generation
from perstack_anthropic.messages_api import MessagesDecoder
from perstack_bedrock.request import VENDOR

if TYPE_CHECKING:
    from botocore.eventstream import EventStreamMessage


class _AwsFailure(Wire):
    message: Text = ""
    code: Text = ""


class _Failures(Wire):
    internal: _AwsFailure | None = Field(default=None, alias="internalServerException")
    model_stream: _AwsFailure | None = Field(default=None, alias="modelStreamErrorException")
    model_timeout: _AwsFailure | None = Field(default=None, alias="modelTimeoutException")
    service_unavailable: _AwsFailure | None = Field(default=None, alias="serviceUnavailableException")
    throttling: _AwsFailure | None = Field(default=None, alias="throttlingException")
    validation: _AwsFailure | None = Field(default=None, alias="validationException")

    def to_error(self) -> ProviderError | None:
        """Return the error of the event, with the status that an HTTP response would have; None without one."""
        for name in self.model_fields_set & _STATUS_OF.keys():
            failure: _AwsFailure | None = getattr(self, name)
            if failure is not None:
                return error_from_status(failure.message or failure.code or name, _STATUS_OF[name])
        return None


_STATUS_OF = {
    "validation": 400,
    "model_timeout": 408,
    "model_stream": 424,
    "throttling": 429,
    "internal": 500,
    "service_unavailable": 503,
}
"""HTTP status of each error. Source: service model of bedrock-runtime, `error.httpStatusCode` of each exception."""


class _ToolUse(Wire):
    id: Text = Field(default="", alias="toolUseId")
    name: Text = ""
    type: Text = ""  # set for tools that Bedrock itself runs; their calls are ignored
    input: JsonValue = None


class _ReasoningText(Wire):
    text: Text = ""
    signature: Text = ""


class _Reasoning(Wire):
    text: Text = ""
    signature: Text = ""
    redacted: Text = Field(default="", alias="redactedContent")
    # content of a reply that is not streamed
    whole: OrNone[_ReasoningText] = Field(default=None, alias="reasoningText")


class _Change(Wire):
    """Start or piece of a block, or a whole block. Fields that its type lacks are empty or None."""

    text: Text = ""
    tool_use: OrNone[_ToolUse] = Field(default=None, alias="toolUse")
    reasoning: OrNone[_Reasoning] = Field(default=None, alias="reasoningContent")


class _BlockEvent(Wire):
    index: Index = Field(default=None, alias="contentBlockIndex")
    start: _Change | None = None
    delta: _Change | None = None


class _Stop(Wire):
    reason: Text = Field(default="", alias="stopReason")


class _ConverseUsage(Wire):
    sent: Count = Field(default=None, alias="inputTokens")
    generated: Count = Field(default=None, alias="outputTokens")
    cached: Count = Field(default=None, alias="cacheReadInputTokens")
    written: Count = Field(default=None, alias="cacheWriteInputTokens")


class _Metadata(Wire):
    usage: OrNone[_ConverseUsage] = None


class _ConverseMessage(Wire):
    content: list[_Change] | None = None


class _ConverseOutput(Wire):
    message: OrNone[_ConverseMessage] = None


class _ConverseEvent(_Failures):
    """An event of the stream, or a whole reply in one document."""

    message_start: JsonValue = Field(default=None, alias="messageStart")
    start: _BlockEvent | None = Field(default=None, alias="contentBlockStart")
    delta: _BlockEvent | None = Field(default=None, alias="contentBlockDelta")
    block_stop: JsonValue = Field(default=None, alias="contentBlockStop")
    stop: _Stop | None = Field(default=None, alias="messageStop")
    metadata: OrNone[_Metadata] = None
    output: OrNone[_ConverseOutput] = None
    stop_reason: Text = Field(default="", alias="stopReason")
    usage: OrNone[_ConverseUsage] = None


_FINISH_REASONS: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "toolCalls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "guardrail_intervened": "refusal",
    "content_filtered": "refusal",
    "refusal": "refusal",
}


class _ConverseBlock:
    def __init__(self, index: int, on_delta: Callable[[Delta], None]) -> None:
        self.index = index
        self.call: _ToolUse | None = None
        self.text = StreamedText(on_delta, "text")
        self.thinking = StreamedText(on_delta, "reasoning")
        self.signature: list[str] = []
        self.redacted: list[str] = []
        self.json: list[str] = []

    def takes(self, piece: _Change) -> bool:
        """Return whether a piece is of this block's kind."""
        has_reasoning = bool(self.thinking.text or any(self.signature) or any(self.redacted))
        kinds = (self.call is not None, bool(self.text.text), has_reasoning)
        piece_kinds = (piece.tool_use is not None, bool(piece.text), piece.reasoning is not None)
        return (
            not any(kinds)
            or not any(piece_kinds)
            or any(kind and other for kind, other in zip(kinds, piece_kinds, strict=True))
        )

    def end(self) -> None:
        """Show incomplete characters that remain at the end."""
        self.text.end()
        self.thinking.end()


class ConverseDecoder:
    """Decoder of a ConverseStream reply from the data of its events."""

    def __init__(self, on_delta: Callable[[Delta], None]) -> None:
        self._on_delta = on_delta
        self._blocks: list[_ConverseBlock] = []
        self._stop_reason: str | None = None
        self._counts: dict[str, int] = {}

    def feed(self, data: str) -> ReplyProgress:
        """Process one event. Raises ProviderError for an error event."""
        stream_event = _parse_event(_ConverseEvent, data)
        if stream_event.usage is not None:
            highest(self._counts, stream_event.usage.model_dump())
        if stream_event.delta is not None and stream_event.delta.delta is not None:
            self._extend_block(
                self._find_or_start_block(stream_event.delta.index, stream_event.delta.delta), stream_event.delta.delta
            )
        elif stream_event.start is not None and stream_event.start.start is not None:
            self._start_block(stream_event.start.index, stream_event.start.start)
        elif stream_event.stop is not None:
            self._stop_reason = stream_event.stop.reason
        elif stream_event.metadata is not None:
            if stream_event.metadata.usage is not None:
                highest(self._counts, stream_event.metadata.usage.model_dump())
            return ReplyProgress.IDLE if self._stop_reason is None else ReplyProgress.LAST
        elif stream_event.output is not None and stream_event.output.message is not None:
            return self._add_whole_message(stream_event, stream_event.output.message)
        elif not stream_event.model_fields_set:
            return ReplyProgress.IDLE
        return ReplyProgress.MORE if self._stop_reason is None else ReplyProgress.FINISHED

    def finish(self) -> Generation:
        """Return the reply. Raises ProviderError if the stream ended early."""
        if self._stop_reason is None:
            raise stream_interrupted("there was no messageStop")
        if self._stop_reason.startswith("malformed_"):
            raise bad_response(f"Bedrock could not read the model's reply: {self._stop_reason}", retryable=True)
        for block in self._blocks:
            block.end()
        indexes = [block.index for block in self._blocks]
        if len(set(indexes)) == len(indexes):
            self._blocks.sort(key=lambda block: block.index)
        reply = ExpertMessage(
            contents=tuple(part for block in self._blocks if (part := _decode_block(block)) is not None)
        )
        check_end(self._stop_reason, _FINISH_REASONS, reply.contents, has_mark=True, missing="there was no messageStop")
        return Generation(
            reply, _convert_usage(self._counts), finish_reason(_FINISH_REASONS.get(self._stop_reason, "other"), reply)
        )

    def _add_whole_message(self, stream_event: _ConverseEvent, message: _ConverseMessage) -> ReplyProgress:
        for index, change in enumerate(message.content or ()):
            self._extend_block(self._start_block(index, change), change.model_copy(update={"tool_use": None}))
        self._stop_reason = stream_event.stop_reason
        return ReplyProgress.LAST

    def _start_block(self, index: int | None, change: _Change) -> _ConverseBlock:
        if self._blocks:
            self._blocks[-1].end()
        block = _ConverseBlock(len(self._blocks) if index is None else index, self._on_delta)
        block.call = change.tool_use
        self._blocks.append(block)
        return block

    def _find_or_start_block(self, index: int | None, piece: _Change) -> _ConverseBlock:
        """Return the block of a piece. Only calls have a start."""
        for block in reversed(self._blocks):
            if (index is None or block.index == index) and block.takes(piece):
                return block
        if piece.tool_use is not None:
            raise bad_response(f"there is a delta of block {index}, which has no start", retryable=True)
        return self._start_block(index, _Change())

    def _extend_block(self, block: _ConverseBlock, piece: _Change) -> None:
        block.text.add(piece.text)
        if piece.tool_use is not None:
            block.json.append(arguments_text(piece.tool_use.input))
        if piece.reasoning is not None:
            whole = piece.reasoning.whole or _ReasoningText()
            block.signature.append(piece.reasoning.signature or whole.signature)
            block.redacted.append(piece.reasoning.redacted)
            block.thinking.add(piece.reasoning.text or whole.text)


_EventT = TypeVar("_EventT", bound=_Failures)


class _PayloadPart(Wire):
    bytes: Text = ""


class _ChunkEvent(_Failures):
    chunk: _PayloadPart | None = None


class ChunkDecoder:
    """Decoder of an InvokeModelWithResponseStream reply, whose chunks contain events of Anthropic's format."""

    def __init__(self, on_delta: Callable[[Delta], None]) -> None:
        self._messages = MessagesDecoder(on_delta)

    def feed(self, data: str) -> ReplyProgress:
        """Process one event. Raises ProviderError for an error event."""
        chunk_event = _parse_event(_ChunkEvent, data)
        if chunk_event.chunk is not None:
            return self._messages.feed(_decode_base64(chunk_event.chunk.bytes).decode("utf-8", "replace"))
        return ReplyProgress.IDLE if chunk_event.model_fields_set else self._messages.feed(data)

    def finish(self) -> Generation:
        """Return the reply. Raises ProviderError if the stream ended early."""
        return self._messages.finish()


def _parse_event(kind: type[_EventT], data: str) -> _EventT:
    event = read_event(kind, data, "Bedrock")
    failure = event.to_error()
    if failure is not None:
        raise failure
    return event


def _convert_usage(counts: Mapping[str, int]) -> Usage:
    """Convert the token counts. Bedrock's `inputTokens` exclude cached tokens; ours include them."""
    cached, cache_writes = counts.get("cached", 0), counts.get("written", 0)
    input_tokens = counts.get("sent", 0) + cached + cache_writes
    return Usage.of(input_tokens, counts.get("generated", 0), cached=cached, cache_writes=cache_writes)


def _decode_block(block: _ConverseBlock) -> ReplyPart | None:
    if block.call is not None:
        return _decode_call(block.call, block.json) if not block.call.type else None
    if any(block.redacted):
        return ThinkingPart(thinking="", opaque={VENDOR: {"redacted": _join_base64(block.redacted)}})
    signature, thinking, text = "".join(block.signature), block.thinking.text, block.text.text
    if thinking or signature:
        opaque: JsonObject | None = {VENDOR: {"signature": signature}} if signature else None
        return ThinkingPart(thinking=thinking, opaque=opaque)
    return TextPart(text=text) if text else None


def _decode_call(tool_use: _ToolUse, pieces: list[str]) -> ToolCallPart:
    args, raw_args = read_arguments(join_arguments([arguments_text(tool_use.input), *pieces]))
    return ToolCallPart(tool_call_id=tool_use.id, tool_name=tool_use.name, args=args, raw_args=raw_args)


def _join_base64(pieces: list[str]) -> JsonValue:
    """Join pieces of base64 that were each encoded separately."""
    return b64encode(b"".join(map(_decode_base64, pieces))).decode("ascii")


def _decode_base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except NoBase64 as error:
        raise bad_response(f"an event holds no base64: {text[:200]}", retryable=True) from error


# AWS's binary event stream, parsed and checked by botocore.
#
# Source: Smithy specification, "Amazon Event Stream"; botocore.eventstream.

_LENGTHS_BYTES = 8  # a frame begins with two lengths, of which at least one byte is 0
MEDIA_TYPE = "application/vnd.amazon.eventstream"


async def aws_events(body: AsyncIterable[bytes]) -> AsyncGenerator[str]:
    """Yield each event as a JSON object of its type and payload. Raises ProviderError for a damaged frame.

    A body that is not in this framing is read as a document, page or text.
    """
    from botocore.eventstream import EventStreamBuffer, ParserError

    buffer = EventStreamBuffer()
    chunks = aiter(body)
    first = b""
    while len(first) < _LENGTHS_BYTES and (chunk := await anext(chunks, b"")):
        first += chunk
    if first and 0 not in first[:_LENGTHS_BYTES]:
        async with aclosing(server_sent_events(_prepend(first, chunks))) as events:
            async for text in events:
                yield text
        return
    async for chunk in _prepend(first, chunks):
        buffer.add_data(chunk)
        try:
            texts = [_frame_to_json(message) for message in buffer]
        except ParserError as error:
            raise stream_interrupted(f"a frame is damaged: {error}") from error
        for text in texts:
            yield text


async def _prepend(first: bytes, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    yield first
    async for chunk in chunks:
        yield chunk


def _frame_to_json(message: EventStreamMessage) -> str:
    headers = cast("dict[str, JsonValue]", message.headers)  # the stubs declare numbers
    if headers.get(":message-type") == "error":
        error = {"code": headers.get(":error-code"), "message": headers.get(":error-message")}
        return json.dumps({"error": error})
    kind = headers.get(":event-type") or headers.get(":exception-type") or ""
    # Composed as text: the payload is JSON already, and is parsed only once.
    return f"{{{json.dumps(kind)}: {message.payload.decode('utf-8', 'replace') or 'null'}}}"
