"""Chat Completions: requests are what the SDK's types say; replies by the SDK, and looser ones, are understood."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from conversation import call, plain, request_to, result, user
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from pydantic import TypeAdapter
from wire import decoded

from perstack.core.messages.adaptations import Adaptation
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
from perstack.ports.provider import Delta, Generation, GenerationRequest
from perstack_openai.chat_completions import ChatDecoder, encode_chat
from perstack_openai.dialect import Dialect
from perstack_openai.profiles import PLAIN

_PARAMS: TypeAdapter[Any] = TypeAdapter(CompletionCreateParamsStreaming)
COMPATIBLE = Dialect(profile=PLAIN, takes_documents=False)


def _request(*messages: Message, model: str = "gpt-5-mini", **rest: Any) -> GenerationRequest:
    return request_to(model, *messages, **rest)


def _body(
    request: GenerationRequest, dialect: Dialect | None = None, blobs: dict[str, bytes] | None = None
) -> dict[str, Any]:
    """The request's body, which the SDK's own types hold without loss."""
    body = json.loads(encode_chat(request, dialect or Dialect(), blobs or {}))
    assert plain(_PARAMS.validate_python(body)) == body
    return body


# --- requests -----------------------------------------------------------------------------------------------------


def test_a_request_has_model_instruction_tools_and_messages() -> None:
    body = _body(_request())
    assert (body["model"], body["stream"], body["stream_options"]) == ("gpt-5-mini", True, {"include_usage": True})
    assert body["messages"] == [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "hi"}]
    assert [tool["function"]["name"] for tool in body["tools"]] == ["read", "bare"]
    assert body["tools"][1]["function"]["parameters"]["type"] == "object"
    assert not {"tool_choice", "reasoning_effort", "max_completion_tokens", "temperature"} & set(body)


@pytest.mark.parametrize(("model", "sent"), [("gpt-5-mini", 0.5), ("gpt-4.1", 0.2)])
def test_a_request_has_its_own_temperature_where_the_model_takes_one(model: str, sent: float) -> None:
    body = _body(_request(model=model, max_tokens=50, temperature=0.2), Dialect(temperature=0.5))
    assert (body["max_completion_tokens"], body["temperature"]) == (50, sent)


def test_a_tool_loop_becomes_calls_and_one_message_for_each_result() -> None:
    calls = ExpertMessage(
        contents=(ThinkingPart(thinking="hm"), TextPart(text="I look."), call("a", args={"path": "ö"}), call("b"))
    )
    results = ToolMessage(
        contents=(result("a", TextPart(text="text")), result("b", TextPart(text="no"), is_error=True))
    )
    body = _body(_request(user("hi"), calls, results))
    reply, first, second = body["messages"][2:]
    assert (reply["role"], reply["content"]) == ("assistant", "I look.")
    assert [(call["id"], call["function"]["arguments"]) for call in reply["tool_calls"]] == [
        ("a", '{"path": "ö"}'),
        ("b", "{}"),
    ]
    assert first == {"role": "tool", "tool_call_id": "a", "content": "text"}
    assert second == {"role": "tool", "tool_call_id": "b", "content": "Error: no"}


def test_empty_replies_are_skipped() -> None:
    body = _body(
        _request(user("one"), ExpertMessage(), ExpertMessage(contents=(ThinkingPart(thinking="x"),)), user("two"))
    )
    assert [message["role"] for message in body["messages"]] == ["system", "user", "user"]


def test_a_call_with_broken_arguments_is_sent_back_as_json() -> None:
    reply = ExpertMessage(contents=(call("a", raw_args='{"path": '),))
    body = _body(_request(user("hi"), reply, ToolMessage(contents=(result("a", is_error=True),))))
    assert json.loads(body["messages"][2]["tool_calls"][0]["function"]["arguments"]) == {"unparsed": '{"path": '}


def test_names_that_the_api_would_refuse_are_made_legal() -> None:
    reply = ExpertMessage(contents=(call("x:1", name="no such tool!"),))
    body = _body(_request(user("hi"), reply, ToolMessage(contents=(result("x:1"),))))
    (sent,) = body["messages"][2]["tool_calls"]
    assert sent["function"]["name"] == "no_such_tool"
    assert sent["id"] == body["messages"][3]["tool_call_id"]


BLOBS = {"i": b"png", "d": b"pdf", "t": "größe".encode(), "m": b"mp3"}
IMAGE = BlobPart(sha256="i", mime_type="image/png", size=3)
DOCUMENT = BlobPart(sha256="d", mime_type="application/pdf", size=3, name="a.pdf")
TEXT = BlobPart(sha256="t", mime_type="text/plain", size=7)
SONG = BlobPart(sha256="m", mime_type="audio/mpeg", size=3)


def test_images_documents_and_texts_of_a_person_are_sent_and_the_rest_is_told_of() -> None:
    query = UserMessage(contents=(TextPart(text="look"), IMAGE, DOCUMENT, TEXT, SONG))
    look, image, document, text, other = _body(_request(query), blobs=BLOBS)["messages"][1]["content"]
    assert look["text"] == "look"
    assert image["image_url"]["url"] == "data:image/png;base64,cG5n"
    assert document["file"] == {"filename": "a.pdf", "file_data": "data:application/pdf;base64,cGRm"}
    assert text["text"] == "größe"
    assert "audio/mpeg, 3 bytes" in other["text"]


def test_what_a_tool_message_cannot_hold_follows_all_results_of_the_turn() -> None:
    reply = ExpertMessage(contents=(call("a"), call("b")))
    results = ToolMessage(contents=(result("a", TextPart(text="seen"), IMAGE), result("b", TextPart(text="ok"))))
    first, second, shown = _body(_request(user("hi"), reply, results), blobs=BLOBS)["messages"][3:]
    assert first["content"] == "seen\n[1 attached: see the next message]"
    assert second["content"] == "ok"
    assert [part["type"] for part in shown["content"]] == ["text", "image_url"]
    assert "read (a)" in shown["content"][0]["text"]


def test_a_server_that_takes_no_images_or_documents_gets_text_in_their_place() -> None:
    dialect = Dialect(profile=PLAIN, takes_images=False, takes_documents=False)
    content = _body(_request(UserMessage(contents=(IMAGE, DOCUMENT))), dialect, BLOBS)["messages"][1]["content"]
    assert "[image/png, 3 bytes: this model cannot" in content
    assert "[a.pdf, application/pdf, 3 bytes" in content


@pytest.mark.parametrize(
    ("model", "budget", "effort"),
    [
        ("gpt-5-mini", "none", "minimal"),
        ("gpt-5-mini", "minimal", "minimal"),
        ("gpt-5-mini", "high", "high"),
        ("gpt-5-mini", None, None),
        ("gpt-5-mini", 2000, "low"),
        ("gpt-5-mini", 10_000, "medium"),
        ("gpt-5-mini", 50_000, "high"),
        ("gpt-5.1", "none", "none"),
        ("gpt-5.1", "minimal", "low"),
        ("o4-mini", "none", "low"),
        ("gpt-4.1", "high", None),
        ("gpt-5.4-mini", None, "none"),
        ("gpt-6-sol", None, "none"),
    ],
)
def test_a_budget_becomes_the_nearest_effort_that_the_model_has(model: str, budget: Any, effort: str | None) -> None:
    assert _body(_request(model=model, reasoning_budget=budget)).get("reasoning_effort") == effort


def test_a_compatible_server_is_told_the_effort_as_asked_and_nothing_unasked() -> None:
    assert _body(_request(model="gpt-5.4", reasoning_budget=None), COMPATIBLE).get("reasoning_effort") is None
    assert _body(_request(model="qwen3", reasoning_budget="none"), COMPATIBLE)["reasoning_effort"] == "none"


# --- replies ------------------------------------------------------------------------------------------------------


def _chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **rest: Any) -> dict[str, Any]:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices, **rest}


USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 50,
    "total_tokens": 150,
    "prompt_tokens_details": {"cached_tokens": 64},
    "completion_tokens_details": {"reasoning_tokens": 30},
}


def _chunks() -> list[dict[str, Any]]:
    """A reply with text and two calls, checked and written by the SDK's own types."""

    def tool(index: int, arguments: str, **rest: Any) -> dict[str, Any]:
        function = {"arguments": arguments, **({"name": rest.pop("name")} if "name" in rest else {})}
        return {"tool_calls": [{"index": index, "function": function, **rest}]}

    raw = [
        _chunk({"role": "assistant", "content": "", "refusal": None}),
        _chunk({"content": "Grüß"}),
        _chunk({"content": " Gott 😀\u2028"}),
        _chunk(tool(0, "", id="call_1", type="function", name="read")),
        _chunk(tool(0, '{"path": "a')),
        _chunk(tool(1, "", id="call_2", type="function", name="bare")),
        _chunk(tool(0, 'b", "n": [1, 2]}')),
        _chunk(tool(1, "{}")),
        _chunk({}, "tool_calls"),
        _chunk(usage=USAGE),
    ]
    return [json.loads(ChatCompletionChunk.model_validate(one).to_json()) for one in raw]


