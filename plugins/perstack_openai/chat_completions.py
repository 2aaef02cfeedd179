"""Chat Completions: pure functions that encode a request, and a decoder for the stream of a reply.

The decoder also accepts the deviations of compatible servers; `reasoning` keeps what these want back with a
reply. Source of the reply side: OpenAI API reference, «Chat Completions», section «Streaming» (the chunk object).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Literal, assert_never

from pydantic import ConfigDict, JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.base.usage import Usage
from perstack.core.runs.messages import (
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
from perstack.errors import ProviderError
from perstack.ports.provider import Delta, Generation, GenerationRequest
from perstack.support.http.errors import stream_interrupted
from perstack.support.http.messages import (
    CONTINUE,
    NO_TEXT,
    REQUIRED_FIELDS,
    ListEncoder,
    Text,
    Wire,
    ends_unfinished,
    is_blank,
    message_encoder,
    read_arguments,
    read_event,
    request_body,
    request_prefix,
)
from perstack.support.http.tool_schemas import OPENAI
from perstack.support.http.wire_tools import WireTool, WireTools, wire_tools
from perstack_openai.dialect import ContentEncoder, Dialect, effort_of, stream_error, with_error_prefix
from perstack_openai.reasoning import (
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

# Source of the request side: OpenAI API reference, «Chat Completions», section «Create chat completion»; guides «Images
# and vision» and «File inputs».


def encode_chat(request: GenerationRequest, dialect: Dialect, blobs: Mapping[str, bytes]) -> bytes:
    """Encode the body of `POST /chat/completions`. `blobs` need only contain what `items_of_chat` lacks."""
    dialect = dialect.adapted(request.adaptations)
    items = items_of_chat(request, dialect)
    items.extend(request.messages, blobs)
    prefix = request_prefix(request, "chat", dialect, lambda: _head(request, dialect))
    return request_body(prefix, (*items.parts, *([_CONTINUE] if ends_unfinished(request) else [])))


_CONTINUE = b',{"role":"user","content":"%s"}' % CONTINUE.encode()


def items_of_chat(request: GenerationRequest, dialect: Dialect) -> ListEncoder:
    """Return the Run's messages encoded so far for this server."""
    owner, tools = OpaqueOwner(dialect.vendor, request.model), wire_tools(request, OPENAI)

    def write(message: Message, blobs: Mapping[str, bytes]) -> list[JsonObject]:
        return _message(message, ContentEncoder(dialect, blobs, "text", _attachment), owner, tools)

    return message_encoder(request, ("chat", dialect, owner, tools.key), _list_for(dialect), lambda: write)


def _list_for(dialect: Dialect) -> type[ListEncoder]:
    if dialect.refuses("user after tool"):
        return BridgingEncoder
    return AlternatingEncoder if dialect.refuses("consecutive users") else ListEncoder


def _head(request: GenerationRequest, dialect: Dialect) -> JsonObject:
    head: JsonObject = {"model": request.model, "stream": True, "stream_options": {"include_usage": True}}
    limit = dialect.limit_name
    options: JsonObject = {
        **({} if limit is None else {limit: dialect.most_tokens(request)}),
        "temperature": dialect.temperature_for(request),
        "top_p": dialect.top_p,
        **_reasoning(request, dialect),
    }
    head.update({name: value for name, value in options.items() if value is not None})
    tools: list[JsonValue] = [_tool(tool) for tool in wire_tools(request, OPENAI).listed]
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


def _reasoning(request: GenerationRequest, dialect: Dialect) -> JsonObject:
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


def _tool(tool: WireTool) -> JsonObject:
    return {"type": "function", "function": {**tool.label, "parameters": tool.schema}}


