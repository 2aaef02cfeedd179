"""Responses API: pure functions that encode a request, and a decoder for the stream of a reply.

Nothing is stored at the vendor: each request contains the whole conversation, with the reasoning as encrypted items.
Source of the reply side: OpenAI API reference, "Responses", section "Streaming events", and the objects "Response" and
its output items.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, assert_never

from pydantic import AliasPath, ConfigDict, Field, JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.base.text import is_blank
from perstack.core.base.usage import Usage
from perstack.core.definitions.experts import FileSearchOptions, WebToolOptions
from perstack.core.messages.messages import (
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
from perstack.http_providers.messages import (
    CONTINUE,
    NO_TEXT,
    ListEncoder,
    ends_unfinished,
    legal_id,
    message_encoder,
    offered_names,
    own_blocks,
    request_body,
    request_prefix,
    sent_back,
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
    is_placeholder,
    join_arguments,
    read_arguments,
    read_event,
    whole_characters,
    whole_json,
)
from perstack.http_providers.schema_rules import OPENAI
from perstack.http_providers.stream_errors import stream_error
from perstack.http_providers.wire_tools import WireTool, WireTools, wire_tools
from perstack.ports.provider import Delta, Generation, GenerationRequest, OfferedProviderTool
from perstack_openai.dialect import ContentEncoder, Dialect, effort_of, with_error_prefix

# Source of the request side: OpenAI API reference, "Responses", section "Create a model response"; guides "Reasoning
# models", section "Encrypted reasoning items", "Function calling" and "Conversation state".


def encode_responses(request: GenerationRequest, dialect: Dialect, blobs: Mapping[str, bytes]) -> bytes:
    """Encode the body of `POST /responses`.

    `blobs` has the blobs of the messages that `items_of_responses` has not encoded yet.
    """
    dialect = dialect.adapted(request.adaptations)
    items = items_of_responses(request, dialect)
    items.extend(request.messages, blobs)
    prefix = request_prefix(request, "responses", dialect, lambda: _request_fields(request, dialect))
    return request_body(prefix, (*items.parts, *([_CONTINUE] if ends_unfinished(request) else [])))


def items_of_responses(request: GenerationRequest, dialect: Dialect) -> ListEncoder:
    """Return the Run's items encoded so far for this server."""
    names, tools = offered_names(request), wire_tools(request, OPENAI)

    def write(message: Message, blobs: Mapping[str, bytes]) -> list[JsonObject]:
        return _encode_message(message, ContentEncoder(dialect, blobs, "input_text", _encode_attachment), tools, names)

    return message_encoder(request, ("responses", dialect, names, tools.key), ListEncoder, lambda: write)


def _request_fields(request: GenerationRequest, dialect: Dialect) -> JsonObject:
    """Return the body without input: model, limits, sampling and reasoning options, tools, result schema."""
    head: JsonObject = {"model": request.model, "stream": True, "store": False}
    limits: JsonObject = {
        "max_output_tokens": dialect.max_reply_tokens(request),
        "temperature": dialect.temperature_for(request),
        "top_p": dialect.top_p,
    }
    head.update({name: value for name, value in limits.items() if value is not None})
    head.update(_reasoning_fields(request, dialect))
    tools: list[JsonValue] = [_encode_tool(tool) for tool in wire_tools(request, OPENAI).listed]
    tools += [_encode_hosted_tool(tool) for tool in request.provider_tools]
    if tools:
        head["tools"] = tools
    if tools and not request.allow_tools:
        head["tool_choice"] = "none"
    head.update(_hosted_tool_fields(request, head.get("include")))
    schema = dialect.schema_format(request)
    if schema is not None:
        head["text"] = {"format": {"type": "json_schema", **schema}}
    if request.instruction.strip():
        head["instructions"] = request.instruction
    return {**head, "input": []}


def _reasoning_fields(request: GenerationRequest, dialect: Dialect) -> JsonObject:
    if not dialect.reasons(request.model):
        return {}  # models without reasoning reject both fields
    options = {
        "effort": effort_of(request.model, request.reasoning_budget, dialect),
        "summary": dialect.reasoning_summary,
    }
    reasoning: JsonObject = {name: value for name, value in options.items() if value is not None}
    include: JsonObject = {"include": ["reasoning.encrypted_content"]}
    return {"reasoning": reasoning, **include} if reasoning else include


