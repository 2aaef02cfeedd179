"""Responses API: pure functions that encode a request, and a decoder for the stream of a reply.

Nothing is stored at the vendor: each request contains the whole conversation, with the reasoning as encrypted items.
Source of the reply side: OpenAI API reference, «Responses», section «Streaming events», and the objects «Response» and
its output items.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, assert_never

from pydantic import ConfigDict, JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.base.usage import Usage
from perstack.core.definitions.experts import FileSearchOptions, WebToolOptions
from perstack.core.runs.messages import (
    ExpertMessage,
    FinishReason,
    Message,
    ProviderToolPart,
    ReplyPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
    readable_result,
)
from perstack.ports.provider import Delta, Generation, GenerationRequest, OfferedProviderTool
from perstack.support.http.errors import stream_interrupted
from perstack.support.http.messages import (
    CONTINUE,
    NO_TEXT,
    ListEncoder,
    Text,
    Wire,
    ends_unfinished,
    is_blank,
    legal_id,
    message_encoder,
    offered_names,
    own_blocks,
    read_arguments,
    read_event,
    request_body,
    request_prefix,
    sent_back,
)
from perstack.support.http.tool_schemas import OPENAI
from perstack.support.http.wire_tools import WireTool, WireTools, wire_tools
from perstack_openai.dialect import ContentEncoder, Dialect, effort_of, stream_error, with_error_prefix

# Source of the request side: OpenAI API reference, «Responses», section «Create a model response»; guides «Reasoning
# models», section «Encrypted reasoning items», «Function calling» and «Conversation state».


def encode_responses(request: GenerationRequest, dialect: Dialect, blobs: Mapping[str, bytes]) -> bytes:
    """Encode the body of `POST /responses`. `blobs` need only contain what `items_of_responses` lacks."""
    dialect = dialect.adapted(request.adaptations)
    items = items_of_responses(request, dialect)
    items.extend(request.messages, blobs)
    prefix = request_prefix(request, "responses", dialect, lambda: _head(request, dialect))
    return request_body(prefix, (*items.parts, *([_CONTINUE] if ends_unfinished(request) else [])))


def items_of_responses(request: GenerationRequest, dialect: Dialect) -> ListEncoder:
    """Return the Run's items encoded so far for this server."""
    names, tools = offered_names(request), wire_tools(request, OPENAI)

    def write(message: Message, blobs: Mapping[str, bytes]) -> list[JsonObject]:
        return _items(message, ContentEncoder(dialect, blobs, "input_text", _attachment), tools, names)

    return message_encoder(request, ("responses", dialect, names, tools.key), ListEncoder, lambda: write)


def _head(request: GenerationRequest, dialect: Dialect) -> JsonObject:
    head: JsonObject = {"model": request.model, "stream": True, "store": False}
    limits: JsonObject = {
        "max_output_tokens": dialect.most_tokens(request),
        "temperature": dialect.temperature_for(request),
        "top_p": dialect.top_p,
    }
    head.update({name: value for name, value in limits.items() if value is not None})
    head.update(_reasoning(request, dialect))
    tools: list[JsonValue] = [_tool(tool) for tool in wire_tools(request, OPENAI).listed]
    tools += [_hosted_tool(tool) for tool in request.provider_tools]
    if tools:
        head["tools"] = tools
    if tools and not request.allow_tools:
        head["tool_choice"] = "none"
    head.update(_hosted(request, head.get("include")))
    schema = dialect.schema_format(request)
    if schema is not None:
        head["text"] = {"format": {"type": "json_schema", **schema}}
    if request.instruction.strip():
        head["instructions"] = request.instruction
    return {**head, "input": []}


def _reasoning(request: GenerationRequest, dialect: Dialect) -> JsonObject:
    if not dialect.reasons(request.model):
        return {}  # models without reasoning reject both fields
    options = {
        "effort": effort_of(request.model, request.reasoning_budget, dialect),
        "summary": dialect.reasoning_summary,
    }
    reasoning: JsonObject = {name: value for name, value in options.items() if value is not None}
    include: JsonObject = {"include": ["reasoning.encrypted_content"]}
    return {"reasoning": reasoning, **include} if reasoning else include


def _tool(tool: WireTool) -> JsonObject:
    # strict is the default, and rejects most schemas of MCP servers
    return {"type": "function", **tool.label, "parameters": tool.schema, "strict": False}


