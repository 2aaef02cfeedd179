"""Anthropic's wire format: requests are what its SDK's types say, replies that its SDK wrote are understood."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import anthropic.types as sdk
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from conversation import call, plain, request_to, result, user
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from wire import decoded

from perstack.core.messages.messages import (
    BlobPart,
    ExpertMessage,
    Message,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolMessage,
)
from perstack.errors import ProviderError
from perstack.ports.provider import Delta, Generation, GenerationRequest
from perstack_anthropic.messages_api import MessagesDecoder, encode
from perstack_anthropic.settings import AnthropicSettings

_PARAMS: TypeAdapter[Any] = TypeAdapter(MessageCreateParamsStreaming)
_EVENT: TypeAdapter[Any] = TypeAdapter(sdk.RawMessageStreamEvent)

SIGNED = ThinkingPart(thinking="Let me see.", opaque={"anthropic": {"signature": "sig=="}})
REDACTED = ThinkingPart(thinking="", opaque={"anthropic": {"data": "enc=="}})


def _request(*messages: Message, model: str = "claude-sonnet-5", **rest: Any) -> GenerationRequest:
    return request_to(model, *messages, **rest)


def _body(request: GenerationRequest, blobs: dict[str, bytes] | None = None, **settings: Any) -> dict[str, Any]:
    """The request's body, which the SDK's own types hold without loss."""
    body = json.loads(encode(request, AnthropicSettings(**settings), blobs or {}))
    assert plain(_PARAMS.validate_python(body)) == body
    return body


# --- requests -----------------------------------------------------------------------------------------------------


def test_a_request_has_model_instruction_tools_and_messages() -> None:
    body = _body(_request())
    assert (body["model"], body["stream"]) == ("claude-sonnet-5", True)
    assert body["system"] == [
        {"type": "text", "text": "You are terse.", "cache_control": {"type": "ephemeral"}},
    ]
    assert [tool["name"] for tool in body["tools"]] == ["read", "bare"]
    assert body["tools"][1]["input_schema"]["type"] == "object"
    assert "tool_choice" not in body


def test_a_tool_loop_becomes_alternating_turns() -> None:
    calls = ExpertMessage(
        contents=(SIGNED, REDACTED, TextPart(text="I look."), call("a", args={"path": "x"}), call("b"))
    )
    results = ToolMessage(contents=(result("a", TextPart(text="text")), result("b", is_error=True)))
    body = _body(_request(user("hi"), calls, results))
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]
    assert body["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "Let me see.", "signature": "sig=="},
        {"type": "redacted_thinking", "data": "enc=="},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "a", "name": "read", "input": {"path": "x"}},
        {"type": "tool_use", "id": "b", "name": "read", "input": {}},
    ]
    assert body["messages"][2]["content"] == [
        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "text"}]},
        {
            "type": "tool_result",
            "tool_use_id": "b",
            "content": [{"type": "text", "text": "(no output)"}],
            "is_error": True,
            "cache_control": {"type": "ephemeral"},
        },
    ]


def test_empty_replies_are_skipped_and_turns_of_one_role_merged() -> None:
    body = _body(_request(user("one"), ExpertMessage(), ExpertMessage(contents=(TextPart(text=" \n"),)), user("two")))
    assert [[block["text"] for block in turn["content"]] for turn in body["messages"]] == [["one", "two"]]


def test_a_blank_query_is_still_a_turn() -> None:
    assert _body(_request(user(" ")))["messages"][0]["content"][0]["text"] == "(no text)"


def test_thinking_that_another_vendor_signed_is_not_sent() -> None:
    foreign = ThinkingPart(thinking="hm", opaque={"openai": {"id": "rs_1"}})
    reply = ExpertMessage(contents=(foreign, ThinkingPart(thinking="unsigned"), TextPart(text="ok")))
    body = _body(_request(user("hi"), reply, user("go on")))
    assert [block["type"] for block in body["messages"][1]["content"]] == ["text"]


def test_a_call_with_broken_arguments_is_sent_back_as_an_object() -> None:
    reply = ExpertMessage(contents=(call("a", raw_args='{"path": '),))
    body = _body(_request(user("hi"), reply, ToolMessage(contents=(result("a", is_error=True),))))
    assert body["messages"][1]["content"][0]["input"] == {"unparsed": '{"path": '}


def test_ids_and_names_of_another_vendor_are_made_legal_in_call_and_result_alike() -> None:
    reply = ExpertMessage(contents=(call("functions.read:0", name="no such tool!"),))
    body = _body(_request(user("hi"), reply, ToolMessage(contents=(result("functions.read:0"),))))
    use, back = body["messages"][1]["content"][0], body["messages"][2]["content"][0]
    assert use["id"] == back["tool_use_id"]
    assert use["id"].replace("_", "").replace("-", "").isalnum()
    assert use["name"] == "no_such_tool"


def test_images_documents_and_texts_are_sent_and_the_rest_is_told_of() -> None:
    blobs = {"i": b"png", "d": b"pdf", "t": "größe".encode(), "m": b"mp3"}
    parts = (
        BlobPart(sha256="i", mime_type="image/png", size=3),
        BlobPart(sha256="d", mime_type="application/pdf", size=3, name="a.pdf"),
        BlobPart(sha256="t", mime_type="text/plain; charset=utf-8", size=7),
        BlobPart(sha256="m", mime_type="audio/mpeg", size=3, name="song"),
    )
    reply = ExpertMessage(contents=(call("a"),))
    body = _body(_request(user("hi"), reply, ToolMessage(contents=(result("a", *parts),))), blobs)
    image, document, text, other = body["messages"][2]["content"][0]["content"]
    assert image["source"] == {"type": "base64", "media_type": "image/png", "data": "cG5n"}
    assert (document["source"]["media_type"], document["title"]) == ("application/pdf", "a.pdf")
    assert text["text"] == "größe"
    assert other["text"].startswith("[song, audio/mpeg, 3 bytes")


@pytest.mark.parametrize(
    "model",
    [
        "claude-sonnet-4-5",
        "claude-haiku-4-5-20251001",
        "claude-opus-4-20250514",
        "claude-opus-4-6",
        "claude-3-7-sonnet-latest",
        "anthropic.claude-sonnet-4-5-20250929-v1:0",
        "claude-sonnet-4@20250514",
        "glm-of-a-compatible-server",
    ],
)
def test_older_models_and_those_of_compatible_servers_are_given_a_budget_in_tokens(model: str) -> None:
    body = _body(_request(model=model, reasoning_budget="medium"))
    assert body["thinking"]["type"] == "enabled"
    assert 1024 <= body["thinking"]["budget_tokens"] < body["max_tokens"]
    assert "output_config" not in body


@pytest.mark.parametrize("model", ["claude-opus-4-7", "claude-sonnet-5", "claude-sonnet-5-5", "claude-fable-5"])
def test_newer_models_are_given_an_effort(model: str) -> None:
    body = _body(_request(model=model, reasoning_budget="high"))
    assert body["thinking"]["type"] == "adaptive"
    assert body["output_config"] == {"effort": "high"}


@pytest.mark.parametrize(("model", "sent"), [("claude-opus-4-7", 0.5), ("claude-sonnet-4-5", 0.2)])
def test_a_request_has_its_own_temperature_where_the_model_takes_one(model: str, sent: float) -> None:
    # the SDK's types no longer have it, though older models take it
    body = encode(_request(model=model, temperature=0.2), AnthropicSettings(temperature=0.5), {})
    assert json.loads(body)["temperature"] == sent


def test_a_request_that_asks_for_more_tokens_than_are_usual_is_given_the_usual_number() -> None:
    assert [_body(_request(max_tokens=most))["max_tokens"] for most in (50, 1_000_000)] == [50, 32_000]


@pytest.mark.parametrize(
    ("budget", "settings", "thinking", "most"),
    [
        (None, {}, None, 32_000),
        ("none", {}, {"type": "disabled"}, 32_000),
        (0, {}, {"type": "disabled"}, 32_000),
        ("minimal", {}, {"type": "enabled", "budget_tokens": 1024}, 32_000),
        (5, {}, {"type": "enabled", "budget_tokens": 1024}, 32_000),
        (50_000, {}, {"type": "enabled", "budget_tokens": 50_000}, 58_192),
        ("high", {"max_tokens": 4000}, {"type": "enabled", "budget_tokens": 3999}, 4000),
        ("minimal", {"max_tokens": 1025}, {"type": "enabled", "budget_tokens": 1024}, 1025),
        ("minimal", {"max_tokens": 1024}, {"type": "disabled"}, 1024),
        (50_000, {"max_tokens": 1}, {"type": "disabled"}, 1),
    ],
)
def test_a_budget_leaves_room_for_the_reply(budget: Any, settings: Any, thinking: Any, most: int) -> None:
    body = _body(_request(model="claude-sonnet-4-5", reasoning_budget=budget), **settings)
    assert (body.get("thinking"), body["max_tokens"]) == (thinking, most)


@given(
    st.sampled_from(["minimal", "low", "medium", "high"]) | st.integers(1, 200_000),
    st.none() | st.integers(1, 200_000),
    st.none() | st.integers(1, 200_000),
)
def test_thinking_always_leaves_a_token_for_the_reply_and_never_gets_fewer_than_the_api_takes(
    budget: Any, setting: int | None, asked: int | None
) -> None:
    settings: dict[str, Any] = {} if setting is None else {"max_tokens": setting}
    body = _body(_request(model="claude-sonnet-4-5", reasoning_budget=budget, max_tokens=asked), **settings)
    assert body["max_tokens"] <= min(one for one in (setting, asked, 208_192) if one is not None)
    if body["thinking"]["type"] == "enabled":
        assert 1024 <= body["thinking"]["budget_tokens"] < body["max_tokens"]
    else:
        assert body["max_tokens"] <= 1024


@pytest.mark.parametrize(("budget", "effort"), [("minimal", "low"), (2000, "low"), (8000, "medium"), (30_000, "high")])
def test_every_budget_has_an_effort(budget: Any, effort: str) -> None:
    assert _body(_request(reasoning_budget=budget))["output_config"] == {"effort": effort}


def test_a_setting_says_how_a_model_of_unknown_name_thinks() -> None:
    assert (
        _body(_request(model="my-sonnet", reasoning_budget="low"), thinking="adaptive")["thinking"]["type"]
        == "adaptive"
    )


def test_broken_text_is_sent_as_far_as_it_goes() -> None:
    assert "a?b" in _body(_request(user("a\ud800b")))["messages"][0]["content"][0]["text"]


# --- replies ------------------------------------------------------------------------------------------------------


def _events() -> list[dict[str, Any]]:
    """A reply with one block of every kind, checked and written by the SDK's own types."""
    usage = {"input_tokens": 10, "output_tokens": 1, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "m", "usage": usage}
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
        (
            {"type": "thinking", "thinking": "", "signature": ""},
            [
                {"type": "thinking_delta", "thinking": "Let me "},
                {"type": "thinking_delta", "thinking": "see…"},
                {"type": "signature_delta", "signature": "sig=="},
            ],
        ),
        ({"type": "redacted_thinking", "data": "enc=="}, []),
        (
            {"type": "text", "text": ""},
            [{"type": "text_delta", "text": "Grüß"}, {"type": "text_delta", "text": " Gott 😀\u2028"}],
        ),
        (
            {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}},
            [{"type": "input_json_delta", "partial_json": part} for part in ("", '{"path": "a', 'b", "n": [1, 2]}')],
        ),
        ({"type": "tool_use", "id": "toolu_2", "name": "bare", "input": {}}, []),
    ]
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None}},
    ]
    for index, (start, deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": "tool_use", "stop_sequence": None}
    counts = {"output_tokens": 50, "output_tokens_details": {"thinking_tokens": 30}}
    events.append({"type": "message_delta", "delta": delta, "usage": counts})
    events.append({"type": "message_stop"})
    return [json.loads(_EVENT.validate_python(event).to_json()) for event in events]


def _stream(events: Iterable[dict[str, Any]]) -> bytes:
    texts = (f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n" for event in events)
    return b'event: ping\ndata: {"type": "ping"}\n\n' + "".join(texts).encode()


def _decode(stream: bytes) -> tuple[Generation, list[Delta]]:
    deltas: list[Delta] = []
    return decoded([stream], MessagesDecoder(deltas.append)), deltas


def test_a_reply_is_put_together_from_its_events() -> None:
    generation, deltas = _decode(_stream(_events()))
    assert generation.reply.contents == (
        ThinkingPart(thinking="Let me see…", opaque={"anthropic": {"signature": "sig=="}}),
        ThinkingPart(thinking="", opaque={"anthropic": {"data": "enc=="}}),
        TextPart(text="Grüß Gott 😀\u2028"),
        ToolCallPart(tool_call_id="toolu_1", tool_name="read", args={"path": "ab", "n": [1, 2]}),
        ToolCallPart(tool_call_id="toolu_2", tool_name="bare"),
    )
    assert generation.finish_reason == "toolCalls"
    assert [(delta.kind, delta.text) for delta in deltas] == [
        ("reasoning", "Let me "), ("reasoning", "see…"), ("text", "Grüß"), ("text", " Gott 😀\u2028"),
    ]  # fmt: skip


def test_usage_counts_all_that_was_sent_and_the_last_word_on_each_count() -> None:
    usage = _decode(_stream(_events()))[0].usage
    assert (usage.input_tokens, usage.cached_input_tokens) == (130, 100)
    assert (usage.output_tokens, usage.reasoning_tokens, usage.total_tokens) == (50, 30, 180)


def test_the_reply_is_what_the_sdk_itself_makes_of_the_events() -> None:
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in _events():
        made = _EVENT.validate_python(event)
        snapshot = accumulate_event(event=made, current_snapshot=snapshot, json_bufs=buffers)
    request = _request(user("hi"), _decode(_stream(_events()))[0].reply, ToolMessage(contents=(result("toolu_1"),)))
    theirs = [block.to_dict() for block in snapshot.content]
    assert _body(request)["messages"][1]["content"] == theirs


@given(st.text(min_size=1).filter(str.strip), st.lists(st.integers(min_value=0), max_size=8))
def test_any_division_of_a_text_into_deltas_gives_the_same_text(text: str, places: list[int]) -> None:
    decoder = MessagesDecoder(lambda delta: None)
    decoder.feed('{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}')
    ends = sorted({place % (len(text) + 1) for place in places})
    for start, end in zip([0, *ends], [*ends, len(text)], strict=True):
        delta = {"type": "text_delta", "text": text[start:end]}
        decoder.feed(json.dumps({"type": "content_block_delta", "index": 0, "delta": delta}))
    decoder.feed('{"type":"message_stop"}')
    assert decoder.finish().reply.text == text


@pytest.mark.parametrize(
    ("stop_reason", "finish_reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refusal"),
        ("pause_turn", "paused"),
        ("something_new", "other"),
    ],
)
def test_the_stop_reason_tells_length_and_refusal_from_completion(stop_reason: str, finish_reason: str) -> None:
    decoder = MessagesDecoder(lambda delta: None)
    decoder.feed(
        json.dumps({"type": "message_delta", "delta": {"stop_reason": stop_reason}, "usage": {"output_tokens": 1}})
    )
    decoder.feed('{"type":"message_stop"}')
    assert decoder.finish().finish_reason == finish_reason


def test_arguments_that_are_no_object_are_kept_as_the_model_wrote_them() -> None:
    decoder = MessagesDecoder(lambda delta: None)
    for index, raw in enumerate(('{"path": "a', "[1]", "nonsense")):
        block = {"type": "tool_use", "id": f"t{index}", "name": "read", "input": {}}
        decoder.feed(json.dumps({"type": "content_block_start", "index": index, "content_block": block}))
        delta = {"type": "input_json_delta", "partial_json": raw}
        decoder.feed(json.dumps({"type": "content_block_delta", "index": index, "delta": delta}))
    decoder.feed('{"type":"message_stop"}')
    calls = decoder.finish().reply.tool_calls
    assert [(call.args, call.raw_args) for call in calls] == [({}, '{"path": "a'), ({}, "[1]"), ({}, "nonsense")]


@pytest.mark.parametrize(
    ("kind", "status", "retryable"),
    [("overloaded_error", 529, True), ("api_error", 500, True), ("invalid_request_error", 400, False)],
)
def test_an_error_inside_the_stream_has_the_status_it_would_have_had(kind: str, status: int, retryable: bool) -> None:
    error = {"type": "error", "error": {"type": kind, "message": "own words"}}
    with pytest.raises(ProviderError, match="own words") as caught:
        _decode(_stream([*_events()[:4], error]))
    assert (caught.value.status_code, caught.value.is_retryable) == (status, retryable)


@pytest.mark.parametrize("data", ["not json", "[]", '{"type": "message_delta", "delta": []}'])
def test_garbage_in_the_stream_is_worth_another_try(data: str) -> None:
    with pytest.raises(ProviderError) as caught:
        MessagesDecoder(lambda delta: None).feed(data)
    assert (caught.value.name, caught.value.is_retryable) == ("BadResponse", True)


def test_events_and_blocks_of_kinds_yet_unknown_are_passed_over() -> None:
    decoder = MessagesDecoder(lambda delta: None)
    decoder.feed('{"type":"weather","temperature":21}')
    decoder.feed('{"type":"content_block_start","index":0,"content_block":{"type":"hologram","id":null}}')
    decoder.feed('{"type":"content_block_delta","index":0,"delta":{"type":"hologram_delta","light":1}}')
    decoder.feed('{"type":"content_block_delta","index":7,"delta":{"type":"hologram_delta","light":1}}')
    decoder.feed('{"type":"message_stop"}')
    assert decoder.finish().reply.contents == ()


def test_arguments_of_a_call_that_never_began_are_an_error_and_not_lost() -> None:
    decoder, delta = MessagesDecoder(lambda delta: None), '{"type":"input_json_delta","partial_json":"{}"}'
    decoder.feed('{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}')
    with pytest.raises(ProviderError, match="a delta of block 7, which has no start") as caught:
        decoder.feed(f'{{"type":"content_block_delta","index":7,"delta":{delta}}}')
    assert (caught.value.name, caught.value.is_retryable) == ("BadResponse", True)