def _encode_tool(tool: WireTool) -> JsonObject:
    # strict is the default, and rejects most schemas of MCP servers
    return {"type": "function", **tool.label, "parameters": tool.schema, "strict": False}


def _encode_hosted_tool(tool: OfferedProviderTool) -> JsonObject:
    if isinstance(tool.options, FileSearchOptions):
        return {"type": "file_search", "vector_store_ids": [*tool.options.vector_store_ids]}
    domains = () if tool.options is None else tool.options.allowed_domains
    return {"type": "web_search", "filters": {"allowed_domains": [*domains]}} if domains else {"type": "web_search"}


def _hosted_tool_fields(request: GenerationRequest, include: JsonValue) -> JsonObject:
    """Return the fields for hosted tools: their results to include, and the limit of all their calls together."""
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
"""Tools by the type of their items. Source: OpenAI API reference, "Responses"; guides "Web search", "File search"."""


def _encode_message(
    message: Message, contents: ContentEncoder, tools: WireTools, offered: frozenset[str]
) -> list[JsonObject]:
    match message:
        case UserMessage():
            return [{"type": "message", "role": "user", "content": contents.encode(message.contents) or NO_TEXT}]
        case ToolMessage():
            return [_encode_result(result, contents) for result in message.contents]
        case ExpertMessage():
            return _encode_reply(message, contents.dialect.vendor, tools, sent_back(message, offered))
        case _:
            assert_never(message)


def _encode_reply(message: ExpertMessage, vendor: str, tools: WireTools, offered: frozenset[str]) -> list[JsonObject]:
    """Encode an earlier reply as items, without those that the API refuses."""
    items: list[JsonObject] = []
    phase: JsonObject = {}
    for part in message.contents:
        match part:
            case TextPart():
                if not is_blank(part.text):
                    items.append({"type": "message", "role": "assistant", "content": part.text, **phase})
                phase = {}
            case ToolCallPart():
                items.append(_encode_call(part, tools))
            case ThinkingPart():
                opaque = (part.opaque or {}).get(vendor)
                if isinstance(opaque, dict) and "phase" in opaque:
                    phase = opaque
                elif isinstance(opaque, dict):
                    items.append({"type": "reasoning", **opaque})
            case ProviderToolPart():
                readable: list[JsonObject] = [{"type": "message", "role": "assistant", "content": part.shown}]
                blocks = own_blocks(part, vendor, offered)
                items += readable if blocks is None else blocks
            case _:
                assert_never(part)
    # The API rejects reasoning without a following item, which a truncated reply may lack.
    while items and items[-1]["type"] == "reasoning":
        items.pop()
    return items


def _encode_call(part: ToolCallPart, tools: WireTools) -> JsonObject:
    return {
        "type": "function_call",
        "call_id": legal_id(part.tool_call_id),
        "name": tools.name(part.tool_name),
        "arguments": json.dumps(tools.arguments(part), ensure_ascii=False),
    }


def _encode_result(result: ToolResultPart, contents: ContentEncoder) -> JsonObject:
    output = contents.encode(result.contents)
    if isinstance(output, str):
        output = with_error_prefix(result, output)
    elif isinstance(output, list) and result.is_error:
        prefix: list[JsonValue] = [{"type": "input_text", "text": "Error:"}]
        output = prefix + output
    return {"type": "function_call_output", "call_id": legal_id(result.tool_call_id), "output": output}


def _encode_attachment(kind: Literal["image", "file"], address: str, name: str) -> JsonObject:
    if kind == "image":
        return {"type": "input_image", "image_url": address, "detail": "auto"}
    return {"type": "input_file", "filename": name, "file_data": address}


_API = "the Responses API"


class _OutputContent(Wire):
    type: Text = ""
    text: Text = ""
    refusal: Text = ""


class _Item(Wire):
    model_config = ConfigDict(extra="allow")  # items of hosted tools are sent back unchanged

    type: Text = ""
    id: Text = ""
    call_id: Text = ""
    name: Text = ""
    arguments: JsonValue = None
    phase: Text = ""
    encrypted_content: Text = ""
    content: OrNone[list[_OutputContent]] = None
    summary: OrNone[list[_OutputContent]] = None
    status: Text = ""
    action: JsonValue = None
    queries: JsonValue = None
    results: JsonValue = None


