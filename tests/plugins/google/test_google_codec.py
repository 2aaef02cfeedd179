"""Google's wire format: requests are what its SDK's types say, replies that its SDK wrote are understood."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conversation import request_to
from google.genai import types as sdk
from wire_google import chunk

from perstack.core.messages.messages import (
    BlobPart,
    ExpertMessage,
    Message,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from perstack.errors import ProviderError
from perstack.http_providers.replies import ReplyProgress
from perstack.ports.provider import Delta, GenerationRequest
from perstack_google.reply import GeminiDecoder
from perstack_google.request import UNSIGNED, GoogleSettings, encode

_SDK_OF = {
    "systemInstruction": sdk.Content,
    "toolConfig": sdk.ToolConfig,
    "generationConfig": sdk.GenerationConfig,
}
IMAGE = BlobPart(sha256="i", mime_type="image/png", size=3)
PDF = BlobPart(sha256="p", mime_type="application/pdf", size=3)
GIF = BlobPart(sha256="g", mime_type="image/gif", size=3)
BLOBS = dict.fromkeys("ipg", b"png")


def _user(*contents: TextPart | BlobPart) -> UserMessage:
    return UserMessage(contents=contents or (TextPart(text="hi"),))


def _request(*messages: Message, **rest: Any) -> GenerationRequest:
    return request_to(rest.pop("model", "gemini-3.8-flash"), *messages, **rest)


def _as_sdk(kind: Any, value: Any) -> Any:
    return kind.model_validate(value).model_dump(mode="json", by_alias=True, exclude_none=True)


def _body(request: GenerationRequest, **settings: Any) -> dict[str, Any]:
    """The request's body, which the SDK's own types hold without loss."""
    body: dict[str, Any] = json.loads(encode(request, GoogleSettings(**settings), BLOBS))
    assert set(body) <= {*_SDK_OF, "tools", "contents"}
    for key, kind in _SDK_OF.items():
        assert key not in body or _as_sdk(kind, body[key]) == body[key]
    assert [_as_sdk(sdk.Tool, tool) for tool in body.get("tools", [])] == body.get("tools", [])
    assert [_as_sdk(sdk.Content, content) for content in body["contents"]] == body["contents"]
    return body


def _parts(request: GenerationRequest, index: int = -1) -> Any:
    return _body(request)["contents"][index]["parts"]


# --- requests -----------------------------------------------------------------------------------------------------


def test_a_request_has_instruction_tools_and_contents() -> None:
    body = _body(_request())
    assert body["systemInstruction"] == {"parts": [{"text": "You are terse."}]}
    (tools,) = body["tools"]
    assert [tool["name"] for tool in tools["functionDeclarations"]] == ["read", "bare"]
    assert tools["functionDeclarations"][1] == {"name": "bare", "description": "bare"}
    assert body["contents"] == [{"role": "user", "parts": [{"text": "hi"}]}]
    assert "toolConfig" not in body
    assert "generationConfig" not in body


def test_a_request_has_limits_of_its_own_within_those_that_are_set() -> None:
    body = _body(_request(max_tokens=50, temperature=0.2), max_tokens=99, temperature=0.5)
    assert body["generationConfig"] == {"maxOutputTokens": 50, "temperature": 0.2}


def test_calls_and_their_results_share_ids_and_results_come_together() -> None:
    calls = ExpertMessage(
        contents=(
            ToolCallPart(
                tool_call_id="a",
                tool_name="read",
                args={"path": "x"},
                opaque={"google": {"signature": "c2ln"}},
            ),
            ToolCallPart(tool_call_id="b", tool_name="read"),
        )
    )
    results = ToolMessage(
        contents=(
            ToolResultPart(tool_call_id="a", tool_name="read", contents=(TextPart(text="found"),)),
            ToolResultPart(tool_call_id="b", tool_name="read", contents=(TextPart(text="no"),), is_error=True),
        )
    )
    body = _body(_request(_user(), calls, results))
    assert body["contents"][1:] == [
        {
            "role": "model",
            "parts": [
                {"functionCall": {"id": "a", "name": "read", "args": {"path": "x"}}, "thoughtSignature": "c2ln"},
                {"functionCall": {"id": "b", "name": "read", "args": {}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "a", "name": "read", "response": {"output": "found"}}},
                {"functionResponse": {"id": "b", "name": "read", "response": {"error": "no"}}},
            ],
        },
    ]


def test_the_first_call_of_another_vendors_model_is_given_what_google_takes_for_a_signature() -> None:
    foreign = ExpertMessage(
        contents=(
            ThinkingPart(thinking="hm", opaque={"anthropic": {"signature": "x"}}),
            ToolCallPart(tool_call_id="a", tool_name="read"),
            ToolCallPart(tool_call_id="b", tool_name="read"),
        )
    )
    assert [part.get("thoughtSignature") for part in _parts(_request(_user(), foreign))] == [UNSIGNED, None]
    older = _parts(_request(_user(), foreign, model="gemini-2.5-pro"))
    assert [part.get("thoughtSignature") for part in older] == [None, None]


def test_images_and_pdfs_are_sent_inline_and_others_told_in_words() -> None:
    image, pdf, gif = _parts(_request(_user(IMAGE, PDF, GIF)))
    assert image == {"inlineData": {"mimeType": "image/png", "data": "cG5n"}}
    assert pdf["inlineData"]["mimeType"] == "application/pdf"
    assert "image/gif, 3 bytes" in gif["text"]


def test_files_of_results_stand_within_them_and_after_them_for_older_models() -> None:
    result = ToolResultPart(tool_call_id="a", tool_name="read", contents=(TextPart(text="see"), IMAGE))
    call = ExpertMessage(contents=(ToolCallPart(tool_call_id="a", tool_name="read"),))
    history = (_user(), call, ToolMessage(contents=(result, result)))
    inline = {"inlineData": {"mimeType": "image/png", "data": "cG5n"}}
    for part in _parts(_request(*history)):
        assert part["functionResponse"]["parts"] == [inline]
    older = _parts(_request(*history, model="gemini-2.5-flash"))
    assert [next(iter(part)) for part in older] == ["functionResponse"] * 2 + ["inlineData"] * 2


def test_empty_replies_are_skipped_and_a_blank_query_is_still_a_turn() -> None:
    blank = ExpertMessage(contents=(TextPart(text=" \n"),))
    body = _body(_request(_user(TextPart(text=" ")), blank, ExpertMessage(), _user()))
    assert [content["parts"] for content in body["contents"]] == [[{"text": "(no text)"}], [{"text": "hi"}]]


@pytest.mark.parametrize(
    ("model", "budget", "config"),
    [
        ("gemini-3.8-flash", "none", {"thinkingLevel": "MINIMAL", "includeThoughts": False}),
        ("gemini-3.8-flash", "medium", {"thinkingLevel": "MEDIUM", "includeThoughts": True}),
        ("gemini-3.8-flash", 4096, {"thinkingLevel": "LOW", "includeThoughts": True}),
        ("gemini-flash-latest", 50_000, {"thinkingLevel": "HIGH", "includeThoughts": True}),
        ("gemini-3.1-pro-preview", "minimal", {"thinkingLevel": "LOW", "includeThoughts": True}),
        ("gemini-3-pro-preview", "medium", {"thinkingLevel": "HIGH", "includeThoughts": True}),
        ("gemini-2.5-flash", "none", {"thinkingBudget": 0, "includeThoughts": False}),
        ("gemini-2.5-flash", 50_000, {"thinkingBudget": 24_576, "includeThoughts": True}),
        ("gemini-2.5-flash-lite", 5, {"thinkingBudget": 512, "includeThoughts": True}),
        ("gemini-2.5-pro", 0, {"thinkingBudget": 128, "includeThoughts": True}),
        ("gemini-2.0-flash", "high", None),
        ("gemma-3-27b-it", "high", None),
        ("gemini-3.8-flash", None, None),
    ],
)
def test_a_reasoning_budget_is_sent_as_the_generation_of_the_model_takes_it(
    model: str, budget: Any, config: dict[str, Any] | None
) -> None:
    body = _body(_request(model=model, reasoning_budget=budget))
    assert body.get("generationConfig", {}).get("thinkingConfig") == config


def test_the_setting_says_how_a_model_takes_a_budget_where_its_name_does_not() -> None:
    body = _body(_request(model="mine", reasoning_budget="low"), thinking="budget")
    assert body["generationConfig"]["thinkingConfig"]["thinkingBudget"] == 4096


# --- replies ------------------------------------------------------------------------------------------------------


def _call(call_id: str, path: str, signature: bytes | None = None) -> sdk.Part:
    call = sdk.FunctionCall(id=call_id, name="read", args={"path": path})
    return sdk.Part(function_call=call, thought_signature=signature)


USAGE = {
    "prompt_token_count": 100,
    "candidates_token_count": 30,
    "thoughts_token_count": 20,
    "cached_content_token_count": 40,
    "total_token_count": 150,
}
RECORDED = (
    chunk(sdk.Part(text="Let me ", thought=True), usage={"prompt_token_count": 100}),
    chunk(sdk.Part(text="see.", thought=True)),
    chunk(sdk.Part(text="I lo")),
    chunk(sdk.Part(text="ök.")),
    chunk(_call("c1", "a", b"sig1"), _call("c2", "b")),
    chunk(sdk.Part(text="", thought_signature=b"sig2"), finish="STOP", usage=USAGE),
)


def _fed(*data: str) -> GeminiDecoder:
    decoder = GeminiDecoder(lambda delta: None)
    for one in data:
        decoder.feed(one)
    return decoder


def test_a_recorded_stream_becomes_parts_usage_and_deltas() -> None:
    deltas: list[Delta] = []
    decoder = GeminiDecoder(deltas.append)
    assert [decoder.feed(data) for data in RECORDED] == [ReplyProgress.MORE] * 5 + [ReplyProgress.FINISHED]
    generation = decoder.finish()
    thought, text, first, second, mark = generation.reply.contents
    assert (thought, text) == (ThinkingPart(thinking="Let me see."), TextPart(text="I loök."))
    assert isinstance(first, ToolCallPart)
    assert (first.tool_call_id, first.args, first.opaque) == (
        "c1",
        {"path": "a"},
        {"google": {"signature": "c2lnMQ=="}},
    )
    assert second == ToolCallPart(tool_call_id="c2", tool_name="read", args={"path": "b"})
    assert mark == ThinkingPart(thinking="", opaque={"google": {"signature": "c2lnMg==", "on": "empty"}})
    assert generation.finish_reason == "toolCalls"
    usage = generation.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (100, 50, 150)
    assert (usage.reasoning_tokens, usage.cached_input_tokens) == (20, 40)
    assert [delta.kind for delta in deltas] == ["reasoning", "reasoning", "text", "text"]


def test_signatures_go_back_exactly_where_they_came() -> None:
    parts = (
        sdk.Part(text="Hm.", thought=True, thought_signature=b"s0"),
        sdk.Part(text="One."),
        sdk.Part(text="Two.", thought_signature=b"s1"),
        sdk.Part(text="Three."),
        _call("c1", "a", b"s2"),
        _call("c2", "b"),
        sdk.Part(text="", thought_signature=b"s3"),
    )
    reply = _fed(chunk(*parts, finish="STOP", usage=USAGE)).finish().reply
    assert reply.text == "One.Two.Three."
    sent = _parts(_request(_user(), reply, _user()), 1)
    assert sent == [part.model_dump(mode="json", by_alias=True, exclude_none=True) for part in parts]


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "refusal"),
        ("RECITATION", "refusal"),
        ("PROHIBITED_CONTENT", "refusal"),
        ("OTHER", "other"),
    ],
)
def test_the_finish_reason_tells_length_and_refusal_from_completion(finish: str, reason: str) -> None:
    assert _fed(chunk(sdk.Part(text="x"), finish=finish)).finish().finish_reason == reason


@pytest.mark.parametrize("finish", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE"])
def test_a_reply_whose_form_the_model_spoilt_is_worth_another_try(finish: str) -> None:
    with pytest.raises(ProviderError, match=finish) as caught:
        _fed(chunk(finish=finish)).finish()
    assert (caught.value.name, caught.value.is_retryable) == ("BadResponse", True)


def test_a_blocked_prompt_is_a_refusal_that_says_why() -> None:
    feedback = sdk.GenerateContentResponsePromptFeedback(block_reason=sdk.BlockedReason.SAFETY)
    response = sdk.GenerateContentResponse(prompt_feedback=feedback)
    generation = _fed(response.model_dump_json(by_alias=True, exclude_none=True)).finish()
    assert generation.finish_reason == "refusal"
    assert "SAFETY" in generation.reply.text


def test_usage_that_comes_after_the_end_is_still_counted() -> None:
    decoder = _fed(chunk(sdk.Part(text="x"), finish="STOP"))
    assert decoder.feed('{"usageMetadata": {"promptTokenCount": 7}}') is ReplyProgress.IDLE
    assert decoder.finish().usage.input_tokens == 7


def test_an_error_inside_the_stream_has_its_status_and_its_delay() -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "2.5s"}]
    error = {"error": {"code": 503, "message": "own words", "status": "UNAVAILABLE", "details": details}}
    with pytest.raises(ProviderError, match="own words") as caught:
        _fed(*RECORDED[:2], json.dumps(error))
    assert (caught.value.status_code, caught.value.is_retryable, caught.value.retry_after) == (503, True, 2.5)


@pytest.mark.parametrize("data", ["not json", "[]", '{"candidates": 5}'])
def test_garbage_in_the_stream_is_worth_another_try(data: str) -> None:
    with pytest.raises(ProviderError) as caught:
        _fed(data)
    assert (caught.value.name, caught.value.is_retryable) == ("BadResponse", True)


def test_parts_of_kinds_yet_unknown_are_passed_over() -> None:
    data = '{"candidates":[{"content":{"parts":[{"hologram":1},{"text":"x"}]},"finishReason":"STOP"}],"new":1}'
    assert _fed(data).finish().reply.contents == (TextPart(text="x"),)


def test_arguments_that_are_no_object_are_kept_as_the_model_wrote_them() -> None:
    part = {"functionCall": {"name": "read", "args": ["x"]}}
    data = json.dumps({"candidates": [{"content": {"parts": [part]}, "finishReason": "STOP"}]})
    (call,) = _fed(data).finish().reply.tool_calls
    assert (call.tool_call_id, call.args, call.raw_args) == ("", {}, '["x"]')