def _stream(chunks: Iterable[dict[str, Any]]) -> bytes:
    texts = (f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n" for chunk in chunks)
    return ("".join(texts) + "data: [DONE]\n\n").encode()


def _decode(stream: bytes) -> tuple[Generation, list[Delta]]:
    deltas: list[Delta] = []
    return decoded([stream], ChatDecoder(deltas.append)), deltas


def _fed(*chunks: dict[str, Any] | str, done: bool = True) -> Generation:
    decoder = ChatDecoder(lambda delta: None)
    for chunk in chunks:
        decoder.feed(chunk if isinstance(chunk, str) else json.dumps(chunk))
    if done:
        decoder.feed("[DONE]")
    return decoder.finish()


def test_a_reply_is_put_together_from_its_chunks() -> None:
    generation, deltas = _decode(_stream(_chunks()))
    assert generation.reply.contents == (
        TextPart(text="Grüß Gott 😀\u2028"),
        ToolCallPart(tool_call_id="call_1", tool_name="read", args={"path": "ab", "n": [1, 2]}),
        ToolCallPart(tool_call_id="call_2", tool_name="bare"),
    )
    assert generation.finish_reason == "toolCalls"
    assert [delta.text for delta in deltas] == ["Grüß", " Gott 😀\u2028"]


def test_usage_counts_cached_and_reasoning_tokens() -> None:
    usage = _decode(_stream(_chunks()))[0].usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (100, 50, 150)
    assert (usage.cached_input_tokens, usage.reasoning_tokens) == (64, 30)


def test_the_reply_is_what_the_sdk_itself_makes_of_the_chunks() -> None:
    state: ChatCompletionStreamState[Any] = ChatCompletionStreamState()
    for chunk in _chunks():
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    theirs = state.current_completion_snapshot.choices[0].message
    reply = _decode(_stream(_chunks()))[0].reply
    assert reply.text == theirs.content
    assert [(call.tool_call_id, call.tool_name, call.args) for call in reply.tool_calls] == [
        (call.id, call.function.name, json.loads(call.function.arguments or "{}")) for call in theirs.tool_calls or ()
    ]


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("content_filter", "refusal"),
        ("eos", "stop"),
        ("something_new", "other"),
    ],
)
def test_the_finish_reason_tells_length_and_refusal_from_completion(finish: str, expected: str) -> None:
    assert _fed(_chunk({"content": "x"}, finish)).finish_reason == expected