class _ResponseUsage(Wire):
    input_tokens: Count = None
    output_tokens: Count = None
    total_tokens: Count = None
    cached_tokens: Count = Field(default=None, validation_alias=AliasPath("input_tokens_details", "cached_tokens"))
    reasoning_tokens: Count = Field(
        default=None, validation_alias=AliasPath("output_tokens_details", "reasoning_tokens")
    )


class _Incomplete(Wire):
    reason: Text = ""


class _Response(Wire):
    status: Text = ""
    output: OrNone[list[_Item]] = None
    usage: OrNone[_ResponseUsage] = None
    error: JsonValue = None
    incomplete_details: OrNone[_Incomplete] = None


class _ResponseStreamEvent(_Response):
    type: Text = ""
    item_id: Text = ""
    output_index: Index = None
    content_index: Index = None
    summary_index: Index = None
    delta: JsonValue = None
    text: Text = ""
    refusal: Text = ""
    arguments: JsonValue = None
    name: Text = ""
    part: OrNone[_OutputContent] = None
    item: _Item | None = None
    response: _Response | None = None


_ENDS = {"completed": "completed", "done": "completed", "incomplete": "incomplete", "failed": "failed"}
_FINAL = frozenset(("completed", "incomplete", "failed", "cancelled"))
_INCOMPLETE: dict[str, FinishReason] = {"max_output_tokens": "length", "content_filter": "refusal"}

_Field = Literal["text", "refusal", "summary", "reasoning", "arguments"]

_FIELDS: dict[str, tuple[_Field, str]] = {
    "response.output_text": ("text", "message"),
    "response.content_part": ("text", "message"),
    "response.refusal": ("refusal", "message"),
    "response.reasoning_summary_text": ("summary", "reasoning"),
    "response.reasoning_summary_part": ("summary", "reasoning"),
    "response.reasoning_text": ("reasoning", "reasoning"),
    "response.function_call_arguments": ("arguments", "function_call"),
}
"""Field built by events of a family, and the type of its item. Families have `.added`, `.delta` and `.done`."""


_PARTS: dict[str, tuple[_Field, str]] = {
    "refusal": ("refusal", "message"),
    "reasoning_text": ("reasoning", "reasoning"),
    "summary_text": ("summary", "reasoning"),
}
"""Field and item type for an event with a part of this type."""


class _StreamedItem:
    """An item of the output, assembled from its events: servers may omit its start, its pieces or its end."""

    def __init__(self, index: int | None, item: _Item) -> None:
        self.index = index
        self.item = item
        self.texts: dict[tuple[_Field, int], StreamedText] = {}
        self.json: list[str] = []
        self.arguments = ""  # the complete arguments, from an event of their own
        self.has_start = self.is_done = False

    def may_belong_to(self, index: int | None, item_id: str, kind: str) -> bool:
        """Return whether an event with this index, id and type belongs to this item. Each of them may be missing."""
        if kind and self.item.type and self.item.type != kind:
            return False
        same_id = not item_id or not self.item.id or self.item.id == item_id
        return same_id and (index is None or self.index is None or self.index == index)

    def streamed_texts(self, *fields: _Field) -> list[str]:
        """Return the streamed texts of these fields that are not empty."""
        texts = (text.text for (field, _), text in sorted(self.texts.items()) if field in fields)
        return [text for text in texts if text]

    @property
    def content(self) -> str:
        """The text or arguments as streamed."""
        return self.arguments or "".join(self.json) or "".join(self.streamed_texts("text", "refusal"))

    def assemble(self) -> _Item:
        """Return the item, completed by the streamed pieces."""
        changes: dict[str, object] = {}
        if self.item.type == "function_call" and is_placeholder(arguments_text(self.item.arguments)):
            changes["arguments"] = self.arguments or join_arguments(self.json)
        if self.item.type == "message" and not _joined_text(self.item.content):
            changes["content"] = [
                *(_OutputContent(type="output_text", text=text) for text in self.streamed_texts("text")),
                *(_OutputContent(type="refusal", refusal=text) for text in self.streamed_texts("refusal")),
            ]
        if (
            self.item.type == "reasoning"
            and not _joined_text(self.item.summary)
            and not _joined_text(self.item.content)
        ):
            parts = {"summary": self.streamed_texts("summary"), "content": self.streamed_texts("reasoning")}
            changes |= {name: [_OutputContent(text=text) for text in texts] for name, texts in parts.items() if texts}
        return self.item.model_copy(update=changes)


