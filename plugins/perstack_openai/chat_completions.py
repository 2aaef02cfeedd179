"""Chat Completions: pure functions that encode a request, and a decoder for the stream of a reply.

The decoder also accepts the deviations of compatible servers; `kept_reasoning` keeps the fields that these need back
with a reply. Source of the reply side: OpenAI API reference, "Chat Completions", section "Streaming" (the chunk
object).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from typing import Literal, assert_never

from pydantic import AliasChoices, AliasPath, ConfigDict, Field, JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.base.text import is_blank
from perstack.core.base.usage import Usage
from perstack.core.messages.messages import (
    ExpertMessage,
    FinishReason,
    Message,
    ReplyPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolMessage,
    UserMessage,
)
from perstack.dataclass import dataclass
from perstack.http_providers.messages import (
    CONTINUE,
    NO_TEXT,
    REQUIRED_FIELDS,
    ListEncoder,
    ends_unfinished,
    message_encoder,
    request_body,
    request_prefix,
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
    highest,
    is_object,
    join_arguments,
    parsed,
    read_arguments,
    read_event,
    whole_characters,
)
from perstack.http_providers.schema_rules import OPENAI
from perstack.http_providers.wire_tools import WireTool, WireTools, wire_tools
from perstack.ports.provider import Delta, Generation, GenerationRequest
from perstack_openai.dialect import ContentEncoder, Dialect, effort_of, with_error_prefix
from perstack_openai.kept_reasoning import (
    KeptFields,
    OpaqueOwner,
    Piece,
    ThinkTags,
    call_fields,
    message_fields,
    plain_thinking,
    readable_reasoning,
    thinking_parts,
    thinking_text,
)
from perstack_openai.strict_messages import AlternatingEncoder, BridgingEncoder

# Source of the request side: OpenAI API reference, "Chat Completions", section "Create chat completion"; guides "Images
# and vision" and "File inputs".


def encode_chat(request: GenerationRequest, dialect: Dialect, blobs: Mapping[str, bytes]) -> bytes:
    """Encode the body of `POST /chat/completions`.

    `blobs` has the blobs of the messages that `items_of_chat` has not encoded yet.
    """
    dialect = dialect.adapted(request.adaptations)
    items = items_of_chat(request, dialect)
    items.extend(request.messages, blobs)
    prefix = request_prefix(request, "chat", dialect, lambda: _request_fields(request, dialect))
    return request_body(prefix, (*items.parts, *([_CONTINUE] if ends_unfinished(request) else [])))


_CONTINUE = b',{"role":"user","content":"%s"}' % CONTINUE.encode()


def items_of_chat(request: GenerationRequest, dialect: Dialect) -> ListEncoder:
    """Return the Run's messages encoded so far for this server."""
    opaque_owner, tools = OpaqueOwner(dialect.vendor, request.model), wire_tools(request, OPENAI)

    def write(message: Message, blobs: Mapping[str, bytes]) -> list[JsonObject]:
        return _encode_message(message, ContentEncoder(dialect, blobs, "text", _encode_attachment), opaque_owner, tools)

    return message_encoder(request, ("chat", dialect, opaque_owner, tools.key), _encoder_for(dialect), lambda: write)


def _encoder_for(dialect: Dialect) -> type[ListEncoder]:
    if dialect.refuses("user after tool"):
        return BridgingEncoder
    return AlternatingEncoder if dialect.refuses("consecutive users") else ListEncoder


def _request_fields(request: GenerationRequest, dialect: Dialect) -> JsonObject:
    """Return the body without messages: model, limits, sampling and reasoning options, tools, result schema."""
    head: JsonObject = {"model": request.model, "stream": True, "stream_options": {"include_usage": True}}
    limit = dialect.limit_name
    options: JsonObject = {
        **({} if limit is None else {limit: dialect.max_reply_tokens(request)}),
        "temperature": dialect.temperature_for(request),
        "top_p": dialect.top_p,
        **_reasoning_fields(request, dialect),
    }
    head.update({name: value for name, value in options.items() if value is not None})
    tools: list[JsonValue] = [_encode_tool(tool) for tool in wire_tools(request, OPENAI).listed]
    if tools:
        head["tools"] = tools
    if tools and not request.allow_tools:
        head["tool_choice"] = "none"
    schema = dialect.schema_format(request)
    if schema is not None:
        head["response_format"] = {"type": "json_schema", "json_schema": schema}
    head = {
        name: value
        for name, value in head.items()
        if name in REQUIRED_FIELDS or name == limit or not dialect.refuses(name)
    }
    head["messages"] = [{"role": "system", "content": request.instruction}] if request.instruction.strip() else []
    return head


