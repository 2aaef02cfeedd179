"""Rows of the conformance suite for ordinary requests and replies."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from provider_suite import (
    HELLO,
    QUERY,
    TOOLS,
    body_of,
    capability,
    error_of,
    error_of_run,
    generate,
    request_of,
    run,
    using,
)
from wire import KEY, READ, Said, Wire, contains

from perstack.core.definitions.experts import FileSearchOptions
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
from perstack.errors import MissingCredential, ProviderError
from perstack.ports.provider import OfferedProviderTool, Provider
from perstack.testing.fake_endpoint import FakeEndpoint, PreparedReply

_IMAGE = BlobPart(sha256="i", mime_type="image/png", size=3)
_PDF = BlobPart(sha256="p", mime_type="application/pdf", size=3, name="a.pdf")


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _loop(reply: ExpertMessage, *contents: TextPart | BlobPart) -> tuple[Message, ...]:
    """Return a query, a reply, and the same result for each of its calls."""
    results = (
        ToolResultPart(tool_call_id=call.tool_call_id, tool_name=call.tool_name, contents=contents)
        for call in reply.tool_calls
    )
    return QUERY, reply, ToolMessage(contents=tuple(results))


def _reply(wire: Wire, said: Said) -> ExpertMessage:
    return generate(wire, wire.reply(said))[0].reply


@capability("Text, streamed")
def text(wire: Wire) -> str:
    generation, deltas, endpoint = generate(wire, wire.reply(HELLO))
    assert (generation.reply.contents, generation.finish_reason) == ((TextPart(text=HELLO.text),), "stop")
    assert {delta.kind for delta in deltas} == {"text"}
    assert len(deltas) > 3
    assert "".join(delta.text for delta in deltas) == HELLO.text
    (asked,) = endpoint.asked
    assert (asked.method, asked.path) == ("POST", wire.path)
    assert asked.headers["content-type"] == "application/json"
    return "yes"


@capability("A tool, and its result sent back")
def one_tool(wire: Wire) -> str:
    reply = _reply(wire, Said("I look.", calls=(("c1", "ä.txt"),)))
    said, call = reply.contents
    assert said == TextPart(text="I look.")
    assert isinstance(call, ToolCallPart)
    assert (call.tool_call_id, call.tool_name, call.args) == ("c1", READ, {"path": "ä.txt"})
    (result,) = wire.results(body_of(wire, request_of(wire, *_loop(reply, TextPart(text="found")))))
    assert "found" in _compact(result)
    assert ("c1" in result.values()) is wire.names_calls
    return "yes"


@capability("Several tools at once")
def parallel_tools(wire: Wire) -> str:
    generation = generate(wire, wire.reply(Said(calls=(("c1", "a"), ("c2", "b")))))[0]
    calls = [(one.tool_call_id, one.args) for one in generation.reply.tool_calls]
    assert calls == [("c1", {"path": "a"}), ("c2", {"path": "b"})]
    assert generation.finish_reason == "toolCalls"
    results = wire.results(body_of(wire, request_of(wire, *_loop(generation.reply, TextPart(text="found")))))
    named = [["c1" in one.values(), "c2" in one.values()] for one in results]
    assert named == ([[True, False], [False, True]] if wire.names_calls else [[False, False]] * 2)
    return "yes"


@capability("No tools in the last generation")
def tool_choice(wire: Wire) -> str:
    last = body_of(wire, request_of(wire, allow_tools=False))
    usual = body_of(wire, request_of(wire))
    assert wire.forbids_tools(last)
    assert not wire.forbids_tools(usual)
    assert wire.tools(last) == wire.tools(usual) is not None, "shown all the same, for the prefix's sake"
    without = body_of(wire, request_of(wire, tools=(), allow_tools=False))
    assert wire.tools(without) is None
    assert not wire.forbids_tools(without)
    assert not set(wire.no_tools) & set(without)
    return "yes" if wire.no_tools else "asked as text"


@capability("Tools that the provider runs itself")
def provider_tools(wire: Wire) -> str:
    names = [tool.name for tool in wire.provider("http://127.0.0.1:9").tools]
    stores = FileSearchOptions(vector_store_ids=("vs_1",))
    offered = tuple(OfferedProviderTool(name, stores if name == "fileSearch" else None) for name in names)
    plain, more = (body_of(wire, request_of(wire, provider_tools=tools)) for tools in ((), offered))
    assert len(wire.tools(more) or ()) == len(wire.tools(plain) or ()) + len(names)
    return ", ".join(f"`{name}`" for name in names) or "no"


@capability("Thinking, apart from text")
def thinking(wire: Wire) -> str:
    generation, deltas, _ = generate(wire, wire.reply(Said("Yes.", thinking="Hm, yes.")))
    thought, said, *rest = generation.reply.contents
    assert isinstance(thought, ThinkingPart)
    assert (thought.thinking, said) == ("Hm, yes.", TextPart(text="Yes."))
    assert all(isinstance(part, ThinkingPart) and not part.thinking for part in rest)
    shown = {kind: "".join(one.text for one in deltas if one.kind == kind) for kind in ("reasoning", "text")}
    assert shown == {"reasoning": "Hm, yes.", "text": "Yes."}
    return "yes"


@capability("Thinking goes back with the results")
def thinking_back(wire: Wire) -> str:
    reply = _reply(wire, Said(thinking="Hm, yes.", calls=(("c1", "a"),)))
    stored = ExpertMessage.model_validate_json(reply.model_dump_json(by_alias=True))
    assert stored == reply, "a Job resumed later has what it needs from the log"
    sent = _compact(body_of(wire, request_of(wire, *_loop(stored, TextPart(text="found")))))
    for name, words in wire.kept.items():
        assert words in sent
        return name
    assert "Hm, yes." not in sent
    return "no: not taken"


def _blob_sent(wire: Wire, part: BlobPart) -> str:
    """Return how a person's blob is sent."""
    sent = _compact(body_of(wire, request_of(wire, UserMessage(contents=(TextPart(text="look"), part)))))
    return _as_shown(sent, part)


