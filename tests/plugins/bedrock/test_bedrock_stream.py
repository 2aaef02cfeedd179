"""What Amazon Bedrock streams: read as AWS's own client reads it, in frames that cannot be damaged unnoticed."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import Iterable
from typing import Any

import pytest
from botocore.exceptions import EventStreamError
from botocore.session import Session
from event_stream import error, event, exception, frame
from hypothesis import given
from hypothesis import strategies as st
from provider_suite import body_of, error_of, generate, request_of, run
from wire import Said, Wire
from wire_bedrock import BEDROCK, BEDROCK_ANTHROPIC, MODEL, STREAM, converse_events

from perstack.core.messages.messages import ExpertMessage, TextPart, ThinkingPart, ToolCallPart, UserMessage
from perstack.errors import ProviderError
from perstack.ports.provider import Generation
from perstack.testing.fake_endpoint import FakeEndpoint, PreparedReply

SAID = Said("Grüß Gott 😀", thinking="Hm.", calls=(("c1", "ä.txt"), ("c2", "b")))
SESSION = Session()
SERVICE: Any = SESSION.get_service_model("bedrock-runtime")
OPERATIONS = ((BEDROCK, "ConverseStream"), (BEDROCK_ANTHROPIC, "InvokeModelWithResponseStream"))
EXCEPTIONS = [
    pytest.param(wire, name, shape.metadata["error"]["httpStatusCode"], id=f"{wire}-{name}")
    for wire, operation in OPERATIONS
    for name, shape in SERVICE.operation_model(operation).get_event_stream_output().members.items()
    if shape.metadata.get("exception")
]
"""Every error that the service's model has within a stream, with its status."""


def _reply(*frames: bytes, ending: str = "whole") -> PreparedReply:
    return PreparedReply(frames, headers=STREAM, ending=ending)


def _decoded(*events: tuple[str, Any]) -> Generation:
    return BEDROCK.decode([event(*one) for one in events])[0]


def _generation_of(*events: tuple[str, Any], stop: str = "end_turn") -> Generation:
    """With an end as every reply has it."""
    return _decoded(*events, ("messageStop", {"stopReason": stop}), ("metadata", {"usage": {}}))


def _delta(index: int, **delta: Any) -> tuple[str, Any]:
    return "contentBlockDelta", {"contentBlockIndex": index, "delta": delta}


# --- as AWS's own client has it ---------------------------------------------------------------------------------------


def _read_by_botocore(wire: Wire, *frames: bytes) -> list[Any]:
    """The events that AWS's client finds in a stream."""

    def ask(url: str) -> list[Any]:
        keys = {"aws_access_key_id": "a", "aws_secret_access_key": "s"}
        client: Any = SESSION.create_client("bedrock-runtime", region_name="eu-west-1", endpoint_url=url, **keys)
        if wire is BEDROCK:
            stream = client.converse_stream(modelId=MODEL)["stream"]
        else:
            stream = client.invoke_model_with_response_stream(modelId=MODEL, body=b"{}")["body"]
        try:
            return list(stream)
        finally:
            stream.close()
            client.close()

    async def scenario() -> list[Any]:
        async with asyncio.timeout(30), FakeEndpoint(_reply(*frames)) as endpoint:
            return await asyncio.to_thread(ask, endpoint.url)

    return asyncio.run(scenario())


def test_the_streams_of_these_tests_are_what_awss_own_client_reads() -> None:
    assert _read_by_botocore(BEDROCK, *BEDROCK.reply(SAID).chunks) == [
        {kind: content} for kind, content in converse_events(SAID)
    ]
    chunks = _read_by_botocore(BEDROCK_ANTHROPIC, *BEDROCK_ANTHROPIC.reply(SAID).chunks)
    data = [json.loads(one["chunk"]["bytes"]) for one in chunks]
    assert (data[0]["type"], data[-1]["type"]) == ("message_start", "message_stop")