def _reasoning_fields(request: GenerationRequest, dialect: Dialect) -> JsonObject:
    """Return the reasoning fields: an effort, and the switch of endpoints that have one."""
    effort = effort_of(request.model, request.reasoning_budget, dialect)
    if effort is None:
        needs_none = request.reasoning_budget is None and request.tools
        return {"reasoning_effort": "none"} if needs_none and _refuses_tools(request.model, dialect) else {}
    switch = dialect.profile.thinking_switch
    if switch != "none" and effort == "none":
        return {"thinking": {"type": "disabled"}}
    enabled: JsonObject = {"thinking": {"type": "enabled"}} if switch == "on and off" else {}
    return {**enabled, "reasoning_effort": effort}


def _refuses_tools(model: str, dialect: Dialect) -> bool:
    models = dialect.profile.models.call_only_without_reasoning
    return models is not None and dialect.reasons(model) and re.search(models, model) is not None


def _encode_tool(tool: WireTool) -> JsonObject:
    return {"type": "function", "function": {**tool.label, "parameters": tool.schema}}


def _encode_message(
    message: Message, contents: ContentEncoder, opaque_owner: OpaqueOwner, tools: WireTools
) -> list[JsonObject]:
    match message:
        case UserMessage():
            return [{"role": "user", "content": contents.encode(message.contents) or NO_TEXT}]
        case ToolMessage():
            return _encode_results(message, contents)
        case ExpertMessage():
            return _encode_reply(message, contents.dialect, opaque_owner, tools)
        case _:
            assert_never(message)


def _encode_reply(
    message: ExpertMessage, dialect: Dialect, opaque_owner: OpaqueOwner, tools: WireTools
) -> list[JsonObject]:
    """Encode an earlier reply; empty for one without text and calls."""
    calls: list[JsonValue] = [_encode_call(part, dialect, opaque_owner, tools) for part in message.tool_calls]
    text = message.readable
    if not calls and is_blank(text):
        return []
    fields = {**_required_reasoning(message, dialect, opaque_owner), **message_fields(message, opaque_owner)}
    reply: JsonObject = {
        "role": "assistant",
        **_encode_reply_content(text, fields, dialect),
        **_accepted_fields(fields, dialect),
    }
    if calls:
        reply["tool_calls"] = calls
    return [reply]


def _encode_reply_content(text: str, fields: JsonObject, dialect: Dialect) -> JsonObject:
    """Return the content of a reply, with the reasoning that came inside it, which is removed from `fields`."""
    parts, tagged_thinking = fields.pop("_content", None), fields.pop("_tags", None)
    if isinstance(parts, list):
        text_part: JsonObject = {"type": "text", "text": text}
        return {"content": parts if is_blank(text) else [*parts, text_part]}
    if isinstance(tagged_thinking, str):
        return {"content": tagged_thinking + text}
    if not is_blank(text):
        return {"content": text.rstrip()}
    accepted_forms = [form for form in _NO_CONTENT if form not in dialect.refused]
    accepted_forms.sort(key=lambda form: form in dialect.profile.refuses)
    return _NO_CONTENT[accepted_forms[0]] if accepted_forms else {"content": NO_TEXT}


_NO_CONTENT: Mapping[str, JsonObject] = {
    "null content": {"content": None},
    "empty content": {"content": ""},
    "absent content": {},
}
"""Forms of the content of a reply that has only calls. An endpoint that refuses all of them gets a text."""


def _required_reasoning(message: ExpertMessage, dialect: Dialect, opaque_owner: OpaqueOwner) -> JsonObject:
    """Return the reasoning field of a server that rejects a history of calls without one, even an empty one."""
    name = dialect.required_reasoning_field(opaque_owner.model)
    return {} if name is None else {name: plain_thinking(message) or dialect.profile.no_reasoning}


def _encode_call(part: ToolCallPart, dialect: Dialect, opaque_owner: OpaqueOwner, tools: WireTools) -> JsonObject:
    return {
        "id": dialect.call_id(part.tool_call_id),
        "type": "function",
        "function": {
            "name": tools.name(part.tool_name),
            "arguments": json.dumps(tools.arguments(part), ensure_ascii=False),
        },
        **_accepted_fields(call_fields(part, opaque_owner), dialect),
    }