def _item_content(item: _Item) -> str:
    return arguments_text(item.arguments) or _joined_text(item.content)


def _joined_text(contents: Iterable[_OutputContent] | None) -> str:
    return whole_characters("".join(content.text or content.refusal for content in contents or ()))


class ResponsesDecoder:
    """Decoder of a reply from the data of its stream's events.

    A text or call comes up to four times: in deltas, as a `done` event, in its item, and in the final response.
    Servers leave out any of them, so that the reply is assembled from all, once.
    """

    def __init__(self, on_delta: Callable[[Delta], None], vendor: str) -> None:
        """Pass each piece of text to `on_delta`; `vendor` is the key of opaque parts."""
        self._on_delta = on_delta
        self._vendor = vendor
        self._streamed_items: list[_StreamedItem] = []
        self._shown_texts = {"text": "", "reasoning": ""}
        self._counts: dict[str, int] = {}
        self._response: _Response | None = None
        self._has_begun = False
        self._has_mark = False

    def feed(self, data: str) -> ReplyProgress:
        """Process one event. Raises ProviderError for an error event."""
        if data.strip() == END_MARK:
            self._has_mark = True
            return ReplyProgress.LAST
        stream_event = read_event(_ResponseStreamEvent, data, _API)
        # a server that does not stream sends a whole response in one document
        response = (
            stream_event if stream_event.output is not None or stream_event.status in _FINAL else stream_event.response
        )
        if response is not None and response.usage is not None:
            highest(self._counts, response.usage.model_dump())
        end = _ENDS.get(stream_event.type.removeprefix("response."))
        if end is not None or (response is not None and (response is stream_event or response.status in _FINAL)):
            return self._finish_response(response or _Response(), end or "")
        if stream_event.type == "response.created":
            has_begun, self._has_begun = self._has_begun, True
            return ReplyProgress.IDLE if has_begun else ReplyProgress.MORE
        return ReplyProgress.MORE if self._apply(stream_event) else ReplyProgress.IDLE

    def finish(self) -> Generation:
        """Return the reply. Raises ProviderError if the stream ended early."""
        response = self._response or _Response()
        items = self._encode_message(response.output or [])
        reply = ExpertMessage(contents=tuple(part for item in items for part in _decode_item(item, self._vendor)))
        if self._response is None:
            check_end("", (), reply.contents, has_mark=self._has_mark, missing="there was no response.completed")
        self._show_rest(reply)
        return Generation(
            reply, _add_charged_uses(_convert_usage(self._counts), items), _finish_reason(response, items)
        )

    def _finish_response(self, response: _Response, final_status: str) -> ReplyProgress:
        """Record how the response ended. Raises ProviderError if it failed or was cancelled."""
        final_status = response.status if response.status in _FINAL else final_status
        if final_status in ("failed", "cancelled"):
            raise stream_error(response.error if isinstance(response.error, dict) else {"message": response.error})
        response.status = final_status
        self._response = response
        return ReplyProgress.LAST

    def _apply(self, stream_event: _ResponseStreamEvent) -> bool:
        """Process an event within a response. Return False if it adds nothing."""
        if stream_event.item is not None:
            self._merge_item(stream_event, stream_event.item)
            return True
        family, _, step = stream_event.type.rpartition(".")
        if family not in _FIELDS:
            return bool(stream_event.item_id)
        field, kind = _PARTS.get(stream_event.part.type if stream_event.part else "", _FIELDS[family])
        streamed = self._find_or_start_item(stream_event.output_index, stream_event.item_id, kind)
        if streamed.item.type != kind:
            return True  # ignore a piece of another kind of item, which is not part of the reply
        piece = arguments_text(stream_event.delta)
        whole = stream_event.text or stream_event.refusal or arguments_text(stream_event.arguments)
        if stream_event.part is not None:
            whole = stream_event.part.text or stream_event.part.refusal
        if field == "arguments":
            streamed.item.name = streamed.item.name or stream_event.name
            streamed.arguments = whole or streamed.arguments
            streamed.json.append(piece)
        else:
            text = self._streamed_text(streamed, field, stream_event.summary_index or stream_event.content_index or 0)
            text.add(piece)
            if whole:
                text.complete(whole)
            if step == "done":
                text.end()
        return True

    def _merge_item(self, stream_event: _ResponseStreamEvent, item: _Item) -> None:
        """Merge an item's start or end event into the streamed item that it belongs to."""
        is_done = stream_event.type.endswith(".done")
        matches = [
            streamed_item
            for streamed_item in self._streamed_items
            if streamed_item.may_belong_to(stream_event.output_index, item.id, item.type)
            and (not streamed_item.item.call_id or not item.call_id or streamed_item.item.call_id == item.call_id)
        ]
        matches = [streamed_item for streamed_item in matches if not streamed_item.is_done] if is_done else matches
        matches.sort(key=lambda streamed_item: streamed_item.content != _item_content(item))
        streamed_item = next(
            (streamed_item for streamed_item in matches if is_done or not streamed_item.has_start), None
        )
        if streamed_item is None:
            streamed_item = next(
                (
                    streamed_item
                    for streamed_item in self._streamed_items
                    if item.id and streamed_item.item.id == item.id
                ),
                None,
            )
        if streamed_item is None:
            streamed_item = _StreamedItem(stream_event.output_index, item)
            self._streamed_items.append(streamed_item)
        streamed_item.item = _with_missing_fields(item, streamed_item.item)
        streamed_item.has_start = True
        streamed_item.is_done = streamed_item.is_done or is_done

    def _find_or_start_item(self, index: int | None, item_id: str, kind: str) -> _StreamedItem:
        streamed_item = self._find_item(index, item_id, "") if item_id else None
        if streamed_item is None or streamed_item.item.id != item_id:
            streamed_item = self._find_item(index, item_id, kind)
        if streamed_item is None:
            streamed_item = _StreamedItem(index, _Item(type=kind, id=item_id))
            self._streamed_items.append(streamed_item)
        return streamed_item

    def _find_item(self, index: int | None, item_id: str, kind: str) -> _StreamedItem | None:
        """Return the latest item that an event may be about; an item with its id takes precedence."""
        matches = [
            streamed_item
            for streamed_item in reversed(self._streamed_items)
            if streamed_item.may_belong_to(index, item_id, kind)
        ]
        exact = next((streamed_item for streamed_item in matches if item_id and streamed_item.item.id == item_id), None)
        return exact or next(iter(matches), None)

    def _streamed_text(self, streamed: _StreamedItem, field: _Field, index: int) -> StreamedText:
        key = (field, index)
        if key not in streamed.texts:
            kind: Literal["text", "reasoning"] = "text" if field in ("text", "refusal") else "reasoning"
            if field == "summary" and index:
                self._show(Delta(kind, "\n\n"))
            streamed.texts[key] = StreamedText(self._show, kind)
        return streamed.texts[key]

    def _show(self, delta: Delta) -> None:
        self._shown_texts[delta.kind] += delta.text
        self._on_delta(delta)

    def _show_rest(self, reply: ExpertMessage) -> None:
        """Show text and reasoning that no delta has shown."""
        thinking = "".join(part.thinking for part in reply.contents if isinstance(part, ThinkingPart))
        for kind, text in (("reasoning", thinking), ("text", reply.text)):
            if text != self._shown_texts[kind] and text.startswith(self._shown_texts[kind]):
                self._show(Delta("text" if kind == "text" else "reasoning", text[len(self._shown_texts[kind]) :]))

    def _encode_message(self, output: list[_Item]) -> list[_Item]:
        """Return the items of the final response and the streamed items, merged: each occurs once, and complete."""
        indexes = [streamed.index for streamed in self._streamed_items]
        if None not in indexes and len(set(indexes)) == len(indexes):
            self._streamed_items.sort(key=lambda streamed: streamed.index or 0)
        streamed = [streamed_item.assemble() for streamed_item in self._streamed_items]
        more, fewer = (output, streamed) if len(output) > len(streamed) else (streamed, output)
        rest = list(fewer)
        items: list[_Item] = []
        for item in more:
            twin = _find_same(item, rest)
            if twin is not None:
                rest.remove(twin)
                item = _with_missing_fields(item, twin)
            items.append(item)
        return items


