"""One test suite for all providers in every wire format, and the documentation page made from its results.

`CAPABILITIES` has a check for each row of docs/provider-matrix.md. A check fails, or returns the user-visible behaviour
for the cell. `python tests/support/provider_suite.py` writes the page; after adding a provider to `WIRES`, write it
again.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hosts import Seen, expert, project_of
from wire import KEY, READ, Said, Wire, contains
from wire_anthropic import ANTHROPIC
from wire_bedrock import BEDROCK, BEDROCK_ANTHROPIC
from wire_google import GOOGLE, GOOGLE_OLDER
from wire_openai import AZURE, AZURE_DATED, COMPATIBLE, DEEPSEEK, OLLAMA, OPENAI
from wire_vertex import VERTEX, VERTEX_CLAUDE

from perstack.core.definitions.experts import FileSearchOptions
from perstack.core.definitions.settings import Overrides, ProviderSetting
from perstack.core.definitions.skills import ToolSpec
from perstack.core.jobs.job import Job
from perstack.core.runs.messages import (
    BlobPart,
    ExpertMessage,
    History,
    Message,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from perstack.errors import MissingCredential, ProviderError
from perstack.host import Host
from perstack.ports.provider import Delta, Generation, GenerationRequest, OfferedProviderTool, Provider
from perstack.testing.fake_endpoint import FakeEndpoint, PreparedReply

WIRES: tuple[Wire, ...] = (
    ANTHROPIC, OPENAI, COMPATIBLE, GOOGLE, GOOGLE_OLDER, DEEPSEEK, AZURE, AZURE_DATED, OLLAMA, VERTEX, VERTEX_CLAUDE,
    BEDROCK, BEDROCK_ANTHROPIC,
)  # fmt: skip
PAGE = Path(__file__).parents[2] / "docs" / "provider-matrix.md"
_HEAD, _TAIL = "<!-- matrix -->\n", "<!-- end of matrix -->\n"

Check = Callable[[Wire], str]
CAPABILITIES: dict[str, Check] = {}

_TOOLS = (ToolSpec(name=READ, input_schema={"type": "object", "properties": {"path": {"type": "string"}}}),)
_HELLO = Said("Grüß Gott 😀\u2028Hello")
_IMAGE = BlobPart(sha256="i", mime_type="image/png", size=3)
_PDF = BlobPart(sha256="p", mime_type="application/pdf", size=3, name="a.pdf")
_BLOBS = {"i": b"png", "p": b"pdf"}
_QUERY = UserMessage(contents=(TextPart(text="hi"),))


def capability(title: str) -> Callable[[Check], Check]:
    """Register a check under its row of the page."""

    def register(check: Check) -> Check:
        CAPABILITIES[title] = check
        return check

    return register


# --- a provider and its endpoint --------------------------------------------------------------------------------------


async def _blob(sha256: str) -> bytes:
    return _BLOBS[sha256]


def request_of(wire: Wire, *messages: Message, **rest: Any) -> GenerationRequest:
    given: dict[str, Any] = {"tools": _TOOLS, **rest}
    return GenerationRequest(wire.model, "You.", History(messages or (_QUERY,)), blobs=_blob, **given)


def using(
    wire: Wire, *replies: PreparedReply, act: Callable[[Provider], Awaitable[None]], **setting: Any
) -> FakeEndpoint:
    """Return an endpoint with these replies, after `act` has used a provider on it."""

    async def scenario() -> FakeEndpoint:
        async with asyncio.timeout(30), FakeEndpoint(*replies) as endpoint:
            provider = wire.provider(endpoint.url, **setting)
            try:
                await act(provider)
            finally:
                await provider.close()
            return endpoint

    return asyncio.run(scenario())


def generate(
    wire: Wire, reply: PreparedReply, request: GenerationRequest | None = None, **setting: Any
) -> tuple[Generation, list[Delta], FakeEndpoint]:
    """Make one generation. Return it with its deltas and the endpoint."""
    found: list[Generation] = []
    deltas: list[Delta] = []

    async def act(provider: Provider) -> None:
        found.append(await provider.generate(request or request_of(wire), deltas.append))

    endpoint = using(wire, reply, act=act, **setting)
    return found[0], deltas, endpoint


def body_of(wire: Wire, request: GenerationRequest, **setting: Any) -> Any:
    """Return the request body that is sent for a request."""
    return json.loads(generate(wire, wire.reply(_HELLO), request, **setting)[2].asked[0].body)


def error_of(wire: Wire, reply: PreparedReply) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        generate(wire, reply)
    return caught.value


@asynccontextmanager
async def host_in(folder: Path, wire: Wire, url: str, **overrides: Any) -> AsyncIterator[Host]:
    """Yield a Host with Expert `a` at a server, with a timeout of 30 seconds."""
    config = wire.config(url)
    provider = ProviderSetting(provider_name=wire.factory.name, setting=config.setting)
    project = project_of(expert("a")).model_copy(update={"model": wire.model, "provider": provider})
    host = Host(project, workspace=folder, env=config.env, overrides=Overrides(**overrides))
    try:
        async with asyncio.timeout(30):
            yield host
    finally:
        await host.close()


async def run_at(wire: Wire, url: str, query: str = "hi", **overrides: Any) -> tuple[Job, Seen]:
    """Drive a whole Run at a server, with real tools, in a workspace with files a and b."""
    seen = Seen()
    with tempfile.TemporaryDirectory() as folder:
        for name in "ab":
            (Path(folder) / name).write_text(f"found in {name}")
        async with host_in(Path(folder), wire, url, **overrides) as host:
            return await host.run("a", query, on_event=seen), seen


def run(wire: Wire, *replies: PreparedReply) -> tuple[Job, Seen, FakeEndpoint]:
    """Drive a whole Run at an endpoint with these replies."""

    async def scenario() -> tuple[Job, Seen, FakeEndpoint]:
        async with FakeEndpoint(*replies) as endpoint:
            return *(await run_at(wire, endpoint.url)), endpoint

    return asyncio.run(scenario())


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _loop(reply: ExpertMessage, *contents: TextPart | BlobPart) -> tuple[Message, ...]:
    """Return a query, a reply, and the same result for each of its calls."""
    results = (
        ToolResultPart(tool_call_id=call.tool_call_id, tool_name=call.tool_name, contents=contents)
        for call in reply.tool_calls
    )
    return _QUERY, reply, ToolMessage(contents=tuple(results))


def _reply(wire: Wire, said: Said) -> ExpertMessage:
    return generate(wire, wire.reply(said))[0].reply


# --- checks -----------------------------------------------------------------------------------------------------------


@capability("Text, streamed")
def text(wire: Wire) -> str:
    generation, deltas, endpoint = generate(wire, wire.reply(_HELLO))
    assert (generation.reply.contents, generation.finish_reason) == ((TextPart(text=_HELLO.text),), "stop")
    assert {delta.kind for delta in deltas} == {"text"}
    assert len(deltas) > 3
    assert "".join(delta.text for delta in deltas) == _HELLO.text
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
    for tools in ((), _TOOLS):
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
    sent = generate(wire, wire.reply(_HELLO), **setting)[2].asked[0]
    assert (sent.headers["x-team"], sent.headers[name]) == ("blue", "Bearer mine")
    assert b"A label" not in sent.body
    return "yes"


@capability("Cached tokens in `usage`")
def cached(wire: Wire) -> str:
    usage = generate(wire, wire.reply(_HELLO))[0].usage
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
    return _error_of_run(wire, wire.reply(Said("Half a", stop="length")))


@capability("A refusal")
def refusal_error(wire: Wire) -> str:
    return _error_of_run(wire, wire.reply(Said("I will not.", stop="refusal")))


def _error_of_run(wire: Wire, *replies: PreparedReply) -> str:
    """Return the name of the error that ends a Run."""
    job, seen, endpoint = run(wire, *replies)
    assert (job.status, len(endpoint.asked)) == ("stoppedByError", len(replies))
    error = seen.of("errorRun")[0].error
    assert KEY not in error.message
    return f"`{error.name}`"


@capability("The conversation is too long")
def overflow(wire: Wire) -> str:
    error = error_of(wire, wire.error_reply(400, wire.overflow))
    assert wire.overflow in str(error)
    assert "longer context" in str(error)
    return _error_of_run(wire, wire.error_reply(400, wire.overflow))


@capability("A wrong key")
def unauthorized(wire: Wire) -> str:
    error = error_of(wire, wire.error_reply(401, f"wrong key {KEY}"))
    assert (error.status_code, error.is_retryable, KEY in str(error)) == (401, False, False)
    assert "wrong key" in str(error)
    return _error_of_run(wire, wire.error_reply(401, f"wrong key {KEY}"))


@capability("No key")
def missing_key(wire: Wire) -> str:
    env = {name: value for name, value in wire.env.items() if value != KEY}
    if wire.missing is None:
        assert wire.provider(None, env)
        return "none needed"
    with pytest.raises(MissingCredential, match=wire.missing):
        wire.provider(None, env)
    sent = generate(wire, wire.reply(_HELLO), env=env)[2].asked[0].headers
    assert not set(wire.credential) & set(sent), "a server on this machine needs none"
    sent = generate(wire, wire.reply(_HELLO))[2].asked[0].headers
    assert contains(sent, dict(wire.credential))
    return f"names `{wire.missing}`"


@capability("Rate limit with `retry-after`")
def rate_limit(wire: Wire) -> str:
    error = error_of(wire, wire.error_reply(429, "slow down", **{"retry-after": "7"}))
    assert (error.name, error.status_code, error.is_retryable, error.retry_after) == ("RateLimit", 429, True, 7)
    later = wire.error_reply(429, "slow down", **{"retry-after": "0.02"})
    job, seen, endpoint = run(wire, later, wire.reply(_HELLO))
    assert (job.status, job.text, job.usage.total_tokens) == ("completed", _HELLO.text, 150)
    (retry,) = seen.of("retry")
    assert (retry.delay_ms, retry.error.message, len(endpoint.asked)) == (20, "slow down", 2)
    return "waits, tries again"


@capability("Overloaded, 503")
def overloaded(wire: Wire) -> str:
    error = error_of(wire, wire.error_reply(503, "busy"))
    assert (error.name, error.is_retryable, str(error)) == ("ServerError", True, "busy")
    return "tries again"


@capability("A stream that breaks off")
def cut(wire: Wire) -> str:
    half = wire.reply(_HELLO).chunks[:4]

    async def act(provider: Provider) -> None:
        for _ in range(2):
            with pytest.raises(ProviderError) as caught:
                await provider.generate(request_of(wire), lambda delta: None)
            assert (caught.value.name, caught.value.is_retryable) == ("CutStream", True)
        generation = await provider.generate(request_of(wire), lambda delta: None)
        assert generation.reply.contents == (TextPart(text=_HELLO.text),), "nothing of the broken ones is kept"

    headers = wire.reply(_HELLO).headers
    broken = (PreparedReply(half, headers=headers, ending=ending) for ending in ("cut", "whole"))
    using(wire, *broken, wire.reply(_HELLO), act=act)
    return "dropped, tries again"


@capability("Cancelled in the middle")
def cancelled(wire: Wire) -> str:
    async def scenario() -> None:
        whole = wire.reply(_HELLO)
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


# --- the page ---------------------------------------------------------------------------------------------------------


def table(wires: Sequence[Wire] = WIRES) -> str:
    """Return the matrix, by running every check."""
    lines = [["", *(wire.title for wire in wires)]]
    lines += [[title, *(check(wire) for wire in wires)] for title, check in CAPABILITIES.items()]
    lines.insert(1, ["---"] * (len(wires) + 1))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def write() -> None:
    """Write the matrix into its page."""
    before, rest = PAGE.read_text().split(_HEAD)
    PAGE.write_text(before + _HEAD + table() + _TAIL + rest.split(_TAIL)[1])


if __name__ == "__main__":
    write()