def _accepted_fields(fields: JsonObject, dialect: Dialect) -> JsonObject:
    return {name: value for name, value in fields.items() if not dialect.refuses(f"messages.{name}")}


def _encode_results(message: ToolMessage, contents: ContentEncoder) -> list[JsonObject]:
    """Encode one message per result. Files, which a tool message cannot hold, follow in one user message."""
    messages: list[JsonObject] = []
    attachments: list[JsonValue] = []
    for result in message.contents:
        call_id = contents.dialect.call_id(result.tool_call_id)
        parts = contents.encode_parts(result.contents)
        texts = [part["text"] for part in parts if part["type"] == "text"]
        files = [part for part in parts if part["type"] != "text"]
        if files:
            texts.append(f"[{len(files)} attached: see the next message]")
            label = f"What {result.tool_name} ({call_id}) returned:"
            attachments.append({"type": "text", "text": label})
            attachments.extend(files)
        text = "\n".join(str(part_text) for part_text in texts if not is_blank(str(part_text)))
        messages.append({"role": "tool", "tool_call_id": call_id, "content": with_error_prefix(result, text)})
    return [*messages, {"role": "user", "content": attachments}] if attachments else messages


def _encode_attachment(kind: Literal["image", "file"], address: str, name: str) -> JsonObject:
    if kind == "image":
        return {"type": "image_url", "image_url": {"url": address}}
    return {"type": "file", "file": {"filename": name, "file_data": address}}


class _Function(Wire):
    name: Text = ""
    arguments: JsonValue = None


class _ToolCallDelta(Wire):
    model_config = ConfigDict(extra="allow")  # signatures, which are sent back with the call

    index: Index = None
    id: Text = ""
    function: OrNone[_Function] = None


class _CompletionUsage(Wire):
    """Token counts, by the names of this API and by other names that servers use instead."""

    prompt_tokens: Count = Field(default=None, validation_alias=AliasChoices("prompt_tokens", "input_tokens"))
    completion_tokens: Count = Field(default=None, validation_alias=AliasChoices("completion_tokens", "output_tokens"))
    total_tokens: Count = None
    prompt_cache_hit_tokens: Count = None
    cached_tokens: Count = Field(default=None, validation_alias=AliasPath("prompt_tokens_details", "cached_tokens"))
    reasoning_tokens: Count = Field(
        default=None, validation_alias=AliasPath("completion_tokens_details", "reasoning_tokens")
    )


class _ChoiceDelta(Wire):
    model_config = ConfigDict(extra="allow")  # extra fields hold reasoning under many names

    role: Text = ""
    content: JsonValue = None
    refusal: Text = ""
    tool_calls: list[_ToolCallDelta] | None = None
    function_call: OrNone[_Function] = None  # the older form of a call; a reply has at most one


class _Choice(Wire):
    index: Index = None
    delta: _ChoiceDelta | None = None
    message: _ChoiceDelta | None = None  # instead of `delta` in the answer of a server that does not stream
    finish_reason: Text = ""
    usage: OrNone[_CompletionUsage] = None


class _GroqExtension(Wire):
    usage: OrNone[_CompletionUsage] = None


class _ChatCompletionChunk(Wire):
    choices: list[_Choice] | None = None
    usage: OrNone[_CompletionUsage] = None
    x_groq: OrNone[_GroqExtension] = None

    def usages(self) -> Iterator[_CompletionUsage]:
        """Yield the token counts, which servers put in different places."""
        places = (self.usage, None if self.x_groq is None else self.x_groq.usage)
        yield from (usage for usage in places if usage is not None)
        yield from (choice.usage for choice in self.choices or () if choice.usage is not None)


_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "end_turn": "stop",
    "tool_calls": "toolCalls",
    "function_call": "toolCalls",
    "length": "length",
    "max_tokens": "length",
    "content_filter": "refusal",
    "refusal": "refusal",
    "sensitive": "refusal",
}


_OPENAI = Dialect()


