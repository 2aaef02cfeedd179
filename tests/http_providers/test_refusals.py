"""The part of a request that a refusal names is found in the vendors' wordings, and only in the request itself."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perstack.core.definitions.skills import ToolSpec
from perstack.core.messages.messages import (
    ExpertMessage,
    History,
    Message,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    UserMessage,
)
from perstack.http_providers.errors import status_error
from perstack.http_providers.messages import REQUIRED_FIELDS, without_fields
from perstack.http_providers.refusals import refused_fields, refused_parts
from perstack.ports.provider import GenerationRequest

NAMES = ("a", "read", "fetch_part")
SAID = "please look at tools.0 and at the tool 'read' before `top_p` is unsupported"
ASKED = UserMessage(contents=(TextPart(text=SAID),))
THOUGHT = ExpertMessage(
    contents=(
        ThinkingPart(thinking="x", opaque={"anthropic": {"signature": "s"}}),
        ToolCallPart(tool_call_id="1", tool_name="read", args={}),
    )
)
MESSAGES: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "max_tokens": 5,
    "thinking": {"type": "enabled", "budget_tokens": 1},
    "temperature": 1,
    "top_p": 0.5,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "tools": [{"name": name, "input_schema": {}} for name in NAMES],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": SAID}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "x", "signature": "s"},
                {"type": "tool_use", "name": "read", "id": "1", "input": {}},
            ],
        },
    ],
}
GOOGLE: dict[str, Any] = {
    "tools": [{"functionDeclarations": [{"name": name} for name in NAMES]}],
    "generationConfig": {
        "thinkingConfig": {"thinkingLevel": "LOW"},
        "responseMimeType": "application/json",
        "responseJsonSchema": {},
    },
    "contents": [{"role": "model", "parts": [{"functionCall": {"name": "read"}, "thoughtSignature": "x"}]}],
}
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [],
    "tools": [{"type": "function", "function": {"name": name}} for name in NAMES],
    "stream_options": {"include_usage": True},
}
RESPONSES: dict[str, Any] = {
    "model": "m",
    "input": [{"type": "reasoning", "encrypted_content": "x"}],
    "include": ["reasoning.encrypted_content"],
    "reasoning": {"effort": "low"},
    "tools": [{"type": "function", "name": "a"}],
}
CONVERSE: dict[str, Any] = {
    "toolConfig": {"tools": [{"toolSpec": {"name": name}} for name in NAMES]},
    "inferenceConfig": {"temperature": 1, "maxTokens": 5},
    "additionalModelRequestFields": {"thinking": {}},
    "messages": [{"role": "assistant", "content": [{"reasoningContent": {"reasoningText": {"text": "x"}}}]}],
}


async def _blob(sha256: str) -> bytes:
    return b""


def _request(*messages: Message, **rest: Any) -> GenerationRequest:
    tools = tuple(ToolSpec(name=name, input_schema={}) for name in NAMES)
    given: dict[str, Any] = {"tools": tools, **rest}
    return GenerationRequest("m", "You.", History(messages or (ASKED, THOUGHT)), blobs=_blob, **given)


def _found(body: Any, message: str, param: str | None = None, request: GenerationRequest | None = None) -> list[str]:
    answer = json.dumps({"error": {"message": message, "param": param}}).encode()
    return _found_in(body, answer, request)


def _found_in(body: Any, answer: bytes, request: GenerationRequest | None = None) -> list[str]:
    error = status_error(400, {}, answer, "http://localhost")
    error.refused_body = json.dumps(body).encode()
    parts = refused_parts(
        request or _request(), error, lambda error, body: refused_fields(error, body, frozenset({"max_tokens"}))
    )
    return [" ".join(filter(None, (part.part, part.form, part.name))) for part in parts]


@pytest.mark.parametrize(
    ("body", "message", "found"),
    [
        (MESSAGES, "tools.2.custom.input_schema: input_schema does not support oneOf", ["tool plain fetch_part"]),
        (MESSAGES, "messages.1.content.0: Invalid `signature` in `thinking` block", ["thinking omitted"]),
        (MESSAGES, "messages.1.content.0: Invalid `data` in `redacted_thinking` block", ["thinking omitted"]),
        (MESSAGES, "`thinking` or `redacted_thinking` blocks cannot be modified.", ["thinking omitted"]),
        (MESSAGES, "messages.1.content.0.thinking.signature: Field required", ["thinking omitted"]),
        (
            MESSAGES,
            "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`.",
            ["thinking omitted", "field omitted thinking"],
        ),
        (MESSAGES, "`temperature` may only be set to 1 when thinking is enabled.", ["field omitted temperature"]),
        (MESSAGES, "`max_tokens` must be greater than `thinking.budget_tokens`.", ["field omitted thinking"]),
        (MESSAGES, "system.0.cache_control: Extra inputs are not permitted", ["field omitted cache_control"]),
        (MESSAGES, "This model does not support thinking", ["field omitted thinking"]),
        (
            GOOGLE,
            "* GenerateContentRequest.tools[0].function_declarations[2].parameters.properties[x].items: missing field.",
            ["tool plain fetch_part"],
        ),
        (
            GOOGLE,
            "Unknown name \"parametersJsonSchema\" at 'tools[0].function_declarations[1]': Cannot find field.",
            ["tool plain read"],
        ),
        (GOOGLE, "Thinking level is not supported for this model.", ["field omitted generationConfig.thinkingConfig"]),
        (
            GOOGLE,
            "Function calling with a response mime type: 'application/json' is unsupported",
            ["field omitted generationConfig.responseMimeType"],
        ),
        (
            GOOGLE,
            "Invalid value at 'generation_config.response_json_schema'",
            ["field omitted generationConfig.responseJsonSchema"],
        ),
        (GOOGLE, "Thought signature is not valid", ["thinking omitted"]),
        (GOOGLE, "Function call is missing a thought_signature in functionCall parts.", ["thinking omitted"]),
        (CHAT, "Invalid schema for function 'fetch_part': schema must have type 'object'", ["tool plain fetch_part"]),
        (CHAT, "Unsupported parameter: 'stream_options'", ["field omitted stream_options"]),
        (
            RESPONSES,
            "Encrypted content is not supported with this model.",
            ["thinking omitted", "field omitted include"],
        ),
        (RESPONSES, "The encrypted content gAAA could not be verified.", ["thinking omitted"]),
        (RESPONSES, "Item 'rs_1' of type 'reasoning' was provided without its following item.", ["thinking omitted"]),
        (RESPONSES, "Unsupported parameter: 'reasoning.effort' is not supported.", ["field omitted reasoning"]),
        (
            CONVERSE,
            "1 validation error detected: Value at 'toolConfig.tools.3.member.toolSpec.name' failed",
            ["tool plain fetch_part"],
        ),
        (
            CONVERSE,
            "The value at toolConfig.tools.2.toolSpec.inputSchema.json.type must be one of the following: object.",
            ["tool plain fetch_part"],
        ),
        (CONVERSE, "This model doesn't support the reasoningContent field.", ["thinking omitted"]),
        (CONVERSE, "`temperature` is not supported", ["field omitted inferenceConfig.temperature"]),
    ],
)
def test_a_part_is_found_in_the_vendors_words(body: Any, message: str, found: list[str]) -> None:
    assert _found(body, message) == found


def test_a_part_is_found_in_fields_of_the_answer() -> None:
    assert _found(CHAT, "Invalid schema", "tools[1].function.parameters") == ["tool plain read"]
    assert _found(RESPONSES, "Not here", "include") == ["field omitted include"]
    detail = [{"type": "extra_forbidden", "loc": ["body", "tools", 2, "function", "strict"], "msg": "Extra inputs"}]
    assert _found_in(CHAT, json.dumps({"detail": detail}).encode()) == ["tool plain fetch_part"]


@pytest.mark.parametrize("order", [("type", "loc", "msg", "input"), ("input", "type", "loc", "msg")])
def test_a_request_that_the_answer_echoes_names_nothing(order: tuple[str, ...]) -> None:
    said = "the tool 'read' is unknown, maximum context length is 4096 tokens, `top_p` is unsupported " * 300
    sent = {**CHAT, "messages": [{"role": "user", "content": said}]}
    parts = {"type": "extra_forbidden", "loc": ["body", "stream_options"], "msg": "Extra inputs", "input": sent}
    answer = json.dumps({"detail": [{name: parts[name] for name in order}]}).encode()
    assert _found_in(sent, answer) == ["field omitted stream_options"]


@pytest.mark.parametrize(
    "message",
    [
        "tools.9.custom: no such tool in the request",
        "tools.99999999999999999999.custom: no",
        "toolConfig.tools.0.member.toolSpec",
        "model: unknown",
        "messages: at least one",
        "max_tokens: 99 > 64",
        "see https://x.example/tools.0/'read'/top_p?thinking.budget_tokens for the tool that failed",
        "prompt is too long: the messages and tools have 300000 tokens > 200000 maximum",
        "input length and `max_tokens` exceed context limit: 199000 + 5000 > 200000, decrease `max_tokens` or `top_p`",
        "user said: please look at tools.0 and at the tool 'read' before `top_p` is unsupported",
        "tool 'write' and function `fetch_parts` are unknown",
        "we do not like this",
        "",
    ],
)
def test_nothing_is_found_that_the_request_does_not_have_or_that_is_not_the_endpoints_own_word(message: str) -> None:
    assert _found(MESSAGES, message) == []


def test_a_tool_that_is_called_as_a_field_is_not_meant_by_the_field() -> None:
    tools = [{"name": name, "input_schema": {}} for name in ("top_p", "invalid")]
    request = _request(tools=tuple(ToolSpec(name=name, input_schema={}) for name in ("top_p", "invalid")))
    body = {**MESSAGES, "tools": tools}
    assert _found(body, "`top_p` is not supported with this tool", request=request) == ["field omitted top_p"]
    assert _found(body, "the 'invalid' request is refused", request=request) == []


def test_an_error_that_somebody_has_quoted_before_is_still_read() -> None:
    quoted = "messages.1.content.0: Invalid `signature` in `thinking` block"
    body = {**MESSAGES, "messages": [{"role": "user", "content": quoted}, MESSAGES["messages"][1]]}
    assert _found(body, quoted) == ["thinking omitted"]


def test_a_hundred_tools_are_adapted_in_one_go_and_left_out_in_the_next() -> None:
    names = [f"t{number}" for number in range(100)]
    body = {**CHAT, "tools": [{"type": "function", "function": {"name": name}} for name in names]}
    request = _request(tools=tuple(ToolSpec(name=name, input_schema={}) for name in names))
    detail = [{"loc": ["body", "tools", number, "function"], "msg": "no"} for number in range(100)]
    answer = json.dumps({"detail": detail}).encode()
    assert _found_in(body, answer, request) == [f"tool plain {name}" for name in names]


def test_a_body_that_is_no_object_has_no_parts() -> None:
    for sent in (b"", b"[]", b"{", b"[" * 100_000):
        error = status_error(400, {}, b"tools.0: no", "http://localhost")
        error.refused_body = sent
        assert not refused_parts(_request(), error, lambda error, body: ())


@pytest.mark.parametrize(
    "piece",
    ["tools.0.", "thinking[", "'read' ", "a.", "[", '{"loc":[', "unsupported thinking ", "tools[0]", "\\", "é."],
)
def test_an_enormous_refusal_is_read_in_little_time(piece: str) -> None:
    texts = [{"role": "user", "content": "word " * 200_000}]
    began = time.process_time()
    _found_in({**MESSAGES, "messages": texts}, (piece * 100_000).encode())
    assert time.process_time() - began < 5


@given(
    st.text(max_size=300),
    st.recursive(
        st.none() | st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    ),
)
def test_any_refusal_of_any_wire_names_only_what_was_sent(message: str, document: Any) -> None:
    for body in (MESSAGES, GOOGLE, CHAT, RESPONSES, CONVERSE):
        for part in _found_in(body, json.dumps({"error": {"message": message, "param": document}}).encode()):
            name = part.split(" ")[-1]
            assert part == "thinking omitted" or json.dumps(name.split(".")[-1]) in json.dumps(body)


@given(st.sets(st.sampled_from([*REQUIRED_FIELDS, *MESSAGES, *CONVERSE, "inferenceConfig.temperature", "messages.x"])))
def test_a_hostile_log_only_makes_requests_plainer(refused: set[str]) -> None:
    for body in (MESSAGES, CONVERSE):
        left = without_fields(body, frozenset(refused), frozenset({"max_tokens"}))
        assert left.keys() >= body.keys() & (REQUIRED_FIELDS | {"max_tokens"})
        assert left.keys() <= body.keys()
        assert left["messages"] == body["messages"]