def _message(message: Message, contents: ContentEncoder, owner: OpaqueOwner, tools: WireTools) -> list[JsonObject]:
    match message:
        case UserMessage():
            return [{"role": "user", "content": contents.encode(message.contents) or NO_TEXT}]
        case ToolMessage():
            return _results(message, contents)
        case ExpertMessage():
            return _reply(message, contents.dialect, owner, tools)
        case _:
            assert_never(message)


def _reply(message: ExpertMessage, dialect: Dialect, owner: OpaqueOwner, tools: WireTools) -> list[JsonObject]:
    calls: list[JsonValue] = [_call(call, dialect, owner, tools) for call in message.tool_calls]
    text = message.readable
    if not calls and is_blank(text):
        return []
    fields = {**_needed_reasoning(message, dialect, owner), **message_fields(message, owner)}
    reply: JsonObject = {"role": "assistant", **_content(text, fields, dialect), **_taken(fields, dialect)}
    if calls:
        reply["tool_calls"] = calls
    return [reply]


def _content(text: str, fields: JsonObject, dialect: Dialect) -> JsonObject:
    """Return the content of a reply, with the reasoning that came inside it, which is taken out of `fields`."""
    parts, tagged = fields.pop("_content", None), fields.pop("_tags", None)
    if isinstance(parts, list):
        said: JsonObject = {"type": "text", "text": text}
        return {"content": parts if is_blank(text) else [*parts, said]}
    if isinstance(tagged, str):
        return {"content": tagged + text}
    if not is_blank(text):
        return {"content": text.rstrip()}
    untried = [form for form in _NO_CONTENT if form not in dialect.refused]
    untried.sort(key=lambda form: form in dialect.profile.refuses)
    return _NO_CONTENT[untried[0]] if untried else {"content": NO_TEXT}


_NO_CONTENT: Mapping[str, JsonObject] = {
    "null content": {"content": None},
    "empty content": {"content": ""},
    "absent content": {},
}
"""Forms of the content of a reply that has only calls. An endpoint that refuses them all gets a text."""


def _needed_reasoning(message: ExpertMessage, dialect: Dialect, owner: OpaqueOwner) -> JsonObject:
    """Return the reasoning field of a server that rejects a history of calls without one, even an empty one."""
    name = dialect.needed_reasoning(owner.model)
    return {} if name is None else {name: plain_thinking(message) or dialect.profile.no_reasoning}


def _call(call: ToolCallPart, dialect: Dialect, owner: OpaqueOwner, tools: WireTools) -> JsonObject:
    return {
        "id": dialect.call_id(call.tool_call_id),
        "type": "function",
        "function": {
            "name": tools.name(call.tool_name),
            "arguments": json.dumps(tools.arguments(call), ensure_ascii=False),
        },
        **_taken(call_fields(call, owner), dialect),
    }


def _taken(fields: JsonObject, dialect: Dialect) -> JsonObject:
    return {name: value for name, value in fields.items() if not dialect.refuses(f"messages.{name}")}


def _results(message: ToolMessage, contents: ContentEncoder) -> list[JsonObject]:
    """Encode one message per result. Files, which a tool message cannot hold, follow in one user message."""
    messages: list[JsonObject] = []
    attachments: list[JsonValue] = []
    for result in message.contents:
        call_id = contents.dialect.call_id(result.tool_call_id)
        parts = contents.encode_parts(result.contents)
        words = [part["text"] for part in parts if part["type"] == "text"]
        files = [part for part in parts if part["type"] != "text"]
        if files:
            words.append(f"[{len(files)} attached: see the next message]")
            label = f"What {result.tool_name} ({call_id}) returned:"
            attachments.append({"type": "text", "text": label})
            attachments.extend(files)
        text = "\n".join(str(word) for word in words if not is_blank(str(word)))
        messages.append({"role": "tool", "tool_call_id": call_id, "content": with_error_prefix(result, text)})
    return [*messages, {"role": "user", "content": attachments}] if attachments else messages


