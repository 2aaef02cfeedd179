"""Whatever is said, in any format: requests are what the vendor's own types take, and each extends the one before."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from botocore.session import Session
from botocore.validate import ParamValidator
from conversation import TOOLS, plain, request_to
from google.genai import types as google
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from pydantic import TypeAdapter
from wire_bedrock import MODEL

from perstack.core.messages.messages import (
    BlobPart,
    ExpertMessage,
    History,
    Message,
    ReplyPart,
    ResultContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from perstack.ports.provider import GenerationRequest
from perstack_anthropic.messages_api import encode as encode_anthropic
from perstack_anthropic.settings import AnthropicSettings
from perstack_bedrock.request import encode as encode_bedrock
from perstack_bedrock.settings import BedrockSettings
from perstack_google.request import GoogleSettings
from perstack_google.request import encode as encode_google
from perstack_openai.chat_completions import encode_chat
from perstack_openai.dialect import Dialect
from perstack_openai.profiles import PLAIN
from perstack_openai.responses_api import encode_responses

KINDS = ("image/png", "image/gif", "application/pdf", "text/plain", "audio/mpeg")
BLOBS = {kind: kind.encode() for kind in KINDS}
REASONING = {"id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": "gAAA="}
SIGNED: tuple[dict[str, Any] | None, ...] = (
    None,
    {"anthropic": {"signature": "sig=="}},
    {"anthropic": {"data": "enc=="}},
    {"openai": REASONING},
    {"google": {"signature": "c2ln"}},
    {"bedrock": {"signature": "sig=="}},
    {"bedrock": {"redacted": "AAEC"}},
)
_ROLE, _USER = b'{"role":"assistant"', b'{"role":"user"'
MARKS = (b',{"cachePoint":{"type":"default"}}', b',"cache_control":{"type":"ephemeral"}')


@dataclass(frozen=True)
class Codec:
    """The request side of a format."""

    name: str
    model: str
    encode: Callable[[GenerationRequest, Mapping[str, bytes]], bytes]
    check: Callable[[Any], None]
    """Fails if the vendor's own types do not take a body as it is."""
    joins_users: bool = False
    """Whether the latest message of the user may be continued by the next."""

    def __str__(self) -> str:
        return self.name


def _checker_of(kind: Any) -> Callable[[Any], None]:
    adapter: TypeAdapter[Any] = TypeAdapter(kind)

    def check(body: Any) -> None:
        assert plain(adapter.validate_python(body)) == body

    return check


def _is_googles(body: Any) -> None:
    for content in body["contents"]:
        found = google.Content.model_validate(content).model_dump(mode="json", by_alias=True, exclude_none=True)
        assert found == content


@cache
def _converse() -> Any:
    service: Any = Session().get_service_model("bedrock-runtime")
    return service.operation_model("ConverseStream").input_shape


def _is_bedrocks(body: Any) -> None:
    report = ParamValidator().validate({"modelId": MODEL, **_as_bytes(body)}, _converse())
    assert not report.has_errors(), report.generate_report()
    for turn in body["messages"]:
        assert all(len(block["toolUse"]["toolUseId"]) <= 64 for block in turn["content"] if "toolUse" in block)


def _as_bytes(value: Any) -> Any:
    if isinstance(value, dict):
        blobs = ("bytes", "redactedContent")
        return {key: b64decode(one) if key in blobs else _as_bytes(one) for key, one in value.items()}
    return [_as_bytes(one) for one in value] if isinstance(value, list) else value


COMPATIBLE = Dialect(profile=PLAIN, takes_documents=False, takes_images=False)
CODECS = (
    Codec(
        "Messages",
        "claude-sonnet-5",
        lambda request, blobs: encode_anthropic(request, AnthropicSettings(), blobs),
        _checker_of(MessageCreateParamsStreaming),
    ),
    Codec(
        "Responses",
        "gpt-5-mini",
        lambda request, blobs: encode_responses(request, Dialect(), blobs),
        _checker_of(ResponseCreateParamsStreaming),
    ),
    Codec(
        "Chat-Completions",
        "gpt-5-mini",
        lambda request, blobs: encode_chat(request, Dialect(), blobs),
        _checker_of(CompletionCreateParamsStreaming),
    ),
    Codec(
        "Chat-Completions-compatible",
        "any",
        lambda request, blobs: encode_chat(request, COMPATIBLE, blobs),
        _checker_of(CompletionCreateParamsStreaming),
        joins_users=True,
    ),
    Codec(
        "generateContent",
        "gemini-3.8-flash",
        lambda request, blobs: encode_google(request, GoogleSettings(), blobs),
        _is_googles,
    ),
    Codec("Converse", MODEL, lambda request, blobs: encode_bedrock(request, BedrockSettings(), blobs), _is_bedrocks),
)