def _as_shown(sent: str, part: BlobPart) -> str:
    base64 = {"i": "cG5n", "p": "cGRm"}[part.sha256]
    if base64 in sent:
        return "yes"
    assert f"{part.mime_type}, 3 bytes" in sent
    return "as a line of text"


def _blob_returned(wire: Wire, part: BlobPart) -> str:
    """Return how a tool's blob is sent."""
    reply = _reply(wire, Said(calls=(("c1", "a"),)))
    body = body_of(wire, request_of(wire, *_loop(reply, TextPart(text="see"), part)))
    if _as_shown(_compact(body), part) != "yes":
        return "as a line of text"
    (result,) = wire.results(body)
    return "in the result" if {"i": "cG5n", "p": "cGRm"}[part.sha256] in _compact(result) else "after the results"


@capability("Images in a query")
def image(wire: Wire) -> str:
    return _blob_sent(wire, _IMAGE)


@capability("Images that a tool returns")
def image_of_tool(wire: Wire) -> str:
    return _blob_returned(wire, _IMAGE)


@capability("PDFs in a query")
def pdf(wire: Wire) -> str:
    return _blob_sent(wire, _PDF)


@capability("PDFs that a tool returns")
def pdf_of_tool(wire: Wire) -> str:
    return _blob_returned(wire, _PDF)


@capability("`maxTokens`, `temperature`, `topP`")
def limits(wire: Wire) -> str:
    setting = {"maxTokens": 99, "temperature": 0.5, "topP": 0.9}
    assert contains(body_of(wire, request_of(wire), **setting), wire.limits)
    for asked, most in ((99, 200), (200, 99)):
        body = body_of(wire, request_of(wire, max_tokens=asked), **{**setting, "maxTokens": most})
        assert contains(body, wire.limits), "the lower one holds"
    return "yes"


_SCHEMA = {
    "type": "object",
    "properties": {"people": {"type": "integer", "minimum": 0}},
    "required": ["people"],
}
_SENT = {"type": "object", "properties": {"people": {"type": "integer"}}, "required": ["people"]}


@capability("A schema for the result, in the format's own way")
def structured_output(wire: Wire) -> str:
    assert "additionalProperties" not in _compact(body_of(wire, request_of(wire, tools=())))
    beside = {**_SCHEMA, "$defs": {"a": {"$ref": "#"}}}
    sent: list[bool] = []
    for tools in ((), TOOLS):
        request = request_of(wire, output=_SCHEMA, tools=tools)
        shown = wire.schema(body_of(wire, request, structuredOutput=True))
        assert shown == {**_SENT, "additionalProperties": False}
        assert wire.schema(body_of(wire, request, structuredOutput=False)) is None
        assert wire.schema(body_of(wire, replace(request, output=beside), structuredOutput=True)) is None
        sent.append(wire.schema(body_of(wire, request)) is not None)
    return {(True, True): "yes", (True, False): "without tools", (False, False): "with `structuredOutput`"}[*sent,]