@pytest.mark.parametrize(("wire", "name", "status"), EXCEPTIONS)
def test_an_exception_within_the_stream_has_the_status_that_it_has_alone(wire: Wire, name: str, status: int) -> None:
    begun = wire.reply(SAID).chunks[:4]
    with pytest.raises(EventStreamError, match=name):
        _read_by_botocore(wire, *begun, exception(name, "the own words"))
    found = error_of(wire, _reply(*begun, exception(name, "the own words")))
    assert (found.status_code, str(found), found.is_retryable) == (status, "the own words", name[:5] != "valid")


def test_every_reason_to_stop_of_the_services_model_is_known() -> None:
    reasons = set(SERVICE.shape_for("StopReason").enum)
    broken = {reason for reason in reasons if reason.startswith("malformed_")}
    found = {reason: _generation_of(_delta(0, text="a"), stop=reason).finish_reason for reason in reasons - broken}
    assert found == {
        "end_turn": "stop",
        "stop_sequence": "stop",
        "tool_use": "toolCalls",
        "max_tokens": "length",
        "model_context_window_exceeded": "length",
        "guardrail_intervened": "refusal",
        "content_filtered": "refusal",
    }
    for reason in broken:
        with pytest.raises(ProviderError, match=reason) as caught:
            _generation_of(_delta(0, text="a"), stop=reason)
        assert (caught.value.name, caught.value.is_retryable) == ("BadResponse", True)


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", [BEDROCK, BEDROCK_ANTHROPIC], ids=str)
def test_a_throttled_stream_is_tried_again_and_nothing_of_it_is_kept(wire: Wire) -> None:
    begun = wire.reply(Said("Half a reply")).chunks[:4]
    throttled = _reply(*begun, exception("throttlingException", "Too many tokens, please wait"))
    job, seen, endpoint = run(wire, throttled, wire.reply(Said("Whole.")))
    assert (job.status, job.text, job.total_steps, len(endpoint.asked)) == ("completed", "Whole.", 1, 2)
    (retry,) = seen.of("retry")
    assert (retry.error.name, retry.error.message) == ("RateLimit", "Too many tokens, please wait")
    assert job.usage.total_tokens == 150


def test_an_overflow_within_the_stream_is_an_overflow() -> None:
    too_long = exception("validationException", "Input is too long for requested model.")
    assert error_of(BEDROCK, _reply(too_long)).name == "ContextOverflow"


def test_an_error_that_the_services_model_does_not_know_is_told_by_its_words_or_its_code() -> None:
    found = error_of(BEDROCK, _reply(error("InternalError", "An internal error occurred")))
    assert (str(found), found.status_code, found.is_retryable) == ("An internal error occurred", 500, True)
    assert str(error_of(BEDROCK, _reply(error("InternalError", "")))) == "InternalError"


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b"\xff", b'"text"', b'{"contentBlockIndex":"x"}'])
def test_an_event_that_is_none_of_bedrocks_is_worth_another_try(payload: bytes) -> None:
    headers = {":event-type": "contentBlockDelta", ":content-type": "application/json", ":message-type": "event"}
    found = error_of(BEDROCK, _reply(frame(headers, payload), frame(headers, b"[]")))
    assert (found.name, found.is_retryable) == ("BadResponse", True)


def test_a_chunk_that_is_no_base64_is_worth_another_try() -> None:
    found = error_of(BEDROCK_ANTHROPIC, _reply(event("chunk", {"bytes": "?"})))
    assert (found.name, found.is_retryable) == ("BadResponse", True)


@given(st.data())
def test_no_damage_goes_unnoticed(data: st.DataObject) -> None:
    # after the reply's end only its token counts can be damaged
    stream = bytearray(b"".join(BEDROCK.reply(SAID).chunks[:-1]))
    place = data.draw(st.integers(0, len(stream) - 1))
    stream[place] ^= data.draw(st.integers(1, 255))
    ends = data.draw(st.lists(st.integers(0, len(stream)), max_size=5).map(sorted))
    with pytest.raises(ProviderError) as caught:
        BEDROCK.decode(bytes(stream[start:end]) for start, end in zip([0, *ends], [*ends, None], strict=True))
    assert (caught.value.name, caught.value.is_retryable) == ("CutStream", True)