def test_a_refusal_is_text_and_named_so() -> None:
    generation = _fed(_chunk({"refusal": "I won't."}), _chunk({}, "stop"))
    assert (generation.reply.text, generation.finish_reason) == ("I won't.", "refusal")


def test_arguments_that_are_no_object_are_kept_as_the_model_wrote_them() -> None:
    calls = [
        {"index": at, "id": f"c{at}", "function": {"name": "read", "arguments": raw}}
        for at, raw in enumerate(('{"path": "a', "[1]", "null", ""))
    ]
    parts = _fed(_chunk({"tool_calls": calls}, "tool_calls")).reply.tool_calls
    assert [(part.args, part.raw_args) for part in parts] == [({}, '{"path": "a'), ({}, "[1]"), ({}, None), ({}, None)]


# --- servers that are nearly compatible -----------------------------------------------------------------------------


def _calls(*deltas: dict[str, Any], finish: str = "tool_calls") -> list[tuple[str, str, Any]]:
    generation = _fed(*(_chunk({"tool_calls": [delta]}) for delta in deltas), _chunk({}, finish))
    assert generation.finish_reason == "toolCalls"
    return [(call.tool_call_id, call.tool_name, call.args) for call in generation.reply.tool_calls]


def test_calls_without_ids_and_indexes_are_told_apart_by_their_names() -> None:
    assert _calls(
        {"function": {"name": "read", "arguments": '{"path":'}},
        {"function": {"arguments": '"a"}'}},
        {"function": {"name": "read", "arguments": '{"path":"b"}'}},
        finish="stop",
    ) == [("", "read", {"path": "a"}), ("", "read", {"path": "b"})]