def _find_same(item: _Item, others: list[_Item]) -> _Item | None:
    """Return the same item among others: by its id, or by its type if an id is missing."""
    same = [other for other in others if other.type == item.type]
    exact = next((other for other in same if item.id and other.id == item.id), None)
    return exact or next((other for other in same if not (item.id and other.id)), None)


def _with_missing_fields(item: _Item, other: _Item) -> _Item:
    """Return an item with its missing fields filled from another form of it."""
    changes: dict[str, object] = {
        name: value
        for name in ("id", "call_id", "name", "phase", "encrypted_content", "type")
        if not getattr(item, name) and (value := getattr(other, name))
    }
    if not arguments_text(item.arguments).strip() and other.arguments:
        changes["arguments"] = other.arguments
    for name in ("content", "summary"):
        if not _joined_text(getattr(item, name)) and _joined_text(getattr(other, name)):
            changes[name] = getattr(other, name)
    return item.model_copy(update=changes) if changes else item


def _decode_item(item: _Item, vendor: str) -> list[ReplyPart]:
    """Convert an item; empty for an unknown type."""
    match item.type:
        case "reasoning":
            return _decode_thinking(item, vendor)
        case "function_call":
            args, raw_args = read_arguments(join_arguments([arguments_text(item.arguments)]))
            call_id = item.call_id or item.id
            return [ToolCallPart(tool_call_id=call_id, tool_name=item.name, args=args, raw_args=raw_args)]
        case "message":
            text = _joined_text(item.content)
            if not text:
                return []
            # the phase must be sent back with its message
            mark = [ThinkingPart(thinking="", opaque={vendor: {"phase": item.phase}})] if item.phase else []
            return [*mark, TextPart(text=text)]
        case _ if item.type in _HOSTED:
            return [_decode_hosted_use(item, vendor)]
        case _:
            return []


