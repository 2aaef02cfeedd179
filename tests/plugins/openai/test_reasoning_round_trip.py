"""What an endpoint wants back with a reply goes back to it as it came, and to no other endpoint or model."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conversation import request_to, result, user
from hosts import expert, project_of
from hypothesis import given, settings
from hypothesis import strategies as st
from wire import KEY

from perstack.core.definitions.settings import ProviderSetting
from perstack.core.messages.messages import ExpertMessage, TextPart, ThinkingPart, ToolMessage
from perstack.host import Host
from perstack.testing.fake_endpoint import FakeEndpoint, PreparedReply, ReceivedRequest, events
from perstack_openai.chat_completions import ChatDecoder, encode_chat
from perstack_openai.dialect import Dialect
from perstack_openai.kept_reasoning import ThinkTags
from perstack_openai.profiles import PLAIN, profile_named

HERE = Dialect(profile=PLAIN, vendor="openai@here")
CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "readTextFile", "arguments": '{"path": "a"}'}}
SIGNED = {"google": {"thought_signature": "c2ln+/=="}}
DETAILS = [
    {"type": "reasoning.text", "index": 0, "format": "anthropic-claude-v1", "text": "Hm, yes.", "signature": "c2ln"},
    {"type": "reasoning.encrypted", "index": 1, "data": "AAEC", "id": "rs_1"},
]
SHAPES: dict[str, tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]] = {
    "reasoning_content": (
        [{"reasoning_content": "Hm, "}, {"reasoning_content": "yes."}],
        {"reasoning_content": "Hm, yes."},
        {},
    ),
    "reasoning": ([{"reasoning": "Hm, "}, {"reasoning": "yes."}], {"reasoning": "Hm, yes."}, {}),
    "both names at once": (
        [{"reasoning": "Hm, ", "reasoning_content": "Hm, "}, {"reasoning": "yes.", "reasoning_content": "yes."}],
        {"reasoning": "Hm, yes.", "reasoning_content": "Hm, yes."},
        {},
    ),
    "a name of its own": (
        [{"reasoning_text": "Hm, yes.", "reasoning_opaque": "AAEC"}],
        {"reasoning_opaque": "AAEC"},
        {},
    ),
    "details in pieces": (
        [
            {"reasoning": "Hm, ", "reasoning_details": [{**DETAILS[0], "text": "Hm, ", "signature": None}]},
            {"reasoning": "yes.", "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "yes."}]},
            {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": None, "signature": "c2ln"}]},
            {"reasoning_details": [DETAILS[1]]},
        ],
        {"reasoning_details": DETAILS, "reasoning": "Hm, yes."},
        {},
    ),
    "blocks without an index": (
        [
            {"reasoning_content": "Hm, ", "thinking_blocks": [{"type": "thinking", "thinking": "Hm, "}]},
            {"reasoning_content": "yes.", "thinking_blocks": [{"type": "thinking", "thinking": "yes."}]},
            {"thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "c2ln"}]},
        ],
        {"thinking_blocks": [{"type": "thinking", "thinking": "Hm, yes.", "signature": "c2ln"}]},
        {},
    ),
    "a signature on the message": ([{"content": "I look.", "extra_content": SIGNED}], {"extra_content": SIGNED}, {}),
    "a signature on the call": ([{"tool_calls": [{**CALL, "extra_content": SIGNED}]}], {}, {"extra_content": SIGNED}),
    "another name on the call": (
        [{"tool_calls": [{**CALL, "provider_specific_fields": {"thought_signature": "c2ln"}}]}],
        {},
        {"provider_specific_fields": {"thought_signature": "c2ln"}},
    ),
    "parts of the content": (
        [
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm, "}]}]},
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "yes."}], "closed": True}]},
            {"content": [{"type": "text", "text": "I look."}]},
        ],
        {
            "content": [
                {"type": "thinking", "thinking": [{"type": "text", "text": "Hm, yes."}], "closed": True},
                {"type": "text", "text": "I look."},
            ]
        },
        {},
    ),
    "tags in the text": (
        [{"content": "\n<thi"}, {"content": "nk>\nHm, yes.</"}, {"content": "think>\n\nI lo"}, {"content": "ok."}],
        {"content": "\n<think>\nHm, yes.</think>\n\nI look."},
        {},
    ),
}


def _chunks(deltas: list[dict[str, Any]], finish: str) -> tuple[bytes, ...]:
    has_call = any("tool_calls" in delta for delta in deltas)
    deltas = deltas if has_call or finish == "stop" else [*deltas, {"tool_calls": [CALL]}]
    data = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    data.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return events(*map(json.dumps, data), "[DONE]")


def _decoded(deltas: list[dict[str, Any]], dialect: Dialect, model: str) -> ExpertMessage:
    decoder = ChatDecoder(lambda delta: None, dialect, model)
    for event in _chunks(deltas, "tool_calls"):
        decoder.feed(event.decode().removeprefix("data: "))
    reply = decoder.finish().reply
    return ExpertMessage.model_validate_json(reply.model_dump_json(by_alias=True))  # as a resumed Job reads it


def _sent_back(reply: ExpertMessage, dialect: Dialect, model: str) -> dict[str, Any]:
    results = ToolMessage(contents=(result("c1", TextPart(text="found")),))
    body = json.loads(encode_chat(request_to(model, user("hi"), reply, results), dialect, {}))
    found: dict[str, Any] = body["messages"][2]
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_reasoning_goes_back_as_it_came(shape: str) -> None:
    deltas, message, call = SHAPES[shape]
    reply = _decoded(deltas, HERE, "m")
    sent = _sent_back(reply, HERE, "m")
    assert {name: sent.get(name) for name in message} == message
    assert {name: sent["tool_calls"][0].get(name) for name in call} == call
    thinking = "".join(part.thinking for part in reply.contents if isinstance(part, ThinkingPart))
    assert thinking.strip() in ("Hm, yes.", "")
    assert "Hm" not in reply.text


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("dialect", "model"),
    [
        (HERE, "another"),
        (replace(HERE, vendor="openai@there"), "m"),
        (Dialect(), "m"),
        (Dialect(profile=profile_named("mistral"), vendor="mistral@api.mistral.ai"), "m"),
    ],
    ids=["model", "endpoint", "vendor", "strict"],
)
def test_after_a_switch_of_model_or_endpoint_nothing_of_it_is_sent(shape: str, dialect: Dialect, model: str) -> None:
    reply = _decoded(SHAPES[shape][0], HERE, "m")
    sent = _sent_back(reply, dialect, model)
    assert sent.keys() == {"role", "content", "tool_calls"}
    assert sent["tool_calls"][0].keys() == {"id", "type", "function"}
    assert sent["content"] in (None, "", "I look.")


@pytest.mark.parametrize(("name", "model", "filled"), [("deepseek", "m", ""), ("moonshot", "kimi-k3", " ")])
def test_a_server_that_wants_reasoning_with_every_call_gets_its_own_or_an_empty_one(
    name: str, model: str, filled: str
) -> None:
    there = Dialect(profile=profile_named(name), vendor=f"{name}@there")
    deltas = SHAPES["reasoning_content"][0]
    assert _sent_back(_decoded(deltas, there, model), there, model)["reasoning_content"] == "Hm, yes."
    assert _sent_back(_decoded(deltas, HERE, "m"), there, model)["reasoning_content"] == filled
    assert _sent_back(_decoded([{"content": "I look."}], there, model), there, model)["reasoning_content"] == filled


@settings(deadline=None)
@given(
    thinking=st.text(max_size=30),
    text=st.text(max_size=30),
    blanks=st.sampled_from(["", "\n", " \n\n"]),
    cuts=st.lists(st.integers(0, 90), max_size=8),
)
def test_tags_are_found_however_a_text_is_cut(thinking: str, text: str, blanks: str, cuts: list[int]) -> None:
    whole = f"{blanks}<think>{thinking}</think>{blanks}{text}"
    for content in (whole, text, thinking):
        ends = sorted({cut % (len(content) + 1) for cut in cuts} | {0, len(content)})
        tags = ThinkTags()
        pieces = [piece for start, end in pairwise(ends) for piece in tags.feed(content[start:end])]
        pieces += tags.finish()
        thought = "".join(words for kind, words in pieces if kind == "reasoning")
        said = "".join(words for kind, words in pieces if kind == "text")
        assert tags.opening + thought + tags.closing + said == content, "sent back, it is what came"
        if content is whole and "<" not in thinking:
            assert (thought, said) == (thinking, text.lstrip())


def test_tags_in_the_middle_of_a_text_are_part_of_it() -> None:
    reply = _decoded([{"content": "Use <think>this</think>."}], HERE, "m")
    assert reply.text == "Use <think>this</think>."


def test_a_fallback_gets_none_of_it_nor_does_its_resume(tmp_path: Path) -> None:
    """Check a real Job: the first endpoint fails after a call, and another one takes over."""
    (tmp_path / "a").write_text("found in a")
    kept = {**SHAPES["reasoning_content"][1], "extra_content": SIGNED}
    thinks = PreparedReply(_chunks([*SHAPES["reasoning_content"][0], {"extra_content": SIGNED}], "tool_calls"))
    fails = PreparedReply((b'{"error": {"message": "nobody is here"}}',), status=503)
    done = PreparedReply(_chunks([{"content": "Done."}], "stop"))

    def reply_in(request: ReceivedRequest) -> dict[str, Any]:
        found: dict[str, Any] = next(one for one in json.loads(request.body)["messages"] if one["role"] == "assistant")
        return found

    async def scenario() -> None:
        async with FakeEndpoint(thinks, fails) as first, FakeEndpoint(fails, done) as second:
            env = {"OPENAI_API_KEY": KEY, "DEEPSEEK_API_KEY": KEY, "DEEPSEEK_BASE_URL": second.url}
            provider = ProviderSetting(provider_name="openai", setting={"baseUrl": first.url})
            update = {"model": ("m", "deepseek/deepseek-flash"), "provider": provider, "max_retries": 0}
            project = project_of(expert("a")).model_copy(update=update)
            for _ in "run", "resume":
                async with Host(project, workspace=tmp_path, env=env) as host:
                    job = await (host.resume("job") if second.asked else host.run("a", "hi", job_id="job"))
            assert (job.status, job.text, len(second.asked)) == ("completed", "Done.", 2)
            assert all({name: reply_in(request)[name] for name in kept} == kept for request in first.asked[1:])
            for request in second.asked:
                assert (reply_in(request)["reasoning_content"], "extra_content" in reply_in(request)) == ("", False)

    asyncio.run(scenario())