def _attachment(kind: Literal["image", "file"], address: str, name: str) -> JsonObject:
    if kind == "image":
        return {"type": "image_url", "image_url": {"url": address}}
    return {"type": "file", "file": {"filename": name, "file_data": address}}


_END = "[DONE]"


class _Function(Wire):
    name: Text = ""
    arguments: JsonValue = None


class _ToolCallDelta(Wire):
    model_config = ConfigDict(extra="allow")  # signatures, which go back with the call

    index: int | None = None
    id: Text = ""
    function: _Function | None = None


class _ChoiceDelta(Wire):
    model_config = ConfigDict(extra="allow")  # reasoning in fields of many names

    content: JsonValue = None
    refusal: Text = ""
    tool_calls: list[_ToolCallDelta] | None = None


class _Choice(Wire):
    index: int | None = None
    delta: _ChoiceDelta | None = None
    message: _ChoiceDelta | None = None  # replaces `delta` in the answer of a server that does not stream
    finish_reason: Text = ""


class _PromptDetails(Wire):
    cached_tokens: int | None = None


class _CompletionDetails(Wire):
    reasoning_tokens: int | None = None


class _CompletionUsage(Wire):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_cache_hit_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _ChatError(Wire):
    message: Text = ""
    code: JsonValue = None


class _ChatCompletionChunk(Wire):
    choices: list[_Choice] | None = None
    usage: _CompletionUsage | None = None
    error: _ChatError | str | None = None


_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "end_turn": "stop",
    "tool_calls": "toolCalls",
    "function_call": "toolCalls",
    "length": "length",
    "max_tokens": "length",
    "content_filter": "refusal",
    "refusal": "refusal",
}


@dataclass(slots=True)
class _Call:
    index: int | None
    id: str
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])
    kept: KeptFields = field(default_factory=KeptFields)


_OPENAI = Dialect()


