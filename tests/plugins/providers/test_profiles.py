"""Each row of the table of endpoints works at a server that refuses exactly what the row says, at the first try."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
from conversation import result, user
from genai_prices.data_snapshot import get_snapshot
from provider_suite import TOOLS
from wire import KEY

from perstack.core.base.usage import Usage
from perstack.core.messages.messages import ExpertMessage, History, Message, TextPart, ToolMessage
from perstack.errors import MissingCredential, ProviderError
from perstack.ports.provider import Generation, GenerationRequest, ProviderConfig
from perstack.testing.fake_endpoint import FakeEndpoint, PreparedReply, ReceivedRequest, events
from perstack_openai.plugin import FACTORIES
from perstack_openai.profiles import FORMS, PLAIN, PROFILES, Profile, profile_at

FACTORY = {factory.name: factory for factory in FACTORIES}
CHAT = [profile for profile in PROFILES if profile.name not in ("openai", "azure-openai")]
each = pytest.mark.parametrize("profile", [*CHAT, PLAIN], ids=lambda profile: profile.name or "plain")
USAGE = {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}
MODEL = "kimi-any"  # a name for which the row of Moonshot wants reasoning


def refusal(profile: Profile, body: Any) -> str | None:
    """Return the words with which the server of a row refuses a body; None for one that it takes."""
    messages = body["messages"]
    replies = [one for one in messages if one["role"] == "assistant"]
    calls = [call for one in replies for call in one.get("tool_calls", [])]
    of_messages = {f"messages.{name}" for one in [*messages, *calls] for name in one}
    named = profile.refuses & ({*body} | of_messages)
    if named:
        return f"Unsupported parameter: {sorted(named)[0]!r}"
    with_calls = [one for one in replies if "tool_calls" in one]
    missed = profile.needs_reasoning
    if missed and any(missed not in one for one in with_calls):
        return f"thinking is enabled but {missed} is missing"
    pairs = [(a["role"], b["role"]) for a, b in pairwise(messages)]
    is_refused = {
        "null content": any(one.get("content", "absent") is None for one in replies),
        "empty content": any(one.get("content") == "" for one in messages),
        "absent content": any("content" not in one for one in replies),
        "consecutive users": ("user", "user") in pairs,
        "user after tool": ("tool", "user") in pairs,
        "long call ids": any(not re.fullmatch("[a-zA-Z0-9]{9}", call["id"]) for call in calls),
        "changed call ids": any(not call["id"].startswith("call:") for call in calls),
    }
    assert is_refused.keys() == FORMS.keys()
    return next((form for form, refused in is_refused.items() if refused and form in profile.refuses), None)


@dataclass
class Server:
    """The server of a row: it thinks and calls twice, then answers."""

    profile: Profile
    refused: list[str] = field(default_factory=list[str])
    bodies: list[Any] = field(default_factory=list[Any])

    def answer(self, request: ReceivedRequest) -> PreparedReply:
        body = json.loads(request.body)
        words = refusal(self.profile, body)
        if words is not None:
            self.refused.append(words)
            return PreparedReply((json.dumps({"error": {"message": words}}).encode(),), status=400)
        self.bodies.append(body)
        count = len(self.bodies)
        deltas = [*self.thinking()]
        if count <= 2:
            function = {"name": "readTextFile", "arguments": '{"path": "a"}'}
            deltas.append(
                {"tool_calls": [{"index": 0, "id": f"call:{count}", "type": "function", "function": function}]}
            )
        else:
            deltas.append({"content": "Done.\n"})
        end: dict[str, Any] = {
            "choices": [{"index": 0, "delta": {}, "finish_reason": "stop" if count > 2 else "tool_calls"}]
        }
        match self.profile.usage_at:
            case "top":
                end["usage"] = USAGE
            case "choice":
                end["choices"][0]["usage"] = USAGE
            case "x_groq":
                end["x_groq"] = {"usage": USAGE}
        chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
        return PreparedReply(events(*map(json.dumps, [*chunks, end]), "[DONE]"))

    def thinking(self) -> list[dict[str, Any]]:
        name = next(iter(self.profile.reasoning), "")
        if name == "<think>":
            return [{"content": "<think>Hm, yes.</think>\n"}]
        if name == "thinking in the content":
            return [{"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm, yes."}]}]}]
        return [{name: "Hm, "}, {name: "yes."}]


async def _no_blobs(sha256: str) -> bytes:
    raise AssertionError(sha256)


def _request(*messages: Message, **rest: Any) -> GenerationRequest:
    return GenerationRequest(MODEL, "You.", History(messages), TOOLS, _no_blobs, **rest)


def _provider(profile: Profile, **setting: Any) -> Any:
    env = {next(iter(profile.keys), "OPENAI_API_KEY"): KEY}
    return FACTORY[profile.name or "openai"].create(ProviderConfig(setting, env))


def _unseen(delta: object) -> None:
    """Show nobody."""


@each
def test_a_conversation_with_blanks_and_calls_is_taken_at_the_first_try(profile: Profile) -> None:
    server = Server(profile)

    async def scenario() -> list[Generation]:
        async with FakeEndpoint(choose=server.answer) as endpoint:
            provider = _provider(profile, baseUrl=endpoint.url)
            history: list[Message] = [user(" \n"), user("hi")]
            found: list[Generation] = []
            for content in (" \n", ""):
                found.append(await provider.generate(_request(*history, max_tokens=99, temperature=0.5), _unseen))
                results = ToolMessage(
                    contents=(result(found[-1].reply.tool_calls[0].tool_call_id, TextPart(text=content)),)
                )
                history += [found[-1].reply, results]
            history += [user("look"), ExpertMessage(), user("again")]
            found.append(await provider.generate(_request(*history, allow_tools=False), _unseen))
            await provider.close()
            return found

    first, second, last = asyncio.run(scenario())
    assert server.refused == []
    assert len(server.bodies) == 3
    assert last.reply.text.strip() == "Done."
    for generation in (first, second, last):
        assert (generation.usage.input_tokens, generation.usage.output_tokens) == (100, 50)
        assert generation.reply.contents[0].model_dump()["thinking"].strip() == "Hm, yes."
    replies = [one for one in server.bodies[-1]["messages"] if one["role"] == "assistant" and "tool_calls" in one]
    assert ["Hm, yes." in json.dumps(one) for one in replies] == [True, True], "it goes back to its endpoint"
    results = [one["content"] for one in server.bodies[-1]["messages"] if one["role"] == "tool"]
    assert results == ["(no output)", "(no output)"]


@each
def test_whatever_is_refused_besides_is_left_out_at_the_second_try(profile: Profile) -> None:
    """The ladder: an optional field that no row knows to be refused."""
    refusing = "temperature"
    names: list[bool] = []

    def answer(request: ReceivedRequest) -> PreparedReply:
        body = json.loads(request.body)
        names.append(refusing in body)
        if refusing in body:
            # the whole request is echoed, as some servers do, in more than any usual error
            echo = {**body, "messages": [*body["messages"], {"role": "user", "content": "tools.0 " * 20_000}]}
            words = {"detail": [{"input": echo, "type": "extra_forbidden", "loc": ["body", refusing]}]}
            return PreparedReply((json.dumps(words).encode(),), status=422)
        return Server(profile, bodies=[None, None]).answer(request)

    async def scenario() -> Any:
        async with FakeEndpoint(choose=answer) as endpoint:
            provider, request = _provider(profile, baseUrl=endpoint.url, temperature=0.5), _request(user("hi"))
            with pytest.raises(ProviderError) as caught:
                await provider.generate(request, _unseen)
            adaptations = tuple(provider.adapt(request, caught.value))
            found = await provider.generate(replace(request, adaptations=adaptations), _unseen)
            await provider.close()
            return found

    assert asyncio.run(scenario()).reply.text.strip() == "Done."
    assert names == [True, False]


def test_a_row_is_a_provider_with_its_key_its_address_and_its_prices() -> None:
    price_lists = {provider.id for provider in get_snapshot().providers}
    for profile in CHAT:
        factory = FACTORY[profile.name]
        assert factory.is_vendor is not profile.is_local, "a definition may name a vendor's own address, no other"
        assert profile.keys[0] in factory.how_to_configure or profile.is_local
        with_address = {profile.address_variables[0]: "https://a.example"} if profile.is_local else {}
        assert not factory.is_configured({} if not profile.is_local else {profile.keys[0]: KEY})
        assert factory.is_configured({profile.keys[0]: KEY, **with_address})
        provider: Any = factory.create(ProviderConfig({}, {profile.keys[0]: KEY}))
        assert provider.endpoint.base_url == profile.address
        assert provider.endpoint.headers == {"Authorization": f"Bearer {KEY}"}
        if not profile.is_local:
            assert profile.price_list in price_lists
            with pytest.raises(MissingCredential, match=profile.keys[0]):
                factory.create(ProviderConfig({}, {}))
            assert profile_at(profile.address) is profile
        for model in (profile.low_model, profile.default_model, profile.high_model):
            if model is not None:
                assert factory.prices is not None
                cost, _ = factory.prices.load()(model, Usage(input_tokens=1000, output_tokens=100))
                assert cost, f"{profile.name}: {model} has a published price"
    assert profile_at("http://localhost:8000/v1") is profile_at("https://elsewhere.example") is PLAIN
    assert profile_at("https://eu.openrouter.ai/api/v1").name == "openrouter"


def test_every_row_names_where_it_is_from() -> None:
    assert all(profile.sources for profile in PROFILES)
