"""Responses: requests are what the SDK says; its streams become replies that go back as they came."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conversation import call, plain, request_to, result, user
from hypothesis import given
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from pydantic import TypeAdapter
from responses_stream import EVENT, events_of, message, reasoning, refusal, response, stream_of
from responses_stream import call as function_call
from wire import decoded

from perstack.core.messages.messages import (
    BlobPart,
    ExpertMessage,
    Message,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolMessage,
    UserMessage,
)
from perstack.errors import ProviderError
from perstack.http_providers.replies import ReplyProgress
from perstack.ports.provider import Delta, Generation, GenerationRequest
from perstack_openai.dialect import Dialect
from perstack_openai.responses_api import ResponsesDecoder, encode_responses

_PARAMS: TypeAdapter[Any] = TypeAdapter(ResponseCreateParamsStreaming)
BLOBS = {"i": b"png", "d": b"pdf", "t": "größe".encode(), "m": b"mp3"}
IMAGE = BlobPart(sha256="i", mime_type="image/png", size=3)
DOCUMENT = BlobPart(sha256="d", mime_type="application/pdf", size=3, name="a.pdf")
TEXT = BlobPart(sha256="t", mime_type="text/plain", size=7)
SONG = BlobPart(sha256="m", mime_type="audio/mpeg", size=3)
THOUGHT = {"id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": "gAAA="}


def _request(*messages: Message, model: str = "gpt-5-mini", **rest: Any) -> GenerationRequest:
    return request_to(model, *messages, **rest)


def _thought(vendor: str = "openai", **ours: Any) -> ThinkingPart:
    return ThinkingPart(thinking="Hm.", opaque={vendor: ours or THOUGHT})


def _body(request: GenerationRequest, dialect: Dialect | None = None) -> dict[str, Any]:
    """The request's body, which the SDK's own types hold without loss."""
    body = json.loads(encode_responses(request, dialect or Dialect(), BLOBS))
    assert plain(_PARAMS.validate_python(body)) == body
    return body


# --- requests -----------------------------------------------------------------------------------------------------


def test_a_request_has_model_instruction_tools_and_input_and_is_stored_nowhere() -> None:
    body = _body(_request())
    assert (body["model"], body["stream"], body["store"]) == ("gpt-5-mini", True, False)
    assert body["include"] == ["reasoning.encrypted_content"]
    assert body["instructions"] == "You are terse."
    assert body["input"] == [{"type": "message", "role": "user", "content": "hi"}]
    assert [(tool["name"], tool["strict"]) for tool in body["tools"]] == [("read", False), ("bare", False)]
    assert body["tools"][1]["parameters"]["type"] == "object"
    assert not {"tool_choice", "reasoning", "max_output_tokens", "temperature", "top_p"} & set(body)


@pytest.mark.parametrize(("model", "sent"), [("gpt-5-mini", 0.5), ("gpt-4.1", 0.2)])
def test_a_request_has_its_own_temperature_where_the_model_takes_one(model: str, sent: float) -> None:
    body = _body(_request(model=model, max_tokens=50, temperature=0.2), Dialect(temperature=0.5))
    assert (body["max_output_tokens"], body["temperature"]) == (50, sent)


def test_a_tool_loop_keeps_the_order_of_reasoning_text_and_calls() -> None:
    reply = ExpertMessage(
        contents=(_thought(), TextPart(text="I look."), call("a", args={"path": "ö"}), call("b", raw_args="{"))
    )
    results = ToolMessage(
        contents=(result("a", TextPart(text="text")), result("b", TextPart(text="no"), is_error=True))
    )
    assert _body(_request(user("hi"), reply, results))["input"][1:] == [
        {"type": "reasoning", **THOUGHT},
        {"type": "message", "role": "assistant", "content": "I look."},
        {"type": "function_call", "call_id": "a", "name": "read", "arguments": '{"path": "ö"}'},
        {"type": "function_call", "call_id": "b", "name": "read", "arguments": '{"unparsed": "{"}'},
        {"type": "function_call_output", "call_id": "a", "output": "text"},
        {"type": "function_call_output", "call_id": "b", "output": "Error: no"},
    ]


def test_reasoning_goes_back_only_to_the_vendor_that_encrypted_it() -> None:
    reply = ExpertMessage(contents=(_thought(), ThinkingPart(thinking="plain"), TextPart(text="yes")))
    azure = _body(_request(user("hi"), reply), Dialect(vendor="azure-openai"))
    assert [item["type"] for item in azure["input"]] == ["message", "message"]


def test_reasoning_that_led_to_nothing_is_left_out_for_the_api_refuses_it() -> None:
    reply = ExpertMessage(contents=(_thought(), TextPart(text="half"), _thought(), TextPart(text=" ")))
    items = _body(_request(user("hi"), reply, user("go on")))["input"]
    assert [item["type"] for item in items] == ["message", "reasoning", "message", "message"]


def test_the_phase_of_a_message_is_sent_back_with_it_alone() -> None:
    reply = ExpertMessage(contents=(_thought(phase="commentary"), TextPart(text="one"), TextPart(text="two")))
    first, second = _body(_request(user("hi"), reply))["input"][1:]
    assert (first["phase"], "phase" in second) == ("commentary", False)


def test_images_documents_and_texts_are_sent_and_the_rest_is_told_of() -> None:
    query = UserMessage(contents=(TextPart(text="look"), IMAGE, DOCUMENT, TEXT, SONG))
    look, image, document, text, other = _body(_request(query))["input"][0]["content"]
    assert look == {"type": "input_text", "text": "look"}
    assert image["image_url"] == "data:image/png;base64,cG5n"
    assert (document["filename"], document["file_data"]) == ("a.pdf", "data:application/pdf;base64,cGRm")
    assert text["text"] == "größe"
    assert "audio/mpeg, 3 bytes" in other["text"]


def test_a_tool_may_return_images_and_documents() -> None:
    reply = ExpertMessage(contents=(call("a"), call("b")))
    results = ToolMessage(
        contents=(result("a", TextPart(text="seen"), IMAGE, DOCUMENT), result("b", IMAGE, is_error=True))
    )
    first, second = _body(_request(user("hi"), reply, results))["input"][-2:]
    assert [part["type"] for part in first["output"]] == ["input_text", "input_image", "input_file"]
    assert second["output"][0] == {"type": "input_text", "text": "Error:"}


def test_a_server_that_takes_no_images_or_documents_gets_text_in_their_place() -> None:
    dialect = Dialect(takes_images=False, takes_documents=False)
    content = _body(_request(UserMessage(contents=(IMAGE, DOCUMENT))), dialect)["input"][0]["content"]
    assert "[image/png, 3 bytes: this model cannot" in content
    assert "[a.pdf, application/pdf, 3 bytes" in content


@pytest.mark.parametrize(
    ("model", "budget", "wanted"),
    [
        ("gpt-5-mini", None, None),
        ("gpt-5-mini", "none", {"effort": "minimal"}),
        ("gpt-5.4", "none", {"effort": "none"}),
        ("gpt-5.4", "minimal", {"effort": "low"}),
        ("gpt-5.4", None, None),
        ("o4-mini", 0, {"effort": "low"}),
        ("gpt-5", 10_000, {"effort": "medium"}),
        ("my-deployment", "high", {"effort": "high"}),
    ],
)
def test_a_budget_becomes_the_nearest_effort_that_the_model_has(model: str, budget: Any, wanted: Any) -> None:
    assert _body(_request(model=model, reasoning_budget=budget)).get("reasoning") == wanted


def test_a_model_that_does_not_reason_is_asked_for_nothing_of_it() -> None:
    for model, dialect in (("gpt-4.1", Dialect()), ("mine", Dialect(reasoning=False))):
        body = _body(_request(model=model, reasoning_budget="high"), dialect)
        assert not {"reasoning", "include"} & set(body)


def test_a_summary_of_the_reasoning_is_asked_for_if_the_user_wants_one() -> None:
    body = _body(_request(reasoning_budget="low"), Dialect(reasoning_summary="auto"))
    assert body["reasoning"] == {"effort": "low", "summary": "auto"}


# --- replies ------------------------------------------------------------------------------------------------------

OUTPUT = (
    reasoning("rs_1", "I think.", "I think more 😀."),
    message("msg_1", "Grüß Gott 😀\u2028", phase="commentary"),
    reasoning("rs_2", encrypted="gBBB="),
    function_call("fc_1", "call_1", "read", '{"path": "ab", "n": [1, 2]}'),
    function_call("fc_2", "call_2", "bare", "{}"),
)


def _decode(stream: bytes) -> tuple[Generation, list[Delta]]:
    deltas: list[Delta] = []
    return decoded([stream], ResponsesDecoder(deltas.append, "openai")), deltas


def _fed(*events: dict[str, Any] | str) -> Generation:
    decoder = ResponsesDecoder(lambda delta: None, "openai")
    for event in events:
        if decoder.feed(event if isinstance(event, str) else json.dumps(event)) is ReplyProgress.LAST:
            break
    return decoder.finish()


def test_a_reply_is_put_together_from_its_items_in_their_order() -> None:
    generation, _ = _decode(stream_of(events_of(*OUTPUT)))
    first, mark, text, second, *calls = generation.reply.contents
    assert isinstance(first, ThinkingPart)
    assert first.thinking == "I think.\n\nI think more 😀."
    assert mark == ThinkingPart(thinking="", opaque={"openai": {"phase": "commentary"}})
    assert text == TextPart(text="Grüß Gott 😀\u2028")
    assert second == ThinkingPart(
        thinking="", opaque={"openai": {"id": "rs_2", "summary": [], "encrypted_content": "gBBB="}}
    )
    assert calls == [
        ToolCallPart(tool_call_id="call_1", tool_name="read", args={"path": "ab", "n": [1, 2]}),
        ToolCallPart(tool_call_id="call_2", tool_name="bare"),
    ]
    assert generation.finish_reason == "toolCalls"


def test_text_and_reasoning_are_shown_as_they_come() -> None:
    _, deltas = _decode(stream_of(events_of(*OUTPUT)))
    shown = {kind: "".join(delta.text for delta in deltas if delta.kind == kind) for kind in ("text", "reasoning")}
    assert shown == {"text": "Grüß Gott 😀\u2028", "reasoning": "I think.\n\nI think more 😀."}
    assert len(deltas) > 5


def test_usage_counts_cached_and_reasoning_tokens() -> None:
    usage = _decode(stream_of(events_of(*OUTPUT)))[0].usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (100, 50, 150)
    assert (usage.cached_input_tokens, usage.reasoning_tokens) == (64, 30)


def test_the_reply_is_what_the_sdk_itself_makes_of_the_events() -> None:
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=omit, text_format=omit)
    for event in events_of(*OUTPUT):
        (*_, last) = state.handle_event(EVENT.validate_python(event)) or [None]
    assert last is not None
    assert last.type == "response.completed"
    theirs = last.response
    reply = _decode(stream_of(events_of(*OUTPUT)))[0].reply
    assert reply.text == theirs.output_text
    assert [(call.tool_call_id, call.tool_name, call.args) for call in reply.tool_calls] == [
        (item.call_id, item.name, json.loads(item.arguments)) for item in theirs.output if item.type == "function_call"
    ]


def test_what_the_api_sent_is_what_it_gets_back() -> None:
    reply = _decode(stream_of(events_of(*OUTPUT)))[0].reply
    items = _body(_request(user("hi"), reply))["input"][1:]
    assert [item["type"] for item in items] == [item["type"] for item in OUTPUT]
    for sent, got in zip(items, OUTPUT, strict=True):
        if got["type"] == "reasoning":
            assert sent == got
        if got["type"] == "message":
            assert (sent["content"], sent["phase"]) == (got["content"][0]["text"], got["phase"])


@given(st.integers(min_value=0, max_value=len(events_of(*OUTPUT)) - 1))
def test_a_stream_cut_after_any_event_is_worth_another_try_and_nothing_of_it_is_kept(count: int) -> None:
    with pytest.raises(ProviderError) as caught:
        _fed(*events_of(*OUTPUT)[:count])
    assert (caught.value.name, caught.value.is_retryable) == ("CutStream", True)


@pytest.mark.parametrize(
    ("reason", "expected"), [("max_output_tokens", "length"), ("content_filter", "refusal"), ("new", "other")]
)
def test_an_incomplete_response_is_told_from_completion(reason: str, expected: str) -> None:
    events = events_of(message("m", "half"), status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    events[-1]["response"]["incomplete_details"]["reason"] = reason
    generation = _fed(*events)
    assert (generation.reply.text, generation.finish_reason) == ("half", expected)


def test_completion_and_refusal_are_told_apart() -> None:
    assert _fed(*events_of(message("m", "yes"))).finish_reason == "stop"
    generation, deltas = _decode(stream_of(events_of(refusal("m", "I won't."))))
    assert (generation.reply.text, generation.finish_reason) == ("I won't.", "refusal")
    assert "".join(delta.text for delta in deltas) == "I won't."


def test_arguments_that_are_no_object_are_kept_as_the_model_wrote_them() -> None:
    items = [function_call(f"f{at}", f"c{at}", "read", raw) for at, raw in enumerate(('{"path": "a', "[1]", ""))]
    parts = _fed(*events_of(*items)).reply.tool_calls
    assert [(part.args, part.raw_args) for part in parts] == [({}, '{"path": "a'), ({}, "[1]"), ({}, None)]


@pytest.mark.parametrize(
    ("code", "words", "status", "retryable", "name"),
    [
        ("server_error", "own words", 500, True, "ServerError"),
        ("rate_limit_exceeded", "own words", 429, True, "RateLimit"),
        ("invalid_prompt", "own words", 400, False, "BadRequest"),
        ("image_too_large", "own words", 400, False, "BadRequest"),
        ("bio_policy", "own words", 400, False, "BadRequest"),
        ("context_length_exceeded", "own words", 400, False, "ContextOverflow"),
        ("something_new", "own words", 500, True, "ServerError"),
    ],
)
def test_an_error_inside_the_stream_keeps_its_words(
    code: str, words: str, status: int, retryable: bool, name: str
) -> None:
    found = {"code": code, "message": words}
    flat = {"type": "error", "sequence_number": 1, "param": None, **found}
    nested = {"type": "error", "error": {"type": "t", **found}}
    failed = {"type": "response.failed", "response": response([], "failed", error=found)}
    for event in (flat, nested, failed, {"error": found}):
        with pytest.raises(ProviderError, match="own words") as caught:
            _fed(*events_of(message("m", "half"))[:3], event)
        error = caught.value
        assert (error.status_code, error.is_retryable, error.name) == (status, retryable, name)


def test_a_failure_without_words_is_still_a_failure() -> None:
    for event in ({"type": "response.failed"}, {"type": "error"}):
        with pytest.raises(ProviderError, match="without an explanation"):
            _fed(event)


@pytest.mark.parametrize(("words", "seconds"), [("in 1.5s.", 1.5), ("in 250ms", 0.25), ("later", None)])
def test_how_long_to_wait_is_read_from_the_words_inside_a_stream(words: str, seconds: float | None) -> None:
    error = {"type": "error", "code": "rate_limit_exceeded", "message": f"Please try again {words}"}
    with pytest.raises(ProviderError) as caught:
        _fed(error)
    assert caught.value.retry_after == seconds


# --- servers that are nearly compatible -----------------------------------------------------------------------------


def test_items_that_come_only_at_the_end_or_never_again_are_taken() -> None:
    events = events_of(*OUTPUT)
    whole = _fed(*events).reply
    assert _fed(*(event for event in events if event["type"] != "response.output_item.done")).reply == whole
    events[-1]["response"]["output"] = []
    assert _fed(*events).reply == whole


def test_items_that_all_have_index_zero_keep_the_order_in_which_they_came() -> None:
    events = [{**event, "output_index": 0} for event in events_of(*OUTPUT)]
    assert _fed(*events).reply == _fed(*events_of(*OUTPUT)).reply


def test_a_server_that_does_not_stream_is_understood() -> None:
    whole = Response.model_validate(response([*OUTPUT])).to_json()
    assert _fed(whole) == _fed(*events_of(*OUTPUT))


def test_reasoning_that_nobody_encrypted_goes_back_as_its_content() -> None:
    item = {**reasoning("rs_1", encrypted=None), "content": [{"type": "reasoning_text", "text": "Hm."}]}
    done = {"type": "response.output_item.done", "output_index": 0, "item": item}
    generation = _fed(done, *events_of(message("m", "yes"))[-2:])
    (thought, *_) = generation.reply.contents
    assert isinstance(thought, ThinkingPart)
    assert thought.thinking == "Hm."
    assert _body(_request(user("hi"), generation.reply))["input"][1]["content"] == item["content"]


def test_reasoning_that_cannot_be_sent_back_is_kept_to_read() -> None:
    generation = _fed(*events_of(reasoning("rs_1", "Hm.", encrypted=None), reasoning("rs_2", encrypted=None)))
    assert generation.reply.contents == (ThinkingPart(thinking="Hm."),)


def test_missing_usage_and_unknown_events_and_items_are_passed_over() -> None:
    events = events_of(message("m", "yes"), {**message("x", "no"), "type": "message"})
    for event in events:
        if "item" in event and event["item"]["id"] == "x":
            event["item"]["type"] = "something_new"
    events[-1]["response"] |= {"usage": None, "output": []}
    generation = _fed({"type": "response.something.new", "delta": 5}, "{}", *events)
    assert (generation.reply.text, generation.usage.total_tokens) == ("yes", 0)


@pytest.mark.parametrize("data", ["not json", "[]", '{"type": "x", "item": "no"}'])
def test_garbage_in_the_stream_is_worth_another_try(data: str) -> None:
    with pytest.raises(ProviderError) as caught:
        _fed(data)
    assert (caught.value.name, caught.value.is_retryable) == ("BadResponse", True)