def _decode_hosted_use(item: _Item, vendor: str) -> ProviderToolPart:
    action = item.action if isinstance(item.action, dict) else {}
    args: JsonObject = {name: value for name, value in action.items() if name not in ("type", "sources")}
    if isinstance(item.queries, list):
        args["queries"] = item.queries
    sources = [_source_lines(value) for value in (action.get("sources"), item.results) if isinstance(value, list)]
    lines = [line for group in sources for line in group] or [item.status or "done"]
    raw: JsonObject = whole_json(item.model_dump(exclude_unset=True))
    return ProviderToolPart(
        id=item.id,
        tool_name=_HOSTED[item.type],
        args=args,
        result=readable_result(lines),
        is_error=item.status == "failed",
        opaque={vendor: {"blocks": [raw]}},
    )


def _source_lines(results: list[JsonValue]) -> Iterable[str]:
    """Yield the address or name of each source, with the text that was found there."""
    for result in results:
        if isinstance(result, dict):
            yield " ".join(str(result[name]) for name in ("title", "url", "filename", "text") if result.get(name))


def _add_charged_uses(usage: Usage, items: list[_Item]) -> Usage:
    """Return the usage with the calls of hosted tools that are charged: searches, not the pages opened afterwards."""
    uses: dict[str, int] = {}
    for item in items:
        kind = item.action.get("type") if isinstance(item.action, dict) else None
        if item.type in _HOSTED and item.status != "failed" and kind in (None, "search"):
            uses[_HOSTED[item.type]] = uses.get(_HOSTED[item.type], 0) + 1
    return usage.model_copy(update={"provider_tools": uses}) if uses else usage


def _decode_thinking(item: _Item, vendor: str) -> list[ReplyPart]:
    """Convert reasoning. Only with encrypted or readable content can it be sent back."""
    summary, content = item.summary or [], item.content or []
    thinking = "\n\n".join(_joined_text([part]) for part in summary) or _joined_text(content)
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


def _convert_usage(counts: Mapping[str, int]) -> Usage:
    input_tokens, output_tokens = counts.get("input_tokens", 0), counts.get("output_tokens", 0)
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        reasoning_tokens=counts.get("reasoning_tokens", 0),
        total_tokens=counts.get("total_tokens", 0) or input_tokens + output_tokens,
        cached_input_tokens=counts.get("cached_tokens", 0),
    )
