"""Decoder for the stream of `streamGenerateContent`.

Source: Gemini API reference, "Generating content" (`GenerateContentResponse`, `Candidate`, `UsageMetadata`), and
"Thought signatures".
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import chain, islice
from typing import cast

from pydantic import Field, JsonValue, ValidationError

from perstack.core.base.records import JsonObject, layers
from perstack.core.base.usage import Usage
from perstack.core.messages.messages import (
    ExpertMessage,
    FinishReason,
    ProviderToolPart,
    ReplyPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    readable_result,
)
from perstack.errors import ProviderError
from perstack.http_providers.errors import bad_response, stream_interrupted
from perstack.http_providers.messages import ProviderToolBlocks
from perstack.http_providers.replies import (
    END_MARK,
    TOO_DEEP,
    Count,
    OrNone,
    ReplyProgress,
    StreamedText,
    Text,
    Wire,
    arguments_text,
    check_end,
    finish_reason,
    highest,
    is_too_deep,
    join_arguments,
    read_arguments,
    read_event,
    whole_json,
)
from perstack.ports.provider import Delta, Generation
from perstack_google.request import VENDOR

_CALL_LAYERS = 7  # nesting levels of an event down to its calls: candidates, content, parts, functionCall
_MAX_DIGITS = 4_000  # maximum digits of an integer that are parsed; `int` accepts at most 4,300


class _FunctionCall(Wire):
    id: Text = ""
    name: Text = ""
    args: JsonValue = None


class _GeminiPart(Wire):
    text: Text = ""
    thought: OrNone[bool] = None
    signature: Text = Field(default="", alias="thoughtSignature")
    call: _FunctionCall | None = Field(default=None, alias="functionCall")
    tool_call: JsonObject | None = Field(default=None, alias="toolCall")
    tool_response: JsonObject | None = Field(default=None, alias="toolResponse")
    code: JsonObject | None = Field(default=None, alias="executableCode")
    code_result: JsonObject | None = Field(default=None, alias="codeExecutionResult")

    @property
    def is_of_tool(self) -> bool:
        """True for a use of a tool that Google runs itself, or its result."""
        return any(use is not None for use in (self.tool_call, self.tool_response, self.code, self.code_result))


class _Web(Wire):
    uri: Text = ""
    title: Text = ""


class _Chunk(Wire):
    web: _Web | None = None


class _Grounding(Wire):
    queries: list[str] | None = Field(default=None, alias="webSearchQueries")
    chunks: list[_Chunk] | None = Field(default=None, alias="groundingChunks")

    @property
    def lines(self) -> list[str]:
        """The title and address of each page that was found."""
        pages = (chunk.web for chunk in self.chunks or () if chunk.web is not None)
        return [f"{page.title} {page.uri}".strip() for page in pages]


class _ReadPage(Wire):
    url: Text = Field(default="", alias="retrievedUrl")
    status: Text = Field(default="", alias="urlRetrievalStatus")


class _ReadPages(Wire):
    pages: list[_ReadPage] | None = Field(default=None, alias="urlMetadata")


class _Content(Wire):
    parts: list[_GeminiPart] | None = None


class _Candidate(Wire):
    content: OrNone[_Content] = None
    finish_reason: Text = Field(default="", alias="finishReason")
    finish_message: Text = Field(default="", alias="finishMessage")
    grounding: OrNone[_Grounding] = Field(default=None, alias="groundingMetadata")
    read: OrNone[_ReadPages] = Field(default=None, alias="urlContextMetadata")


class _UsageMetadata(Wire):
    prompt: Count = Field(default=None, alias="promptTokenCount")
    tool_use: Count = Field(default=None, alias="toolUsePromptTokenCount")
    candidates: Count = Field(default=None, alias="candidatesTokenCount")
    thoughts: Count = Field(default=None, alias="thoughtsTokenCount")
    cached: Count = Field(default=None, alias="cachedContentTokenCount")


class _Feedback(Wire):
    block_reason: Text = Field(default="", alias="blockReason")


class _GenerateContentResponse(Wire):
    candidates: list[_Candidate] | None = None
    usage: OrNone[_UsageMetadata] = Field(default=None, alias="usageMetadata")
    feedback: _Feedback | None = Field(default=None, alias="promptFeedback")


_FINISH_REASONS: dict[str, FinishReason] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "CONTINUATION": "length",
    **dict.fromkeys(
        (
            "SAFETY",
            "RECITATION",
            "LANGUAGE",
            "BLOCKLIST",
            "PROHIBITED_CONTENT",
            "SPII",
            "IMAGE_SAFETY",
            "IMAGE_PROHIBITED_CONTENT",
            "IMAGE_RECITATION",
            "MODEL_ARMOR",
            "ESCALATION",
            "PUP_LIMITED_DISABLED",
        ),
        "refusal",
    ),
}

_INVALID = frozenset({"MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL"})
"""Finish reasons of malformed replies, which are discarded and generated again; a model seldom repeats a mistake."""


class GeminiDecoder:
    """Decoder of a reply from the data of its stream's events.

    A signature that arrives with text is kept in an empty ThinkingPart before it.
    """

    def __init__(self, on_delta: Callable[[Delta], None], *, bills_queries: bool = True) -> None:
        """Pass each piece of text to `on_delta`. Without `bills_queries` all searches of a reply are charged as one."""
        self._on_delta = on_delta
        self._bills_queries = bills_queries
        self._grounding = _Grounding()
        self._parse_response = _ReadPages()
        self._parts: list[_GeminiPart] = []
        self._texts: list[StreamedText] = []  # text of each part
        self._counts: dict[str, int] = {}
        self._ending: _Candidate | None = None
        self._blocked = ""
        self._has_begun = False
        self._has_mark = False

    def feed(self, data: str) -> ReplyProgress:
        """Process one event. Raises ProviderError for an error event.

        There is no end mark: parts may follow a finish reason, which some servers send with every event.
        """
        if data.strip() == END_MARK:
            self._has_mark = True
            return ReplyProgress.LAST
        response = _parse_response(data)
        if response.usage is not None:
            highest(self._counts, response.usage.model_dump())
        if response.feedback is not None:
            self._blocked = response.feedback.block_reason or self._blocked
        has_begun, self._has_begun = self._has_begun, True
        has_more = not has_begun
        for candidate in (response.candidates or ())[:1]:
            has_more = self._add_candidate(candidate) or has_more
        if self._is_complete:
            return ReplyProgress.FINISHED if has_more or self._blocked else ReplyProgress.IDLE
        return ReplyProgress.MORE if has_more else ReplyProgress.IDLE

    def finish(self) -> Generation:
        """Return the reply. Raises ProviderError if the stream ended early, or the reply is malformed."""
        if not self._is_complete and not self._has_mark:
            raise stream_interrupted("there was no finishReason")
        if self._ending is None and self._blocked:
            text = f"The prompt was blocked by Google: {self._blocked}"
            return Generation(ExpertMessage(contents=(TextPart(text=text),)), self._convert_usage(), "refusal")
        ending = self._ending or _Candidate()
        if ending.finish_reason in _INVALID:
            detail = f"{ending.finish_reason} {ending.finish_message}".strip()
            raise bad_response(f"the model's reply is invalid: {detail}", retryable=True)
        collector = ProviderToolBlocks(VENDOR)
        for piece, texts in zip(self._parts, self._texts, strict=True):
            if piece.is_of_tool:
                _add_tool(collector, piece, self._grounding)
            else:
                for part in _decode_piece(piece, texts.end()):
                    collector.part(part)
        reply = ExpertMessage(contents=self._add_metadata_uses(collector.parts()))
        check_end(
            ending.finish_reason, _FINISH_REASONS, reply.contents, has_mark=True, missing="there was no finishReason"
        )
        reason = _FINISH_REASONS.get(ending.finish_reason, "other")
        return Generation(reply, self._add_charged_uses(reply), finish_reason(reason, reply))

    def _add_metadata_uses(self, parts: tuple[ReplyPart, ...]) -> tuple[ReplyPart, ...]:
        """Add the uses of tools that the API reports only in metadata, and that are not sent back."""
        tool_names = {part.tool_name for part in parts if isinstance(part, ProviderToolPart)}
        uses: list[ReplyPart] = []
        queries, pages = self._grounding.queries or [], self._parse_response.pages or []
        if queries and "webSearch" not in tool_names:
            result = readable_result(self._grounding.lines) or "nothing"
            args: JsonObject = {"queries": [*queries]}
            uses.append(ProviderToolPart(tool_name="webSearch", args=args, result=result, opaque=_NOTHING_BACK))
        for page in pages if "webFetch" not in tool_names else ():
            is_error = not page.status.endswith("_SUCCESS")
            url: JsonObject = {"url": page.url}
            result = page.status or "done"
            uses.append(
                ProviderToolPart(tool_name="webFetch", args=url, result=result, is_error=is_error, opaque=_NOTHING_BACK)
            )
        return (*uses, *parts)

    def _add_charged_uses(self, reply: ExpertMessage) -> Usage:
        """Return the usage with the searches that are charged. Source: Gemini API, "Pricing", grounding."""
        calls = [part for part in reply.provider_tools if part.tool_name == "webSearch" and part.args]
        queries = [part.args.get("queries") for part in calls]
        query_count = sum(len(query_list) if isinstance(query_list, list) else 1 for query_list in queries)
        count = max(query_count, len(self._grounding.queries or ()))
        usage = self._convert_usage()
        uses = {"webSearch": count if self._bills_queries else 1}
        return usage.model_copy(update={"provider_tools": uses}) if count else usage

    @property
    def _is_complete(self) -> bool:
        return self._ending is not None or bool(self._blocked)

    def _add_candidate(self, candidate: _Candidate) -> bool:
        """Add the parts of a candidate. Return False if it has none."""
        has_more = False
        for part in (candidate.content or _Content()).parts or ():
            if self._continues(part):
                has_more = self._texts[-1].add(part.text) or has_more
            elif part.call is not None or part.is_of_tool or part.text or part.signature:
                self._add_part(part)
                has_more = True
        if candidate.grounding is not None and (candidate.grounding.queries or candidate.grounding.chunks):
            self._grounding = candidate.grounding
        self._parse_response = candidate.read or self._parse_response
        if candidate.finish_reason and candidate.finish_reason != "FINISH_REASON_UNSPECIFIED":
            has_more = has_more or self._ending is None
            self._ending = candidate
        return has_more

    def _add_part(self, part: _GeminiPart) -> None:
        if self._texts:
            self._texts[-1].end()
        self._parts.append(part)
        self._texts.append(StreamedText(self._on_delta, "reasoning" if part.thought else "text"))
        if part.call is None:
            self._texts[-1].add(part.text)

    def _continues(self, part: _GeminiPart) -> bool:
        """Return whether a piece continues the part before it. A signed piece is a separate part."""
        if not self._parts or part.call is not None or part.is_of_tool or part.signature:
            return False
        last = self._parts[-1]
        return (
            last.call is None
            and not last.is_of_tool
            and not last.signature
            and bool(last.thought) == bool(part.thought)
        )

    def _convert_usage(self) -> Usage:
        """Return the usage. The API counts thoughts separately; here they are part of the output."""
        thoughts = self._counts.get("thoughts", 0)
        input_tokens = self._counts.get("prompt", 0) + self._counts.get("tool_use", 0)
        output_tokens = self._counts.get("candidates", 0) + thoughts
        return Usage.of(input_tokens, output_tokens, reasoning=thoughts, cached=self._counts.get("cached", 0))


def _parse_response(data: str) -> _GenerateContentResponse:
    try:
        return read_event(_GenerateContentResponse, data, "the Gemini API")
    except ProviderError as error:
        response = _parse_without_unreadable_arguments(data) if error.name == "BadResponse" else None
        if response is None:
            raise
        return response


def _parse_without_unreadable_arguments(data: str) -> _GenerateContentResponse | None:
    """Parse an event without unstorable arguments: its usage was paid for. None if these are not the cause."""
    try:
        event: JsonValue = json.loads(data, parse_int=_parse_integer)
    except (ValueError, RecursionError):
        return None
    for part in chain.from_iterable(islice(layers(event), _CALL_LAYERS)):
        if isinstance(part, dict) and is_too_deep(cast("JsonObject", part).get("args")):
            part["args"] = TOO_DEEP
    try:
        return _GenerateContentResponse.model_validate(event)
    except ValidationError:
        return None


def _parse_integer(digits: str) -> float:
    """Parse an integer; one of thousands of digits becomes infinite, which is rejected as an argument."""
    return int(digits) if len(digits) < _MAX_DIGITS else math.inf


_NOTHING_BACK: JsonObject = {VENDOR: {"blocks": []}}

_TOOL_TYPES = {"GOOGLE_SEARCH_WEB": "webSearch", "URL_CONTEXT": "webFetch"}


def _add_tool(collector: ProviderToolBlocks, piece: _GeminiPart, grounding: _Grounding) -> None:
    """Add the uses of built-in tools in a piece, and their results."""
    signed: JsonObject = {"thoughtSignature": piece.signature} if piece.signature else {}
    if piece.tool_call is not None:
        args, tool = piece.tool_call.get("args"), _tool_type(piece.tool_call)
        block: JsonObject = {"toolCall": piece.tool_call, **signed}
        collector.use(_call_id(piece.tool_call), tool, args if isinstance(args, dict) else {}, block)
    if piece.tool_response is not None:
        tool = _tool_type(piece.tool_response)
        lines = grounding.lines if tool == "webSearch" else []
        shown_lines = lines or [json.dumps(piece.tool_response.get("response"), ensure_ascii=False)]
        response: JsonObject = {"toolResponse": piece.tool_response, **signed}
        collector.result(_call_id(piece.tool_response), tool, shown_lines, response, is_error=False)
    if piece.code is not None:
        arguments: JsonObject = {"code": piece.code.get("code")}
        collector.use(_call_id(piece.code), "codeExecution", arguments, {"executableCode": piece.code, **signed})
    if piece.code_result is not None:
        output, outcome = piece.code_result.get("output"), piece.code_result.get("outcome")
        printed: JsonObject = {"codeExecutionResult": piece.code_result, **signed}
        is_error = outcome not in (None, "OUTCOME_OK")
        shown_lines = [output] if isinstance(output, str) else []
        collector.result(_call_id(piece.code_result), "codeExecution", shown_lines, printed, is_error=is_error)


def _tool_type(fields: JsonObject) -> str:
    kind = fields.get("toolType")
    return _TOOL_TYPES.get(str(kind), str(kind))


def _call_id(fields: JsonObject) -> str:
    value = fields.get("id")
    return value if isinstance(value, str) else ""


def _decode_piece(piece: _GeminiPart, text: str) -> list[ReplyPart]:
    signed: JsonObject = {"signature": piece.signature} if piece.signature else {}
    if piece.call is not None:
        return [_decode_call(piece.call, {VENDOR: signed} if signed else None)]
    if piece.thought:
        return [ThinkingPart(thinking=text, opaque={VENDOR: signed} if signed else None)]
    if not signed:
        return [TextPart(text=text)]
    mark = ThinkingPart(thinking="", opaque={VENDOR: {**signed, "on": "text" if text else "empty"}})
    return [mark, TextPart(text=text)] if text else [mark]


def _decode_call(function_call: _FunctionCall, opaque: JsonObject | None) -> ToolCallPart:
    args, raw_args = whole_json(function_call.args), None
    if not isinstance(args, dict):
        args, raw_args = read_arguments(join_arguments([arguments_text(args)]))
    return ToolCallPart(
        tool_call_id=function_call.id, tool_name=function_call.name, args=args, raw_args=raw_args, opaque=opaque
    )