def _hosted_tool(tool: OfferedProviderTool) -> JsonObject:
    if isinstance(tool.options, FileSearchOptions):
        return {"type": "file_search", "vector_store_ids": [*tool.options.vector_store_ids]}
    domains = () if tool.options is None else tool.options.allowed_domains
    return {"type": "web_search", "filters": {"allowed_domains": [*domains]}} if domains else {"type": "web_search"}


def _hosted(request: GenerationRequest, include: JsonValue) -> JsonObject:
    """Return the fields that hosted tools need: what they have found, and the limit of their calls together."""
    if not request.provider_tools:
        return {}
    includes = [_RESULTS[tool.name] for tool in request.provider_tools if tool.name in _RESULTS]
    fields: JsonObject = {"include": [*(include if isinstance(include, list) else []), *includes]}
    limits = (tool.options.max_uses for tool in request.provider_tools if isinstance(tool.options, WebToolOptions))
    max_calls = min((limit for limit in limits if limit is not None), default=None)
    return fields if max_calls is None else {**fields, "max_tool_calls": max_calls}


_CONTINUE = b',{"type":"message","role":"user","content":"%s"}' % CONTINUE.encode()
_RESULTS = {"webSearch": "web_search_call.action.sources", "fileSearch": "file_search_call.results"}
_HOSTED = {
    "web_search_call": "webSearch",
    "file_search_call": "fileSearch",
    "code_interpreter_call": "codeInterpreter",
    "image_generation_call": "imageGeneration",
}
"""Tools by the type of their items. Source: OpenAI API reference, «Responses»; guides «Web search», «File search»."""


def _items(message: Message, contents: ContentEncoder, tools: WireTools, offered: frozenset[str]) -> list[JsonObject]:
    match message:
        case UserMessage():
            return [{"type": "message", "role": "user", "content": contents.encode(message.contents) or NO_TEXT}]
        case ToolMessage():
            return [_result(result, contents) for result in message.contents]
        case ExpertMessage():
            return _reply(message, contents.dialect.vendor, tools, sent_back(message, offered))
        case _:
            assert_never(message)


def _reply(message: ExpertMessage, vendor: str, tools: WireTools, offered: frozenset[str]) -> list[JsonObject]:
    items: list[JsonObject] = []
    phase: JsonObject = {}
    for part in message.contents:
        match part:
            case TextPart():
                if not is_blank(part.text):
                    items.append({"type": "message", "role": "assistant", "content": part.text, **phase})
                phase = {}
            case ToolCallPart():
                items.append(_call(part, tools))
            case ThinkingPart():
                opaque = (part.opaque or {}).get(vendor)
                if isinstance(opaque, dict) and "phase" in opaque:
                    phase = opaque
                elif isinstance(opaque, dict):
                    items.append({"type": "reasoning", **opaque})
            case ProviderToolPart():
                shown: list[JsonObject] = [{"type": "message", "role": "assistant", "content": part.shown}]
                blocks = own_blocks(part, vendor, offered)
                items += shown if blocks is None else blocks
            case _:
                assert_never(part)
    # The API rejects reasoning without a following item, which a truncated reply may lack.
    while items and items[-1]["type"] == "reasoning":
        items.pop()
    return items


def _call(part: ToolCallPart, tools: WireTools) -> JsonObject:
    return {
        "type": "function_call",
        "call_id": legal_id(part.tool_call_id),
        "name": tools.name(part.tool_name),
        "arguments": json.dumps(tools.arguments(part), ensure_ascii=False),
    }


def _result(result: ToolResultPart, contents: ContentEncoder) -> JsonObject:
    output = contents.encode(result.contents)
    if isinstance(output, str):
        output = with_error_prefix(result, output)
    elif isinstance(output, list) and result.is_error:
        prefix: list[JsonValue] = [{"type": "input_text", "text": "Error:"}]
        output = prefix + output
    return {"type": "function_call_output", "call_id": legal_id(result.tool_call_id), "output": output}


def _attachment(kind: Literal["image", "file"], address: str, name: str) -> JsonObject:
    if kind == "image":
        return {"type": "input_image", "image_url": address, "detail": "auto"}
    return {"type": "input_file", "filename": name, "file_data": address}


_API = "the Responses API"
_END = "[DONE]"