_texts = st.sampled_from(["", " \n", "hi", 'a "quoted"\u2028 ä 😀\x00']) | st.text(max_size=20)
_contents: st.SearchStrategy[tuple[ResultContent, ...]] = st.lists(
    st.builds(TextPart, text=_texts)
    | st.builds(lambda kind: BlobPart(sha256=kind, mime_type=kind, size=len(kind)), st.sampled_from(KINDS)),
    max_size=4,
).map(tuple)
_calls = st.builds(
    ToolCallPart,
    tool_call_id=st.sampled_from(["call_1", "functions.read:0", "x" * 80]) | st.text(min_size=1, max_size=20),
    tool_name=st.sampled_from(["read", "bare", "no such tool!"]),
    args=st.dictionaries(st.text(max_size=5), st.none() | st.integers() | _texts, max_size=3),
    raw_args=st.sampled_from([None, None, '{"path": ']),
    opaque=st.sampled_from([None, {"google": {"signature": "c2ln"}}]),
)
_thoughts = st.builds(ThinkingPart, thinking=_texts, opaque=st.sampled_from(SIGNED))
_replies: st.SearchStrategy[list[ReplyPart]] = st.lists(
    st.builds(TextPart, text=_texts) | _thoughts | _calls,
    max_size=5,
    unique_by=lambda part: part.tool_call_id if isinstance(part, ToolCallPart) else object(),
)


@st.composite
def _histories(draw: st.DrawFn) -> list[Message]:
    """Queries, replies and results, as a Run has them."""
    found: list[Message] = [UserMessage(contents=draw(_contents))]
    for parts in draw(st.lists(_replies, max_size=4)):
        reply = ExpertMessage(contents=tuple(parts))
        results = tuple(
            ToolResultPart(
                tool_call_id=call.tool_call_id,
                tool_name=call.tool_name,
                contents=draw(_contents),
                is_error=draw(st.booleans()),
            )
            for call in reply.tool_calls
        )
        found += [reply, ToolMessage(contents=results) if results else UserMessage(contents=draw(_contents))]
    return found


def _versions(history: list[Message], before: History | None = None) -> list[History]:
    """What a Run has after each of its messages, grown as a Run grows it."""
    found = [before or History()]
    for message in history:
        found.append(found[-1].append(message))
    return found[1:]


def _unmarked(body: bytes) -> bytes:
    """Without what says where to cache, which moves."""
    for mark in MARKS:
        body = body.replace(mark, b"")
    return body


@pytest.mark.parametrize("codec", CODECS, ids=str)
@settings(deadline=None)  # the first example of a codec imports what the vendor's types need
@given(history=_histories(), budget=st.sampled_from([None, "none", "low", 5000]))
def test_any_history_makes_requests_that_the_vendors_types_take_and_that_only_grow(
    codec: Codec, history: list[Message], budget: Any
) -> None:
    before = b""
    for end in range(1, len(history) + 1, 2):
        body = codec.encode(request_to(codec.model, *history[:end], reasoning_budget=budget), BLOBS)
        codec.check(json.loads(body))
        assert _unmarked(body).startswith(before)
        before = _unmarked(body).rstrip(b"]}")
        if codec.joins_users and before.rfind(_USER) > before.rfind(_ROLE):
            before = before[: before.rfind(_USER)]


@pytest.mark.parametrize("codec", CODECS, ids=str)
@given(data=st.data(), history=_histories(), branch=_histories())
def test_a_run_written_as_it_grows_is_byte_for_byte_the_one_that_is_written_at_once(
    codec: Codec, data: st.DataObject, history: list[Message], branch: list[Message]
) -> None:
    own = _versions(history)
    # a try again, a place that the Run went back to and branched from, and the same messages by another way: what was
    # written must not be taken for theirs
    route = [*own, own[-1], own[0], *_versions(branch, own[0]), own[-1], History(list(own[-1]))]
    memo: dict[Hashable, object] = {}
    for messages in route:
        asked = request_to(
            codec.model,
            *messages,
            allow_tools=data.draw(st.booleans()),
            instruction=data.draw(st.sampled_from(["You are terse.", "You are brief.", ""])),
            tools=data.draw(st.sampled_from([TOOLS, TOOLS[:1], ()])),
        )
        in_steps = codec.encode(replace(asked, messages=messages, memo=memo), BLOBS)
        assert in_steps == codec.encode(asked, BLOBS)