class ChatDecoder:
    """Decoder of a reply from the data of its stream's events."""

    def __init__(self, on_delta: Callable[[Delta], None], dialect: Dialect = _OPENAI, model: str = "") -> None:
        """Pass each piece of text to `on_delta`; what the endpoint needs back is kept for `dialect` and `model`."""
        self._owner = OpaqueOwner(dialect.vendor, model)
        self._kept_fields = KeptFields()
        self._tags = ThinkTags() if dialect.profile.reads_tags else None
        self._text = StreamedText(on_delta, "text")
        self._reasoning_fields = StreamedText(on_delta, "reasoning")
        self._calls = _Calls()
        self._finish = ""
        self._refused = False
        self._counts: dict[str, int] = {}
        self._has_begun = False
        self._has_mark = False

    def feed(self, data: str) -> ReplyProgress:
        """Process one event. Raises ProviderError for an error event."""
        if data.strip() == END_MARK:
            self._has_mark = True
            return ReplyProgress.LAST
        chunk = read_event(_ChatCompletionChunk, data, "Chat Completions")
        for completion_usage in chunk.usages():
            highest(self._counts, completion_usage.model_dump())
        has_more = False
        for choice in chunk.choices or ():
            if not choice.index:
                has_more = self._add_choice(choice) or has_more
        if self._finish:
            return ReplyProgress.FINISHED if has_more or chunk.usage is not None else ReplyProgress.IDLE
        is_first, self._has_begun = bool(chunk.choices) and not self._has_begun, self._has_begun or bool(chunk.choices)
        return ReplyProgress.MORE if has_more or is_first else ReplyProgress.IDLE

    def finish(self) -> Generation:
        """Return the reply. Raises ProviderError if the stream ended early, or as failed."""
        if self._tags is not None:
            self._add_pieces(self._tags.finish())
            if self._tags.opening:
                self._kept_fields.add_tags(self._tags.opening, self._tags.closing)
        parts: list[ReplyPart] = []
        thinking, text = self._reasoning_fields.end(), self._text.end()
        opaque = self._owner.data(self._kept_fields.fields(thinking))
        if thinking or opaque:
            parts.append(ThinkingPart(thinking=thinking, opaque=opaque))
        if text:
            parts.append(TextPart(text=text))
        parts += self._calls.parts(self._owner)
        has_mark = self._has_mark or (bool(self._finish) and bool(self._counts))
        check_end(
            self._finish,
            _FINISH_REASONS,
            parts,
            has_mark=has_mark,
            missing=f"there was neither a finish_reason nor {END_MARK}",
        )
        return Generation(
            ExpertMessage(contents=tuple(parts)), _convert_usage(self._counts), self._finish_reason(parts)
        )

    def _add_choice(self, choice: _Choice) -> bool:
        """Add the content of a choice. Return False if it has none."""
        has_more = bool(choice.finish_reason)
        self._finish = choice.finish_reason or self._finish
        delta = choice.delta or choice.message
        if delta is None:
            return has_more
        extra = delta.model_extra or {}
        thinking = thinking_parts(delta.content)
        has_more = bool(extra) or has_more
        self._kept_fields.add(extra)
        self._kept_fields.add_thinking(thinking)
        has_more = self._reasoning_fields.add(readable_reasoning(extra) or thinking_text(thinking)) or has_more
        text = _plain_text(delta.content)
        has_more = self._add_pieces([("text", text)] if self._tags is None else self._tags.feed(text)) or has_more
        has_more = self._text.add(delta.refusal) or has_more
        self._refused = self._refused or bool(delta.refusal)
        for call in delta.tool_calls or ():
            self._calls.add(call.index, call.id, call.function or _Function(), call.model_extra)
        if delta.function_call is not None:
            self._calls.add(None, "", delta.function_call)
        return has_more or bool(delta.tool_calls) or delta.function_call is not None

    def _add_pieces(self, pieces: Iterable[Piece]) -> bool:
        """Add pieces of text and reasoning. Return False if there is none."""
        has_more = False
        for kind, text in pieces:
            has_more = (self._text if kind == "text" else self._reasoning_fields).add(text) or has_more
        return has_more

    def _finish_reason(self, parts: list[ReplyPart]) -> FinishReason:
        reason = _FINISH_REASONS.get(self._finish, "other")
        if self._refused:
            return "refusal"
        has_calls = any(isinstance(part, ToolCallPart) for part in parts)
        return "toolCalls" if has_calls and reason in ("stop", "other") else reason


def _plain_text(content: JsonValue) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_plain_text(part) for part in content)
    if isinstance(content, dict) and not thinking_parts([content]):
        return _plain_text(content.get("text"))
    return ""