@capability("`headers`")
def headers(wire: Wire) -> str:
    (name,) = wire.credential
    setting = {"headers": {"X-Team": "blue", name: "Bearer mine"}}
    sent = generate(wire, wire.reply(HELLO), **setting)[2].asked[0]
    assert (sent.headers["x-team"], sent.headers[name]) == ("blue", "Bearer mine")
    assert b"A label" not in sent.body
    return "yes"


@capability("Cached tokens in `usage`")
def cached(wire: Wire) -> str:
    usage = generate(wire, wire.reply(HELLO))[0].usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (100, 50, 150)
    assert usage.cached_input_tokens == 64
    return "yes"


@capability("Each request extends the one before, for caches")
def stable_prefix(wire: Wire) -> str:
    script = (
        Said(thinking="Hm, yes.", calls=(("c1", "a"),)),
        Said("Both.", calls=(("c2", "a"), ("c3", "b"))),
        Said(calls=(("c4", "nowhere"),)),
        Said("Done."),
    )
    job, seen, endpoint = run(wire, *map(wire.reply, script))
    assert (job.status, job.text, job.total_steps) == ("completed", "Done.", 4)
    assert (job.usage.input_tokens, job.usage.cached_input_tokens) == (400, 256)
    assert [event.is_error for event in seen.of("finishToolCall")] == [False, False, False, True]
    bodies = [asked.body for asked in endpoint.asked]
    assert "found in b" in bodies[-1].decode()
    for before, after in pairwise(bodies):
        assert wire.unmarked(after).startswith(wire.unmarked(before))
    assert endpoint.connections == 1
    return "yes"


@capability("A reply at its limit")
def length(wire: Wire) -> str:
    assert generate(wire, wire.reply(Said("Half a", stop="length")))[0].finish_reason == "length"
    return error_of_run(wire, *[wire.reply(Said("Half a", stop="length"))] * 2, maxTokens=60)


@capability("A reply at its limit is continued once")
def continued(wire: Wire) -> str:
    cut, rest = wire.reply(Said("Half a \n", stop="length")), wire.reply(Said("loaf."))
    job, _, endpoint = run(wire, cut, rest, maxTokens=60)
    assert (job.status, job.text, job.usage.total_tokens) == ("completed", "Half a \nloaf.", 300)
    asked = endpoint.asked[1].body.decode()
    assert asked.index("Half a") < asked.index("Continue where you stopped")
    return "yes"


@capability("A reply without an answer: nothing, blanks, thinking alone")
def empty(wire: Wire) -> str:
    names: set[str] = set()
    for said in (Said(), Said(" \n "), Said(thinking="Hm.")):
        job, seen, endpoint = run(wire, wire.reply(said), wire.reply(HELLO))
        assert (job.status, job.text, len(endpoint.asked)) == ("completed", HELLO.text, 2)
        names |= {retry.error.name for retry in seen.of("retry")}
    return f"{', '.join(f'`{name}`' for name in sorted(names))}, tries again"


@capability("A refusal")
def refusal_error(wire: Wire) -> str:
    return error_of_run(wire, wire.reply(Said("I will not.", stop="refusal")))


@capability("The conversation is too long")
def overflow(wire: Wire) -> str:
    error = error_of(wire, wire.error_reply(400, wire.overflow))
    assert wire.overflow in str(error)
    assert "longer context" in str(error)
    return error_of_run(wire, wire.error_reply(400, wire.overflow))


@capability("The conversation is too long, told in other ways")
def overflow_in_other_ways(wire: Wire) -> str:
    words = (
        (413, "no"),
        (422, "inputs must have less than 1024 tokens"),
        (500, "prompt too long; exceeded max context"),
    )
    for status, message in words:
        error = error_of(wire, wire.error_reply(status, message))
        assert (error.name, error.is_retryable) == ("ContextOverflow", False)
    for status, message in ((400, "max_tokens is too large: 9"), (429, "too many tokens per minute"), (503, "busy")):
        assert error_of(wire, wire.error_reply(status, message)).name != "ContextOverflow"
    return "yes"