class _OutputContent(Wire):
    type: Text = ""
    text: Text = ""
    refusal: Text = ""


class _Item(Wire):
    model_config = ConfigDict(extra="allow")  # items of hosted tools are sent back as they came

    type: Text = ""
    id: Text = ""
    call_id: Text = ""
    name: Text = ""
    arguments: Text = ""
    phase: Text = ""
    encrypted_content: Text = ""
    content: list[_OutputContent] | None = None
    summary: list[_OutputContent] | None = None
    status: Text = ""
    action: JsonValue = None
    queries: JsonValue = None
    results: JsonValue = None


class _InputDetails(Wire):
    cached_tokens: int | None = None


class _OutputTokensDetails(Wire):
    reasoning_tokens: int | None = None


class _ResponseUsage(Wire):
    input_tokens: int | None = None
    input_tokens_details: _InputDetails | None = None
    output_tokens: int | None = None
    output_tokens_details: _OutputTokensDetails | None = None
    total_tokens: int | None = None


class _ResponseError(Wire):
    message: Text = ""
    code: JsonValue = None


class _Incomplete(Wire):
    reason: Text = ""


class _Response(Wire):
    status: Text = ""
    output: list[_Item] | None = None
    usage: _ResponseUsage | None = None
    error: _ResponseError | None = None
    incomplete_details: _Incomplete | None = None


class _ResponseStreamEvent(Wire):
    type: Text = ""
    delta: JsonValue = None
    summary_index: int | None = None
    output_index: int | None = None
    item: _Item | None = None
    response: _Response | None = None
    error: _ResponseError | None = None
    message: Text = ""
    code: JsonValue = None


_DELTAS = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "text",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.reasoning_text.delta": "reasoning",
}

_INCOMPLETE: dict[str, FinishReason] = {"max_output_tokens": "length", "content_filter": "refusal"}


class ResponsesDecoder:
    """Decoder of a reply from the data of its stream's events."""

    def __init__(self, on_delta: Callable[[Delta], None], vendor: str) -> None:
        """Pass each piece of text to `on_delta`; `vendor` is the key of opaque parts."""
        self._on_delta = on_delta
        self._vendor = vendor
        self._done_items: list[tuple[int, _Item]] = []
        self._response: _Response | None = None

    def feed(self, data: str) -> bool:
        """Process one event. Return True after the last one. Raises ProviderError for an error event."""
        if data.strip() == _END:
            return True
        event = read_event(_ResponseStreamEvent, data, _API)
        match event.type:
            case "response.output_item.done":
                if event.item is not None:
                    index = len(self._done_items) if event.output_index is None else event.output_index
                    self._done_items.append((index, event.item))
            case "response.completed" | "response.incomplete" | "response.failed":
                self._end(event.response or _Response(status=event.type.removeprefix("response.")))
            case "error":
                error = event.error or _ResponseError(message=event.message, code=event.code)
                raise stream_error(error.message, error.code)
            case "":
                # A whole response in one document, from a server that does not stream, or an error without a type.
                self._take_document(read_event(_Response, data, _API))
            case _:
                self._show(event)
        return self._response is not None

    def finish(self) -> Generation:
        """Return the reply. Raises ProviderError if the stream ended early."""
        if self._response is None:
            raise stream_interrupted("no response.completed came")
        items = self._items(self._response)
        reply = ExpertMessage(contents=tuple(part for item in items for part in _parts(item, self._vendor)))
        usage = _with_uses(_usage(self._response.usage), items)
        return Generation(reply, usage, _finish_reason(self._response, items))

    def _show(self, event: _ResponseStreamEvent) -> None:
        kind = _DELTAS.get(event.type)
        if event.type == "response.reasoning_summary_part.added" and event.summary_index:
            self._on_delta(Delta("reasoning", "\n\n"))
        elif kind is not None and isinstance(event.delta, str) and event.delta:
            self._on_delta(Delta("text" if kind == "text" else "reasoning", event.delta))

    def _take_document(self, response: _Response) -> None:
        if response.error is not None or response.output is not None:
            self._end(response)

    def _end(self, response: _Response) -> None:
        if response.error is not None or response.status in ("failed", "cancelled"):
            error = response.error or _ResponseError()
            raise stream_error(error.message, error.code)
        self._response = response

    def _items(self, response: _Response) -> list[_Item]:
        """Return the streamed items or the final response's, whichever are more: some servers omit one of both."""
        done = [item for _, item in sorted(self._done_items, key=lambda pair: pair[0])]
        output = response.output or []
        return output if len(output) > len(done) else done