@dataclass(slots=True)
class _Call:
    index: int | None
    id: str
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])
    kept: KeptFields = field(default_factory=KeptFields)

    @property
    def is_whole(self) -> bool:
        """True if the arguments are complete JSON and more than a placeholder."""
        return is_object(join_arguments(self.pieces))

    def repeats(self, function: _Function) -> bool:
        """Return whether a delta adds nothing: it has an equal name, and no arguments or equal ones."""
        text = arguments_text(function.arguments)
        return function.name == self.name and (
            not text.strip() or parsed(text) == parsed(join_arguments(self.pieces)) is not None
        )


class _Calls:
    """The calls of a reply, assembled from deltas that may not identify their call.

    In the format each call has an index and an id, and the id and name are sent once. Servers give all calls one index,
    one id or none, repeat names, or send several calls in one delta. A delta belongs to the call with its id and index;
    if one of them is missing, to the call with the other; if both are, to the latest call. A name begins a new call if
    that call's arguments are already complete, or if its id or index differs.
    """

    def __init__(self) -> None:
        self._calls: list[_Call] = []

    def add(self, index: int | None, call_id: str, function: _Function, extra: JsonObject | None = None) -> None:
        """Add a delta; `extra` has its other fields."""
        call = self._find_call(index, call_id, function)
        if call is None:
            call = _Call(index, call_id)
            self._calls.append(call)
        elif function.name and call.is_whole and call.repeats(function):
            return
        call.id = call.id or call_id
        call.kept.add(extra or {})
        # some servers send the name in pieces, others repeat it in every delta
        if function.name and function.name != call.name:
            call.name += function.name
        text = arguments_text(function.arguments)
        if text:
            call.pieces.append(text)

    def parts(self, opaque_owner: OpaqueOwner) -> list[ToolCallPart]:
        """Return the calls in the order in which they began, without empty ones."""
        return [_decode_call(call, opaque_owner) for call in self._calls if call.name or call.pieces]

    def _find_call(self, index: int | None, call_id: str, function: _Function) -> _Call | None:
        """Return the call that a delta belongs to; None if it begins a new call."""
        call = self._find_by_marks(index, call_id, function)
        if call is None or not function.name or not call.name:
            return call
        has_other_name = function.name != call.name and bool(call.pieces)
        if has_other_name or (call.is_whole and not call.repeats(function)):
            return None
        is_unnumbered = index is None and not call_id
        if is_unnumbered and not call.pieces:
            return None
        return call

    def _find_by_marks(self, index: int | None, call_id: str, function: _Function) -> _Call | None:
        """Return the call with the delta's id or index, or the latest if it has neither; None for a new call."""
        candidates = list(reversed(self._calls))
        if call_id:
            matches = [call for call in candidates if call.id == call_id]
            exact = next((call for call in matches if index is None or call.index in (None, index)), None)
            if exact is not None or (matches and not function.name):
                return exact or matches[0]
            if function.name and matches:
                return None  # the same id used again, with another index
        if index is not None:
            match = next((call for call in candidates if call.index == index), None)
            is_other = match is not None and call_id and match.id and function.name
            if match is not None or function.name or call_id:
                return None if is_other else match
        if call_id and function.name:
            return None
        return candidates[0] if candidates else None


def _decode_call(streamed_call: _Call, opaque_owner: OpaqueOwner) -> ToolCallPart:
    args, raw_args = read_arguments(join_arguments(streamed_call.pieces))
    name, call_id = whole_characters(streamed_call.name), whole_characters(streamed_call.id)
    return ToolCallPart(
        tool_call_id=call_id,
        tool_name=name,
        args=args,
        raw_args=raw_args,
        opaque=opaque_owner.data(streamed_call.kept.fields()),
    )


def _convert_usage(counts: Mapping[str, int]) -> Usage:
    input_tokens, output_tokens = counts.get("prompt_tokens", 0), counts.get("completion_tokens", 0)
    reasoning, total = counts.get("reasoning_tokens", 0), counts.get("total_tokens", 0)
    if reasoning and total == input_tokens + output_tokens + reasoning:
        output_tokens += reasoning  # this server does not count reasoning as generated tokens
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        reasoning_tokens=reasoning,
        total_tokens=total or input_tokens + output_tokens,
        cached_input_tokens=counts.get("cached_tokens", 0) or counts.get("prompt_cache_hit_tokens", 0),
    )