class ChatDecoder:
    """Decoder of a reply from the data of its stream's events."""

    def __init__(self, on_delta: Callable[[Delta], None], dialect: Dialect = _OPENAI, model: str = "") -> None:
        """Pass each piece of text to `on_delta`; what the endpoint wants back is kept for `dialect` and `model`."""
        self._on_delta = on_delta
        self._owner = OpaqueOwner(dialect.vendor, model)
        self._kept = KeptFields()
        self._tags = ThinkTags() if dialect.profile.reads_tags else None
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_Call] = []
        self._finish = ""
        self._refused = False
        self._usage: _CompletionUsage | None = None
        self._is_whole = False

    def feed(self, data: str) -> bool:
        """Process one event. Return True after the last one. Raises ProviderError for an error event."""
        if data.strip() == _END:
            self._is_whole = True
            return True
        chunk = read_event(_ChatCompletionChunk, data, "Chat Completions")
        if chunk.error is not None:
            raise _error(chunk.error)
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices or ():
            if not choice.index:
                self._take(choice)
        return False

    def finish(self) -> Generation:
        """Return the reply. Raises ProviderError if the stream ended without a finish reason or end mark."""
        if not self._is_whole and not self._finish:
            raise stream_interrupted(f"neither a finish_reason nor {_END} came")
        if self._tags is not None:
            self._add_pieces(self._tags.finish())
            if self._tags.opening:
                self._kept.add_tags(self._tags.opening, self._tags.closing)
        parts: list[ReplyPart] = []
        thinking = "".join(self._reasoning)
        opaque = self._owner.data(self._kept.fields(thinking))
        if thinking or opaque:
            parts.append(ThinkingPart(thinking=thinking, opaque=opaque))
        if self._text:
            parts.append(TextPart(text="".join(self._text)))
        parts += [_call_part(call, self._owner) for call in self._calls]
        return Generation(ExpertMessage(contents=tuple(parts)), _usage(self._usage), self._finish_reason())

    def _take(self, choice: _Choice) -> None:
        self._finish = choice.finish_reason or self._finish
        delta = choice.delta or choice.message
        if delta is None:
            return
        extra = delta.model_extra or {}
        thinking = thinking_parts(delta.content)
        self._kept.add(extra)
        self._kept.add_thinking(thinking)
        self._add("reasoning", readable_reasoning(extra) or thinking_text(thinking))
        text = _plain(delta.content)
        self._add_pieces([("text", text)] if self._tags is None else self._tags.feed(text))
        self._add("text", delta.refusal)
        self._refused = self._refused or bool(delta.refusal)
        for call in delta.tool_calls or ():
            self._grow(call)

    def _add_pieces(self, pieces: Iterable[Piece]) -> None:
        for kind, text in pieces:
            self._add(kind, text)

    def _add(self, kind: str, text: str) -> None:
        if not text:
            return
        if kind == "text":
            self._text.append(text)
            self._on_delta(Delta("text", text))
        else:
            self._reasoning.append(text)
            self._on_delta(Delta("reasoning", text))

    def _grow(self, delta: _ToolCallDelta) -> None:
        call = self._call_of(delta)
        call.kept.add(delta.model_extra or {})
        function = delta.function or _Function()
        # some servers send the name in pieces, others repeat it in every delta
        if function.name and function.name != call.name:
            call.name += function.name
        if isinstance(function.arguments, str):
            call.arguments.append(function.arguments)
        elif function.arguments is not None:
            call.arguments.append(json.dumps(function.arguments))

    def _call_of(self, delta: _ToolCallDelta) -> _Call:
        call = self._known_call(delta)
        if call is None:
            call = _Call(delta.index, delta.id)
            self._calls.append(call)
        return call

    def _known_call(self, delta: _ToolCallDelta) -> _Call | None:
        """Return the known call that a delta belongs to; None for a new one.

        A new id with a name starts a call with any index: some servers give every call index 0, others a new id
        in every delta. Without id and index, a name starts a call.
        """
        begins = delta.function is not None and bool(delta.function.name)
        if delta.id:
            match = next((call for call in self._calls if call.id == delta.id), None)
            if match is not None or begins:
                return match
        if delta.index is not None:
            return next((call for call in reversed(self._calls) if call.index == delta.index), None)
        return self._calls[-1] if self._calls and not begins else None

    def _finish_reason(self) -> FinishReason:
        reason = _FINISH.get(self._finish, "other")
        if self._refused:
            return "refusal"
        if self._calls and reason in ("stop", "other"):
            return "toolCalls"
        return reason


def _plain(content: JsonValue) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_plain(part) for part in content)
    if isinstance(content, dict) and not thinking_parts([content]):
        return _plain(content.get("text"))
    return ""


def _call_part(call: _Call, owner: OpaqueOwner) -> ToolCallPart:
    args, raw_args = read_arguments("".join(call.arguments))
    opaque = owner.data(call.kept.fields())
    return ToolCallPart(tool_call_id=call.id, tool_name=call.name, args=args, raw_args=raw_args, opaque=opaque)


def _usage(usage: _CompletionUsage | None) -> Usage:
    if usage is None:
        return Usage()
    input_tokens, output_tokens = usage.prompt_tokens or 0, usage.completion_tokens or 0
    reasoning = (usage.completion_tokens_details or _CompletionDetails()).reasoning_tokens or 0
    cached = (usage.prompt_tokens_details or _PromptDetails()).cached_tokens or usage.prompt_cache_hit_tokens or 0
    if reasoning and usage.total_tokens == input_tokens + output_tokens + reasoning:
        output_tokens += reasoning  # a server that does not count reasoning as generated tokens
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        reasoning_tokens=reasoning,
        total_tokens=usage.total_tokens or input_tokens + output_tokens,
        cached_input_tokens=cached,
    )


def _error(error: _ChatError | str) -> ProviderError:
    return stream_error(error, None) if isinstance(error, str) else stream_error(error.message, error.code)