def test_parallel_calls_that_all_have_index_zero_are_told_apart_by_their_ids() -> None:
    assert _calls(
        {"index": 0, "id": "x", "function": {"name": "read", "arguments": '{"path":"a"}'}},
        {"index": 0, "id": "y", "function": {"name": "read", "arguments": '{"path":"b"}'}},
    ) == [("x", "read", {"path": "a"}), ("y", "read", {"path": "b"})]


def test_a_new_id_with_every_delta_makes_no_newcall() -> None:
    assert _calls(
        {"index": 0, "id": "x1", "function": {"name": "read", "arguments": '{"path":'}},
        {"index": 0, "id": "x2", "function": {"name": None, "arguments": '"a"}'}},
    ) == [("x1", "read", {"path": "a"})]


def test_a_name_repeated_with_every_delta_or_sent_in_pieces_is_one_name() -> None:
    assert _calls(
        {"index": 0, "id": "x", "function": {"name": "read", "arguments": '{"path":'}},
        {"index": 0, "id": "x", "function": {"name": "read", "arguments": '"a"}'}},
    ) == [("x", "read", {"path": "a"})]
    assert _calls(
        {"index": 0, "id": "x", "function": {"name": "re"}}, {"index": 0, "function": {"name": "ad", "arguments": "{}"}}
    ) == [("x", "read", {})]


def test_arguments_may_come_as_an_object() -> None:
    assert _calls({"id": "x", "function": {"name": "read", "arguments": {"path": "a"}}}) == [
        ("x", "read", {"path": "a"})
    ]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_by_either_name_becomes_thinking(field: str) -> None:
    generation = _fed(_chunk({field: "Hm"}), _chunk({field: "m."}), _chunk({"content": "Yes."}, "stop"))
    kept = {"openai": {"model": "", "_text": [field]}}
    assert generation.reply.contents == (ThinkingPart(thinking="Hmm.", opaque=kept), TextPart(text="Yes."))


def test_missing_usage_is_no_usage() -> None:
    assert _fed(_chunk({"content": "x"}, "stop")).usage.total_tokens == 0


def test_usage_on_every_chunk_counts_once() -> None:
    generation = _fed(
        _chunk({"content": "x"}, usage={"prompt_tokens": 5, "completion_tokens": 1}),
        _chunk({"content": "y"}, "stop", usage={"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": None}),
    )
    assert (generation.usage.input_tokens, generation.usage.output_tokens, generation.usage.total_tokens) == (5, 2, 7)


def test_reasoning_that_a_server_counts_apart_is_part_of_the_output() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 35}
    generation = _fed(
        _chunk({"content": "x"}, "stop", usage={**usage, "completion_tokens_details": {"reasoning_tokens": 20}})
    )
    assert (generation.usage.output_tokens, generation.usage.total_tokens) == (25, 35)


def test_an_end_without_done_is_an_end_if_there_was_a_reason() -> None:
    assert _fed(_chunk({"content": "x"}, "stop"), done=False).reply.text == "x"