# --- replies ----------------------------------------------------------------------------------------------------------


def _back(*parts: Any) -> list[Any]:
    """What is sent of a reply that was kept in the log."""
    kept = ExpertMessage.model_validate_json(ExpertMessage(contents=parts).model_dump_json(by_alias=True))
    query = UserMessage(contents=(TextPart(text="hi"),))
    body: Any = body_of(BEDROCK, request_of(BEDROCK, query, kept, query))
    return body["messages"][1]["content"]


def test_hidden_thinking_is_put_together_and_sent_back_as_it_came() -> None:
    pieces = ({"redactedContent": "AAE="}, {"redactedContent": "AgM="})
    reply = _generation_of(*(_delta(0, reasoningContent=one) for one in pieces), _delta(1, text="Yes.")).reply
    thought, said = reply.contents
    assert isinstance(thought, ThinkingPart)
    assert (thought.thinking, said) == ("", TextPart(text="Yes."))
    hidden, _ = _back(*reply.contents)
    assert b64decode(hidden["reasoningContent"]["redactedContent"]) == b"\x00\x01\x02\x03"


def test_a_signature_without_words_is_kept_and_words_without_one_are_not_sent() -> None:
    signed = _generation_of(
        _delta(0, reasoningContent={"signature": "s1"}), _delta(0, reasoningContent={"signature": "s2"})
    )
    assert _back(*signed.reply.contents) == [{"reasoningContent": {"reasoningText": {"text": "", "signature": "s1s2"}}}]
    unsigned = _generation_of(_delta(0, reasoningContent={"text": "Hm."}), _delta(1, text="Yes.")).reply
    assert unsigned.contents[0] == ThinkingPart(thinking="Hm.")
    assert _back(*unsigned.contents) == [{"text": "Yes."}]


def _call(index: int, *pieces: str, **more: Any) -> Iterable[tuple[str, Any]]:
    yield (
        "contentBlockStart",
        {"contentBlockIndex": index, "start": {"toolUse": {"toolUseId": f"c{index}", "name": "read", **more}}},
    )
    for piece in pieces:
        yield _delta(index, toolUse={"input": piece})


def test_a_call_without_arguments_or_with_broken_ones_is_still_a_call() -> None:
    reply = _generation_of(*_call(0), *_call(1, '{"path": ', "}"), stop="tool_use").reply
    assert reply.contents == (
        ToolCallPart(tool_call_id="c0", tool_name="read", args={}),
        ToolCallPart(tool_call_id="c1", tool_name="read", args={}, raw_args='{"path": }'),
    )


def test_what_bedrock_itself_called_is_no_call_of_ours() -> None:
    generation = _generation_of(*_call(0, "{}", type="server_tool_use"), _delta(1, text="Found."))
    assert (generation.reply.contents, generation.finish_reason) == ((TextPart(text="Found."),), "stop")


def test_calls_of_a_model_that_says_it_ended_its_turn_are_calls() -> None:
    assert _generation_of(*_call(0, "{}")).finish_reason == "toolCalls"


def test_a_stream_without_its_usage_is_a_reply_if_it_ended() -> None:
    generation = _decoded(_delta(0, text="Hi"), ("messageStop", {"stopReason": "end_turn"}))
    assert (generation.reply.text, generation.usage.total_tokens) == ("Hi", 0)


def test_events_that_are_not_known_are_passed_over() -> None:
    generation = _generation_of(("messageStart", {"role": "assistant"}), ("later", {"a": 1}), _delta(0, text="Hi"))
    assert generation.reply.text == "Hi"


def test_tokens_that_a_cache_had_or_took_count_as_sent() -> None:
    usage = generate(BEDROCK, BEDROCK.reply(SAID))[0].usage
    assert (usage.input_tokens, usage.cached_input_tokens, usage.output_tokens) == (100, 64, 50)
    assert usage.cache_write_tokens == 30