@capability("A wrong key")
def unauthorized(wire: Wire) -> str:
    error = error_of(wire, wire.error_reply(401, f"wrong key {KEY}"))
    assert (error.status_code, error.is_retryable, KEY in str(error)) == (401, False, False)
    assert "wrong key" in str(error)
    return error_of_run(wire, wire.error_reply(401, f"wrong key {KEY}"))


@capability("No key")
def missing_key(wire: Wire) -> str:
    env = {name: value for name, value in wire.env.items() if value != KEY}
    if wire.missing is None:
        assert wire.provider(None, env)
        return "none needed"
    with pytest.raises(MissingCredential, match=wire.missing):
        wire.provider(None, env)
    sent = generate(wire, wire.reply(HELLO), env=env)[2].asked[0].headers
    assert not set(wire.credential) & set(sent), "a server on this machine needs none"
    sent = generate(wire, wire.reply(HELLO))[2].asked[0].headers
    assert contains(sent, dict(wire.credential))
    return f"names `{wire.missing}`"


@capability("Rate limit with `retry-after`")
def rate_limit(wire: Wire) -> str:
    error = error_of(wire, wire.error_reply(429, "slow down", **{"retry-after": "7"}))
    assert (error.name, error.status_code, error.is_retryable, error.retry_after) == ("RateLimit", 429, True, 7)
    later = wire.error_reply(429, "slow down", **{"retry-after": "0.02"})
    job, seen, endpoint = run(wire, later, wire.reply(HELLO))
    assert (job.status, job.text, job.usage.total_tokens) == ("completed", HELLO.text, 150)
    (retry,) = seen.of("retry")
    assert (retry.delay_ms, retry.error.message, len(endpoint.asked)) == (20, "slow down", 2)
    return "waits, tries again"


@capability("Overloaded, 503")
def overloaded(wire: Wire) -> str:
    error = error_of(wire, wire.error_reply(503, "busy"))
    assert (error.name, error.is_retryable) == ("ServerError", True)
    assert str(error).startswith("busy (HTTP 503 from 127.0.0.1:")
    return "tries again"


@capability("A stream that breaks off")
def cut(wire: Wire) -> str:
    half = wire.reply(HELLO).chunks[:4]

    async def act(provider: Provider) -> None:
        for _ in range(2):
            with pytest.raises(ProviderError) as caught:
                await provider.generate(request_of(wire), lambda delta: None)
            assert (caught.value.name, caught.value.is_retryable) == ("CutStream", True)
        generation = await provider.generate(request_of(wire), lambda delta: None)
        assert generation.reply.contents == (TextPart(text=HELLO.text),), "nothing of the broken ones is kept"

    headers = wire.reply(HELLO).headers
    broken = (PreparedReply(half, headers=headers, ending=ending) for ending in ("cut", "whole"))
    using(wire, *broken, wire.reply(HELLO), act=act)
    return "dropped, tries again"


@capability("Cancelled in the middle")
def cancelled(wire: Wire) -> str:
    async def scenario() -> None:
        whole = wire.reply(HELLO)
        reply = PreparedReply(whole.chunks[:-3], headers=whole.headers, ending="hang")
        async with asyncio.timeout(30), FakeEndpoint(reply) as endpoint:
            provider, begun = wire.provider(endpoint.url), asyncio.Event()
            task = asyncio.ensure_future(provider.generate(request_of(wire), lambda delta: begun.set()))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await endpoint.left.wait()
            await provider.close()

    asyncio.run(scenario())
    return "connection closed"


@capability("A reply without token counts")
def no_counts(wire: Wire) -> str:
    bare = wire.framed([_without_usage(one) for one in wire.documents(HELLO)])
    job, seen, endpoint = run(wire, bare)
    assert (job.status, job.text) == ("completed", HELLO.text)
    size = len(endpoint.asked[0].body)
    assert size // 8 < job.usage.input_tokens < size // 2, "with instruction and tools"
    assert job.usage.output_tokens > 0
    assert job.usage.assumed_tokens == job.usage.total_tokens
    (finished,) = seen.of("finishGeneration")
    assert finished.usage.assumed_tokens == job.usage.total_tokens
    return "estimated, and marked `assumed`"


def _without_usage(document: Any) -> Any:
    if isinstance(document, dict):
        return {
            name: _without_usage(value) for name, value in document.items() if name not in ("usage", "usageMetadata")
        }
    return [_without_usage(one) for one in document] if isinstance(document, list) else document