def test_done_without_a_reason_is_an_end() -> None:
    assert _fed(_chunk({"content": "x"})).finish_reason == "other"


def test_neither_a_reason_nor_done_is_a_cut_stream() -> None:
    with pytest.raises(ProviderError) as caught:
        _fed(_chunk({"content": "x"}), done=False)
    assert (caught.value.name, caught.value.is_retryable) == ("CutStream", True)


def test_a_server_that_does_not_stream_is_understood() -> None:
    message = {"role": "assistant", "content": "Hello", "refusal": None}
    whole = {
        "id": "c", "object": "chat.completion", "created": 1, "model": "m", "usage": USAGE,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
    }  # fmt: skip
    generation = _fed(ChatCompletion.model_validate(whole).to_json(), done=False)
    assert (generation.reply.text, generation.usage.total_tokens) == ("Hello", 150)


@pytest.mark.parametrize(
    ("error", "status", "retryable"),
    [
        ({"message": "own words", "code": 502}, 502, True),
        ({"message": "own words", "code": "rate_limit_exceeded"}, 429, True),
        ({"message": "own words", "code": "invalid_api_key"}, 401, False),
        ("own words", 500, True),
    ],
)
def test_an_error_inside_the_stream_is_raised(error: Any, status: int, retryable: bool) -> None:
    with pytest.raises(ProviderError, match="own words") as caught:
        _fed(_chunk({"content": "x"}), {"error": error})
    assert (caught.value.status_code, caught.value.is_retryable) == (status, retryable)


@pytest.mark.parametrize("data", ["not json", "[]", '{"choices": 5}'])
def test_garbage_in_the_stream_is_worth_another_try(data: str) -> None:
    with pytest.raises(ProviderError) as caught:
        _fed(data)
    assert (caught.value.name, caught.value.is_retryable) == ("BadResponse", True)


def test_other_choices_and_unknown_chunks_are_passed_over() -> None:
    other = {"index": 1, "delta": {"content": "no"}, "finish_reason": None}
    generation = _fed(
        {"choices": [other]}, {"object": "ping"}, _chunk({"content": [{"type": "text", "text": "yes"}]}, "stop")
    )
    assert generation.reply.text == "yes"


# --- forms that servers refuse ---------------------------------------------------------------------------------------


def test_the_content_of_calls_is_plainer_with_each_refusal_until_it_is_a_text() -> None:
    history = (user("hi"), ExpertMessage(contents=(call("a"),)), ToolMessage(contents=(result("a"),)))
    refused: list[Adaptation] = []
    found: list[object] = []
    for form in ("empty content", "absent content", "null content", ""):
        request = _request(*history, adaptations=tuple(refused))
        found.append(json.loads(encode_chat(request, COMPATIBLE, {}))["messages"][2].get("content", "absent"))
        refused.append(Adaptation(part="field", form="plain", name=form))
    assert found == ["", "absent", None, "(no text)"]


def test_messages_of_the_user_in_a_row_are_one_where_roles_must_alternate() -> None:
    history = (user("one"), ExpertMessage(), user("two"), UserMessage(contents=(TextPart(text="see"), IMAGE)))
    joined = _body(_request(*history), COMPATIBLE, BLOBS)["messages"][1:]
    assert [part.get("text", part["type"]) for part in joined[0]["content"]] == ["one\n\ntwo", "see", "image_url"]
    assert len(joined) == 1
    assert len(_body(_request(*history), blobs=BLOBS)["messages"]) == 4


def test_a_limit_is_sent_by_its_other_name_after_a_refusal_and_not_at_all_after_two() -> None:
    first = Adaptation(part="field", form="plain", name="max_completion_tokens")
    second = Adaptation(part="field", form="omitted", name="max_tokens")
    sent = [
        {"max_tokens", "max_completion_tokens"} & _body(_request(max_tokens=9, adaptations=known)).keys()
        for known in ((), (first,), (first, second))
    ]
    assert sent == [{"max_completion_tokens"}, {"max_tokens"}, set()]
