"""However a reply is cut into deltas, even inside a character or an escape, it is the same reply."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire import Decoder

from perstack.http_providers.replies import join_arguments, read_arguments
from perstack.ports.provider import Delta
from perstack_anthropic.messages_api import MessagesDecoder
from perstack_bedrock.reply import ConverseDecoder
from perstack_google.reply import GeminiDecoder
from perstack_openai.chat_completions import ChatDecoder
from perstack_openai.responses_api import ResponsesDecoder

Events = Iterable[dict[str, Any]]


def _units(text: str) -> list[str]:
    """Return the UTF-16 code units of a text, halves of pairs as they are."""
    data = text.encode("utf-16-le")
    return [chr(data[at] | data[at + 1] << 8) for at in range(0, len(data), 2)]


def _cut(text: str, places: Sequence[int]) -> list[str]:
    units = _units(text)
    ends = sorted({place % (len(units) + 1) for place in places})
    return ["".join(units[start:end]) for start, end in zip([0, *ends], [*ends, len(units)], strict=True)]


def _chat(text: list[str], calls: list[list[str]]) -> Events:
    yield from ({"choices": [{"delta": {"content": one}}]} for one in text)
    begun = [{"index": at, "id": f"c{at}", "function": {"name": "read"}} for at in range(len(calls))]
    yield {"choices": [{"delta": {"tool_calls": begun}}]}
    for row in range(max(map(len, calls))):  # interleaved
        for at, pieces in enumerate(calls):
            if row < len(pieces):
                yield {"choices": [{"delta": {"tool_calls": [{"index": at, "function": {"arguments": pieces[row]}}]}}]}
    yield {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}


def _messages(text: list[str], calls: list[list[str]]) -> Events:
    yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    yield from ({"type": "content_block_delta", "index": 0, "delta": {"text": one}} for one in text)
    for at, pieces in enumerate(calls, 1):
        block = {"type": "tool_use", "id": f"c{at}", "name": "read", "input": {}}
        yield {"type": "content_block_start", "index": at, "content_block": block}
        yield from ({"type": "content_block_delta", "index": at, "delta": {"partial_json": one}} for one in pieces)
    yield {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}


def _responses(text: list[str], calls: list[list[str]]) -> Events:
    yield from ({"type": "response.output_text.delta", "output_index": 0, "delta": one} for one in text)
    for at, pieces in enumerate(calls, 1):
        item = {"type": "function_call", "id": f"f{at}", "call_id": f"c{at}", "name": "read", "arguments": ""}
        yield {"type": "response.output_item.added", "output_index": at, "item": item}
        kind = "response.function_call_arguments.delta"
        yield from ({"type": kind, "output_index": at, "delta": one} for one in pieces)
    yield {"type": "response.completed", "response": {"status": "completed", "output": []}}


def _gemini(text: list[str], calls: list[list[str]]) -> Events:
    yield from ({"candidates": [{"content": {"parts": [{"text": one}]}}]} for one in text)
    parts = [{"functionCall": {"name": "read", "args": "".join(pieces)}} for pieces in calls]
    yield {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]}


def _converse(text: list[str], calls: list[list[str]]) -> Events:
    yield from ({"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": one}}} for one in text)
    for at, pieces in enumerate(calls, 1):
        use = {"toolUse": {"toolUseId": f"c{at}", "name": "read"}}
        yield {"contentBlockStart": {"contentBlockIndex": at, "start": use}}
        for one in pieces:
            yield {"contentBlockDelta": {"contentBlockIndex": at, "delta": {"toolUse": {"input": one}}}}
    yield {"messageStop": {"stopReason": "tool_use"}}


Make = Callable[[Callable[[Delta], None]], Decoder]
FORMATS: dict[str, tuple[Callable[[list[str], list[list[str]]], Events], Make]] = {
    "chat": (_chat, ChatDecoder),
    "messages": (_messages, MessagesDecoder),
    "responses": (_responses, lambda on_delta: ResponsesDecoder(on_delta, "openai")),
    "gemini": (_gemini, GeminiDecoder),
    "converse": (_converse, ConverseDecoder),
}

_texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
_arguments = st.dictionaries(_texts, st.recursive(_texts | st.integers() | st.none(), st.lists), max_size=4)
_places = st.lists(st.integers(min_value=0, max_value=400), max_size=8)


@pytest.mark.parametrize("name", FORMATS)
def test_any_cutting_into_deltas_gives_the_same_reply(name: str) -> None:
    events_of, make = FORMATS[name]

    @given(
        _texts, st.lists(_arguments, min_size=1, max_size=3), st.lists(_places, min_size=4, max_size=4), st.booleans()
    )
    def decodes_alike(text: str, given_arguments: list[Any], places: list[list[int]], is_escaped: bool) -> None:
        calls = [
            _cut(json.dumps(one, ensure_ascii=is_escaped), cuts)
            for one, cuts in zip(given_arguments, places[1:], strict=False)
        ]
        deltas: list[Delta] = []
        decoder = make(deltas.append)
        for event in events_of(_cut(text, places[0]), calls):
            decoder.feed(json.dumps(event))
        reply = decoder.finish().reply
        assert reply.text == text
        assert [call.args for call in reply.tool_calls] == given_arguments
        assert "".join(delta.text for delta in deltas) == text
        assert all(delta.text.encode() for delta in deltas)

    decodes_alike()


@pytest.mark.parametrize("name", FORMATS)
def test_a_half_that_stays_alone_becomes_the_replacement_character(name: str) -> None:
    events_of, make = FORMATS[name]
    deltas: list[Delta] = []
    decoder = make(deltas.append)
    for event in events_of(["a\ud83d", "b\ude00", "c\ud83d"], [['{"x": "\ud83d"}'], ['{"x": "\ude00"}']]):
        decoder.feed(json.dumps(event))
    reply = decoder.finish().reply
    assert reply.text == "".join(delta.text for delta in deltas) == "a\ufffdb\ufffdc\ufffd"
    assert [call.args for call in reply.tool_calls] == [{"x": "\ufffd"}] * 2, "halves of two calls are no pair"


@given(_arguments.filter(bool), _places, st.sampled_from(["", "{}", "null", '""']))
def test_arguments_survive_a_placeholder_before_them_and_a_repetition(
    arguments: dict[str, Any], places: list[int], placeholder: str
) -> None:
    pieces = _cut(json.dumps(arguments), places)
    for found in ([placeholder, *pieces], [*pieces, json.dumps(arguments)], [placeholder, *pieces, *pieces]):
        assert read_arguments(join_arguments(found)) == (arguments, None)


@pytest.mark.parametrize("text", ['{"path": "a', "[1]", '{"a": 1}{"a": 2}', "nonsense", '{"a": 1} and more'])
def test_arguments_that_cannot_be_read_stay_as_they_came(text: str) -> None:
    assert read_arguments(join_arguments([text])) == ({}, text)
