"""What a refusal names is found in the wordings of many servers, among the fields of the very request."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perstack.core.base.records import JsonObject
from perstack.errors import ProviderError
from perstack.http_providers.errors import status_error
from perstack_openai.refusals import refused_fields

CALLS = [{"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}, "extra_content": {}}]
REPLY: JsonObject = {"role": "assistant", "content": None, "tool_calls": CALLS, "reasoning": "Hm."}
BODY: JsonObject = {
    "model": "m",
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_tokens": 99,
    "temperature": 0.2,
    "top_p": 0.9,
    "reasoning_effort": "low",
    "thinking": {"type": "enabled"},
    "tools": [],
    "tool_choice": "none",
    "response_format": {},
    "messages": [
        {"role": "system", "content": "You."},
        {"role": "user", "content": "hi"},
        REPLY,
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
        {"role": "assistant", "content": "", "tool_calls": CALLS},
    ],
}


def _named(status: int, answer: Any, body: JsonObject = BODY) -> list[tuple[str, str]]:
    raw = answer if isinstance(answer, str) else json.dumps(answer)
    error = status_error(status, {}, raw.encode(), "http://localhost")
    return [(one.name, one.form) for one in refused_fields(error, body)]


def _openai(message: str, param: str | None = None) -> Any:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": None}}


def _pydantic(*place: str | int, **more: Any) -> Any:
    return [{"type": "extra_forbidden", "loc": ["body", *place], "msg": "Extra inputs are not permitted", **more}]


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        (_openai("Unsupported parameter: 'stream_options'"), "stream_options"),
        (_openai("Unrecognized request argument supplied: reasoning_effort"), "reasoning_effort"),
        (_openai("Unknown parameter: 'thinking'."), "thinking"),
        (_openai("Invalid value.", "temperature"), "temperature"),
        (_openai("temperature is not supported by this model"), "temperature"),
        (_openai("`temperature` does not support 0.2 with this model."), "temperature"),
        (_openai("Unsupported value: 'temperature' does not support 0.2 with this model."), "temperature"),
        (_openai("This model does not support temperature."), "temperature"),
        (_openai("Model grok-x does not support parameter reasoning_effort."), "reasoning_effort"),
        (_openai("response_format.json_schema: this model has no structured output"), "response_format"),
        (_openai("Invalid parameter: 'response_format.type' must be text"), "response_format"),
        (
            {"error": 'Invalid JSON payload received. Unknown name "stream_options": Cannot find field.'},
            "stream_options",
        ),
        ({"detail": _pydantic("stream_options", "include_usage")}, "stream_options"),
        ({"object": "error", "message": {"detail": _pydantic("temperature", input=0.2)}}, "temperature"),
        ({"object": "Error", "message": "Extra inputs are not permitted", "detail": _pydantic("top_p")}, "top_p"),
        ({"detail": _pydantic("tool_choice", input={**BODY})}, "tool_choice"),
        ("[{'type': 'extra_forbidden', 'loc': ('body', 'stream_options'), 'msg': 'Extra inputs'}]", "stream_options"),
        ({"error": "Extra inputs are not permitted, field: 'stream_options'"}, "stream_options"),
        ({"message": "property 'tool_choice' is unsupported", "param": "validation_error"}, "tool_choice"),
    ],
)
def test_a_field_is_left_out_in_whatever_wording_it_is_refused(answer: Any, name: str) -> None:
    assert _named(400, answer) == _named(422, answer) == [(name, "omitted")]


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("messages.2.assistant.reasoning: property 'messages.2.assistant.reasoning' is unsupported", "reasoning"),
        ("Unrecognized field extra_content", "extra_content"),
        ("messages[2].tool_calls[0].extra_content: unknown field", "extra_content"),
    ],
)
def test_a_field_of_a_message_is_left_out_of_all_messages(message: str, name: str) -> None:
    assert _named(400, _openai(message)) == [(f"messages.{name}", "omitted")]


def test_the_reply_limit_is_sent_by_its_other_name_first() -> None:
    refusal = _openai("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
    assert _named(400, refusal) == [("max_tokens", "plain")]
    both = {**BODY, "max_completion_tokens": 9}
    assert ("max_tokens", "omitted") in _named(400, refusal, both)


@pytest.mark.parametrize(
    ("message", "forms"),
    [
        ("messages.2.content: Input should be a valid string", ["null content", "empty content"]),
        ("messages: assistant content must not be empty", ["null content", "empty content"]),
        ("Invalid value for 'content': expected a string, got null.", ["null content", "empty content"]),
        ("Conversation roles must alternate user/assistant/user/assistant/...", ["consecutive users"]),
        ("Unexpected role 'user' after role 'tool'", ["user after tool"]),
        ("Tool call id was call_1 but must be a-z, A-Z, 0-9, with a length of 9.", ["long call ids"]),
    ],
)
def test_a_form_is_told_by_what_is_said_of_it(message: str, forms: list[str]) -> None:
    assert _named(400, _openai(message)) == [(form, "plain") for form in forms]


@pytest.mark.parametrize(
    "message",
    [
        "Invalid API key",
        "The model `temperature-1` does not exist",
        "tools.0.function.parameters: invalid schema",
        "Invalid 'messages': too many items",
        "Thinking about temperatures is what we do",
        "",
    ],
)
def test_nothing_is_left_out_for_a_refusal_that_names_no_optional_field(message: str) -> None:
    assert _named(400, _openai(message)) == []


@pytest.mark.parametrize(
    "message",
    [
        "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2",
        "Missing `reasoning_content` field in the assistant message at message index 4.",
        "The reasoning_content in the thinking mode must be passed back to the API.",
    ],
)
def test_reasoning_that_a_server_misses_is_sent_from_then_on(message: str) -> None:
    assert _named(400, _openai(message)) == [("messages.reasoning_content", "replaced")]
    replies = {**BODY, "messages": [{**REPLY, "reasoning_content": "Hm."}]}
    assert _named(400, _openai(message), replies) != [("messages.reasoning_content", "replaced")], "it is there"


@given(st.text(max_size=300), st.recursive(st.none() | st.text() | st.integers(), st.lists, max_leaves=5))
def test_any_refusal_is_read_without_an_error_and_names_only_what_was_sent(message: str, document: Any) -> None:
    for answer in (message, json.dumps(document), json.dumps({"error": {"message": message, "param": document}})):
        for part in refused_fields(ProviderError(message, answer=answer), BODY):
            assert part.name.removeprefix("messages.") in {*BODY, "extra_content", "reasoning"} or part.form == "plain"
