"""Conformance suite for endpoints: what every provider must do in its wire format, in one table of rows and columns.

A column is a `Wire` (tests/support/wire.py): an endpoint in one format. It renders a reply in vendor-neutral terms into
the format's own bytes, and finds tools, results and schemas in requests. Columns are `WIRES`.

A row is a check with a title. Each check talks to a real server on this machine (`FakeEndpoint`) and returns the text
of its cell in docs/provider-matrix.md, or fails. There are three kinds of row:

- `@capability(title)` registers `check(wire) -> cell`, for anything else.
- `@situation(title, expected)` (reply_situations.py) registers replies that deviate: a function that returns named
  replies for a wire, each of which must be taken, or must fail, as `expected` says.
- A request that an endpoint refuses: a `@capability` that calls `run_under_rule(wire, rule, *replies)`. `rule` returns
  the vendor's words for a body that the vendor refuses, and None for others.

To add a row, write its check in the module of its kind, or a new module that provider_matrix.py imports, and run
`make matrix`. To add a wire, subclass a format's Wire (or `Wire` for a new format), append it to `WIRES`, and run
`make matrix`; every row then runs for it.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hosts import Seen, expert, project_of
from wire import KEY, READ, Said, Wire
from wire_anthropic import ANTHROPIC
from wire_bedrock import BEDROCK, BEDROCK_ANTHROPIC
from wire_google import GOOGLE, GOOGLE_OLDER
from wire_openai import AZURE, AZURE_DATED, COMPATIBLE, DEEPSEEK, OLLAMA, OPENAI
from wire_vertex import VERTEX, VERTEX_CLAUDE

from perstack.core.definitions.settings import Overrides, ProviderSetting
from perstack.core.definitions.skills import ToolSpec
from perstack.core.jobs.job import Job
from perstack.core.messages.adaptations import MAX_RUNGS, Adaptations
from perstack.core.messages.messages import History, Message, TextPart, UserMessage
from perstack.engine.runs.attempts import adaptations_after, adapted_request
from perstack.errors import ProviderError
from perstack.host import Host
from perstack.ports.provider import Delta, Generation, GenerationRequest, Provider
from perstack.testing.fake_endpoint import FakeEndpoint, PreparedReply, ReceivedRequest

WIRES: tuple[Wire, ...] = (
    ANTHROPIC, OPENAI, COMPATIBLE, GOOGLE, GOOGLE_OLDER, DEEPSEEK, AZURE, AZURE_DATED, OLLAMA, VERTEX, VERTEX_CLAUDE,
    BEDROCK, BEDROCK_ANTHROPIC,
)  # fmt: skip

Check = Callable[[Wire], str]
CAPABILITIES: dict[str, Check] = {}

TOOLS = (ToolSpec(name=READ, input_schema={"type": "object", "properties": {"path": {"type": "string"}}}),)
HELLO = Said("Grüß Gott 😀\u2028Hello")
_BLOBS = {"i": b"png", "p": b"pdf"}
QUERY = UserMessage(contents=(TextPart(text="hi"),))


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
    given: dict[str, Any] = {"tools": TOOLS, **rest}
    return GenerationRequest(wire.model, "You.", History(messages or (QUERY,)), blobs=_blob, **given)


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


def climb(
    wire: Wire, rule: Callable[[Any], str | None], request: GenerationRequest, *, status: int = 400, **setting: Any
) -> tuple[Generation | ProviderError, Adaptations, list[Any]]:
    """Generate as the host does at an endpoint that refuses each body for which `rule` returns words.

    Return the end, the adaptations that led to it, and the bodies.
    """

    def choose(received: ReceivedRequest) -> PreparedReply:
        body = json.loads(received.body)
        words = wire.refusal_of(body) or rule(body)
        return wire.reply(HELLO) if words is None else wire.error_reply(status, words)

    async def generate_adapted(provider: Provider, request: GenerationRequest) -> tuple[Any, Adaptations]:
        for rungs_left in range(MAX_RUNGS, -1, -1):
            try:
                return await provider.generate(request, lambda delta: None), request.adaptations
            except ProviderError as error:
                found = adaptations_after(provider, request, error) if rungs_left else ()
                if not found:
                    return error, request.adaptations
                request = adapted_request(request, found)
        raise AssertionError("the last rung returns")

    async def scenario() -> tuple[Generation | ProviderError, Adaptations, list[Any]]:
        async with asyncio.timeout(30), FakeEndpoint(choose=choose) as endpoint:
            provider = wire.provider(endpoint.url, **setting)
            end, adaptations = await generate_adapted(provider, request)
            await provider.close()
            return end, adaptations, [json.loads(asked.body) for asked in endpoint.asked]

    return asyncio.run(scenario())


def body_of(wire: Wire, request: GenerationRequest, **setting: Any) -> Any:
    """Return the request body that is sent for a request."""
    return json.loads(generate(wire, wire.reply(HELLO), request, **setting)[2].asked[0].body)


def error_of(wire: Wire, reply: PreparedReply) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        generate(wire, reply)
    return caught.value


@asynccontextmanager
async def host_in(
    folder: Path, wire: Wire, url: str, setting: Mapping[str, Any] = {}, **overrides: Any
) -> AsyncIterator[Host]:
    """Yield a Host with Expert `a` at a server, with a timeout of 30 seconds."""
    config = wire.config(url, **setting)
    provider = ProviderSetting(provider_name=wire.factory.name, setting=config.setting)
    project = project_of(expert("a")).model_copy(update={"model": wire.model, "provider": provider})
    host = Host(project, workspace=folder, env=config.env, overrides=Overrides(**overrides))
    try:
        async with asyncio.timeout(30):
            yield host
    finally:
        await host.close()


FILES = {name: f"found in {name}" for name in "ab"}


async def run_at(
    wire: Wire, url: str, query: str = "hi", files: Mapping[str, str] = FILES, **overrides: Any
) -> tuple[Job, Seen]:
    """Drive a whole Run at a server, with real tools, in a workspace with files."""
    seen = Seen()
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text)
        async with host_in(Path(folder), wire, url, **overrides) as host:
            return await host.run("a", query, on_event=seen), seen


def run(wire: Wire, *replies: PreparedReply, **setting: Any) -> tuple[Job, Seen, FakeEndpoint]:
    """Drive a whole Run at an endpoint with these replies."""

    async def scenario() -> tuple[Job, Seen, FakeEndpoint]:
        async with FakeEndpoint(*replies) as endpoint:
            return *(await run_at(wire, endpoint.url, setting=setting)), endpoint

    return asyncio.run(scenario())


def run_under_rule(
    wire: Wire, rule: Callable[[Any], str | None], *replies: PreparedReply, **options: Any
) -> tuple[Job, Seen, FakeEndpoint]:
    """Drive a whole Run at an endpoint that refuses, with status 400, each body for which `rule` returns words.

    `options` are those of `run_at`.
    """
    rest = list(replies)

    def choose(request: ReceivedRequest) -> PreparedReply:
        body = json.loads(request.body)
        words = wire.refusal_of(body) or rule(body)
        if words is not None:
            return wire.error_reply(400, words)
        return rest.pop(0) if len(rest) > 1 else rest[0]

    async def scenario() -> tuple[Job, Seen, FakeEndpoint]:
        async with FakeEndpoint(choose=choose) as endpoint:
            return *(await run_at(wire, endpoint.url, **options)), endpoint

    return asyncio.run(scenario())


def error_of_run(wire: Wire, *replies: PreparedReply, **setting: Any) -> str:
    """Return the name of the error that ends a Run."""
    job, seen, endpoint = run(wire, *replies, **setting)
    assert (job.status, len(endpoint.asked)) == ("stoppedByError", len(replies))
    error = seen.of("errorRun")[0].error
    assert KEY not in error.message
    return f"`{error.name}`"
