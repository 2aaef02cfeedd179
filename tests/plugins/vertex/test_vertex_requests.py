"""What google-vertex sends is what the vendors' own clients for Vertex AI send to the same server."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import anthropic
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from conversation import TOOLS, call, plain, result, user
from google import genai
from google.genai import types
from google.oauth2.credentials import Credentials
from provider_suite import body_of, request_of, using
from pydantic import TypeAdapter
from wire import Said, Wire, as_data
from wire_anthropic import data_of
from wire_vertex import PLACE, VERTEX, VERTEX_CLAUDE

from perstack.core.messages.messages import ExpertMessage, TextPart, ThinkingPart, ToolMessage
from perstack.ports.provider import GenerationRequest, Provider
from perstack.testing.fake_endpoint import FakeEndpoint, PreparedReply, ReceivedRequest, events

SAID = Said("Hello")


def _conversation(wire: Wire, *reply: Any) -> GenerationRequest:
    """A query, a reply with two calls of one tool, and their results."""
    calls = (call("c1", args={"path": "a"}), call("c2", args={"path": "b"}))
    results = ToolMessage(contents=(result("c1", TextPart(text="in a")), result("c2", TextPart(text="in b"))))
    replied = ExpertMessage(contents=(*reply, *calls))
    return request_of(wire, user("look"), replied, results, tools=TOOLS, reasoning_budget="low")


def _sent(wire: Wire, request: GenerationRequest, **setting: Any) -> ReceivedRequest:
    async def act(provider: Provider) -> None:
        await provider.generate(request, lambda delta: None)

    (asked,) = using(wire, wire.reply(SAID), act=act, **setting).asked
    return asked


def test_gemini_is_sent_what_googles_own_client_sends() -> None:
    request = _conversation(VERTEX, ThinkingPart(thinking="Hm.", opaque={"google": {"signature": "c2ln"}}))
    ours = _sent(VERTEX, request, temperature=0.5, maxTokens=99)
    body = json.loads(ours.body)

    async def by_sdk() -> ReceivedRequest:
        async with asyncio.timeout(30), FakeEndpoint(VERTEX.reply(SAID)) as endpoint:
            options = types.HttpOptions(base_url=endpoint.url, api_version="v1")
            credentials = Credentials(token="t")  # type: ignore[no-untyped-call]
            client = genai.Client(vertexai=True, credentials=credentials, http_options=options, **PLACE)
            contents = [types.Content.model_validate(content) for content in body["contents"]]
            rest = {key: value for key, value in body.items() if key not in ("contents", "generationConfig")}
            config = types.GenerateContentConfig.model_validate({**rest, **body["generationConfig"]})
            stream = await client.aio.models.generate_content_stream(
                model=VERTEX.model, contents=list[Any](contents), config=config
            )
            assert "".join([chunk.text or "" async for chunk in stream]) == "Hello"
            await client.aio.aclose()
            return endpoint.asked[0]

    theirs = asyncio.run(by_sdk())
    # the client leaves some keys in snake case, which Google's JSON takes too
    sent = json.loads(re.sub(r'_([a-z])(?=\w*":)', lambda found: found[1].upper(), theirs.body.decode()))
    assert (ours.method, ours.path) == (theirs.method, theirs.path)
    assert sent["systemInstruction"].pop("role", "user") == "user"
    assert body == sent
    assert [one["name"] for one in VERTEX.results(body)] == ["read", "read"]
    assert b'"id"' not in ours.body


def test_claude_is_sent_what_anthropics_own_client_sends() -> None:
    request = _conversation(VERTEX_CLAUDE, ThinkingPart(thinking="Hm.", opaque={"anthropic": {"signature": "s"}}))
    ours = _sent(VERTEX_CLAUDE, request, maxTokens=9999)
    body = json.loads(ours.body)
    asked = {"model": VERTEX_CLAUDE.model, **{key: body[key] for key in body if key != "anthropic_version"}}
    assert plain(TypeAdapter[Any](MessageCreateParamsStreaming).validate_python(asked)) == asked

    async def by_sdk() -> ReceivedRequest:
        data = [as_data(document) for document in data_of(SAID)]
        reply = PreparedReply(events(*data, names=[json.loads(one)["type"] for one in data]))
        async with asyncio.timeout(30), FakeEndpoint(reply) as endpoint:
            client = anthropic.AsyncAnthropicVertex(
                region=PLACE["location"], project_id=PLACE["project"], access_token="t", base_url=f"{endpoint.url}/v1"
            )
            stream = await client.messages.create(**asked)
            assert [event.type async for event in stream][-1] == "message_stop"
            await stream.close()
            await client.close()
            return endpoint.asked[0]

    theirs = asyncio.run(by_sdk())
    assert (ours.method, ours.path) == (theirs.method, theirs.path)
    # newer clients say a newer version of the Messages API there
    assert body.pop("anthropic_version") == "vertex-2023-10-16"
    sent = json.loads(theirs.body)
    assert sent.pop("anthropic_version")
    assert body == sent
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 4096}


def test_a_job_that_gemini_began_goes_on_with_claude() -> None:
    thought = ThinkingPart(thinking="Hm.", opaque={"google": {"signature": "c2ln"}})
    body = body_of(VERTEX_CLAUDE, _conversation(VERTEX_CLAUDE, thought))
    assert [block["type"] for block in body["messages"][1]["content"]] == ["tool_use", "tool_use"]