def _parts(item: _Item, vendor: str) -> list[ReplyPart]:
    match item.type:
        case "reasoning":
            return _thinking(item, vendor)
        case "function_call":
            args, raw_args = read_arguments(item.arguments)
            call_id = item.call_id or item.id
            return [ToolCallPart(tool_call_id=call_id, tool_name=item.name, args=args, raw_args=raw_args)]
        case "message":
            text = "".join(content.text or content.refusal for content in item.content or ())
            if not text:
                return []
            # the phase must be sent back with its message
            mark = [ThinkingPart(thinking="", opaque={vendor: {"phase": item.phase}})] if item.phase else []
            return [*mark, TextPart(text=text)]
        case _ if item.type in _HOSTED:
            return [_hosted_use(item, vendor)]
        case _:
            return []


def _hosted_use(item: _Item, vendor: str) -> ProviderToolPart:
    action = item.action if isinstance(item.action, dict) else {}
    args: JsonObject = {name: value for name, value in action.items() if name not in ("type", "sources")}
    if isinstance(item.queries, list):
        args["queries"] = item.queries
    sources = [_sources_of(value) for value in (action.get("sources"), item.results) if isinstance(value, list)]
    lines = [line for group in sources for line in group] or [item.status or "done"]
    raw: JsonObject = item.model_dump(mode="json", exclude_unset=True)
    return ProviderToolPart(
        id=item.id,
        tool_name=_HOSTED[item.type],
        args=args,
        result=readable_result(lines),
        is_error=item.status == "failed",
        opaque={vendor: {"blocks": [raw]}},
    )


def _sources_of(results: list[JsonValue]) -> Iterable[str]:
    """Yield the address or name of each source, with the text that was found there."""
    for result in results:
        if isinstance(result, dict):
            yield " ".join(str(result[name]) for name in ("title", "url", "filename", "text") if result.get(name))


def _with_uses(usage: Usage, items: list[_Item]) -> Usage:
    """Return the usage with the calls of hosted tools that are charged: searches, not the pages opened after them."""
    uses: dict[str, int] = {}
    for item in items:
        kind = item.action.get("type") if isinstance(item.action, dict) else None
        if item.type in _HOSTED and item.status != "failed" and kind in (None, "search"):
            uses[_HOSTED[item.type]] = uses.get(_HOSTED[item.type], 0) + 1
    return usage.model_copy(update={"provider_tools": uses}) if uses else usage


def _thinking(item: _Item, vendor: str) -> list[ReplyPart]:
    summary, content = item.summary or [], item.content or []
    thinking = "\n\n".join(part.text for part in summary) or "".join(part.text for part in content)
    opaque: JsonObject = {"id": item.id, "summary": [{"type": "summary_text", "text": part.text} for part in summary]}
    if item.encrypted_content:
        opaque["encrypted_content"] = item.encrypted_content
    elif content:
        opaque["content"] = [{"type": "reasoning_text", "text": part.text} for part in content]
    elif not thinking:
        return []
    else:
        # the server stores no items, so this one cannot be referenced by id
        return [ThinkingPart(thinking=thinking)]
    return [ThinkingPart(thinking=thinking, opaque={vendor: opaque})]


def _finish_reason(response: _Response, items: list[_Item]) -> FinishReason:
    if any(content.refusal for item in items for content in item.content or ()):
        return "refusal"
    if response.status == "incomplete" or response.incomplete_details is not None:
        return _INCOMPLETE.get((response.incomplete_details or _Incomplete()).reason, "other")
    return "toolCalls" if any(item.type == "function_call" for item in items) else "stop"


def _usage(usage: _ResponseUsage | None) -> Usage:
    if usage is None:
        return Usage()
    input_tokens, output_tokens = usage.input_tokens or 0, usage.output_tokens or 0
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        reasoning_tokens=(usage.output_tokens_details or _OutputTokensDetails()).reasoning_tokens or 0,
        total_tokens=usage.total_tokens or input_tokens + output_tokens,
        cached_input_tokens=(usage.input_tokens_details or _InputDetails()).cached_tokens or 0,
    )
