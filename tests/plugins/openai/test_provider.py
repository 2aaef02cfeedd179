"""Provider `openai` against a real server on this machine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from perstack.core.messages import BlobPart, History, TextPart, UserMessage
from perstack.errors import DefinitionError, MissingCredential, ProviderError
from perstack.ports.provider import Delta, Generation, GenerationRequest, ProviderConfig
from perstack.testing.endpoint import FakeEndpoint, Reply, events
from perstack_openai.plugin import OpenAIProviderFactory, perstack_providers
from perstack_openai.settings import is_openai

KEY = "sk-0123456789"
WHOLE = Reply(
    events(
        '{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}',
        '{"choices":[{"index":0,"delta":{"content":"Hello"}}]}',
        '{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}',
        '{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}',
        "[DONE]",
    )
)
HALF = WHOLE.chunks[:2]


async def _blob(sha256: str) -> bytes:
    return b"pdf"


def _request(*contents: TextPart | BlobPart) -> GenerationRequest:
    message = UserMessage(contents=contents or (TextPart(text="hi"),))
    return GenerationRequest("gpt-5-mini", "You.", History((message,)), (), _blob)


def _generate(
    *replies: Reply, env: dict[str, str] | None = None, request: GenerationRequest | None = None, **more: Any
) -> tuple[Generation, list[Delta], FakeEndpoint]:
    async def scenario() -> tuple[Generation, list[Delta], FakeEndpoint]:
        async with FakeEndpoint(*replies) as endpoint:
            setting = {"baseUrl": f"{endpoint.url}/v1", **more}
            config = ProviderConfig(setting, {"OPENAI_API_KEY": KEY} if env is None else env)
            provider = OpenAIProviderFactory().create(config)
            deltas: list[Delta] = []
            try:
                await provider.generate(_request(), lambda delta: None)
                return await provider.generate(request or _request(), deltas.append), deltas, endpoint
            finally:
                await provider.close()

    return asyncio.run(asyncio.wait_for(scenario(), 30))


def test_generations_are_streamed_over_one_connection() -> None:
    generation, deltas, endpoint = _generate(WHOLE)
    assert generation.reply.text == "Hello"
    assert (generation.usage.total_tokens, generation.finish_reason) == (10, "stop")
    assert deltas == [Delta("text", "Hello")]
    assert endpoint.connections == 1
    asked = endpoint.asked[1]
    assert (asked.method, asked.path) == ("POST", "/v1/chat/completions")
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert json.loads(asked.body)["model"] == "gpt-5-mini"


def test_organization_and_project_come_from_settings_or_environment() -> None:
    env = {"OPENAI_API_KEY": KEY, "OPENAI_ORG_ID": "org-env", "OPENAI_PROJECT_ID": "proj-env"}
    headers = _generate(WHOLE, env=env, organization="org-set")[2].asked[0].headers
    assert (headers["openai-organization"], headers["openai-project"]) == ("org-set", "proj-env")


def test_a_server_on_this_machine_needs_no_key() -> None:
    assert "authorization" not in _generate(WHOLE, env={"OPENAI_API_KEY": ""})[2].asked[0].headers


def test_a_missing_key_names_the_variable_before_anything_is_sent() -> None:
    for setting in ({}, {"baseUrl": "https://compatible.example/v1"}):
        with pytest.raises(MissingCredential, match="OPENAI_API_KEY"):
            OpenAIProviderFactory().create(ProviderConfig(dict(setting), {}))


def test_a_compatible_server_gets_text_in_place_of_a_document_unless_it_is_said_to_take_them() -> None:
    request = _request(BlobPart(sha256="d", mime_type="application/pdf", size=3))
    told = json.loads(_generate(WHOLE, request=request)[2].asked[1].body)["messages"][1]["content"]
    assert "application/pdf, 3 bytes" in told
    sent = json.loads(_generate(WHOLE, request=request, documents=True)[2].asked[1].body)["messages"][1]["content"]
    assert sent[0]["type"] == "file"


@pytest.mark.parametrize(("status", "retryable"), [(400, False), (401, False), (429, True), (500, True), (503, True)])
def test_an_error_keeps_its_status_and_its_own_words(status: int, retryable: bool) -> None:
    body = b'{"error":{"message":"own words","type":"t","param":null,"code":null}}'
    headers = {"content-type": "application/json", "retry-after-ms": "1500"}
    with pytest.raises(ProviderError, match="own words") as caught:
        _generate(Reply((body,), status=status, headers=headers))
    assert (caught.value.status_code, caught.value.is_retryable, caught.value.retry_after) == (status, retryable, 1.5)


def test_a_stream_cut_in_the_middle_is_worth_another_try() -> None:
    for ending in ("cut", "whole"):
        with pytest.raises(ProviderError) as caught:
            _generate(Reply(HALF, ending=ending))
        assert (caught.value.name, caught.value.is_retryable) == ("CutStream", True)


def test_cancelling_in_the_middle_closes_the_connection() -> None:
    async def scenario() -> None:
        async with FakeEndpoint(Reply(HALF, ending="hang")) as endpoint:
            provider = OpenAIProviderFactory().create(ProviderConfig({"baseUrl": endpoint.url}, {}))
            begun = asyncio.Event()
            task = asyncio.create_task(provider.generate(_request(), lambda delta: begun.set()))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await endpoint.left.wait()
            await provider.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_wrong_setting_is_told_with_its_key() -> None:
    with pytest.raises(DefinitionError, match=r"provider\.setting\.api"):
        OpenAIProviderFactory().create(ProviderConfig({"api": "telepathy"}, {"OPENAI_API_KEY": KEY}))


@pytest.mark.parametrize(
    ("url", "official"),
    [
        ("https://api.openai.com/v1", True),
        ("https://eu.api.openai.com/v1", True),
        ("https://openai.com.evil.example/v1", False),
        ("https://notopenai.com/v1", False),
        ("http://localhost:11434/v1", False),
    ],
)
def test_openai_itself_is_told_from_servers_compatible_with_it(url: str, official: bool) -> None:
    assert is_openai(url) is official


def test_the_plugin_registers_a_provider_that_a_key_configures() -> None:
    factory = perstack_providers()[0]
    assert (factory.name, factory.priority, factory.default_model) == ("openai", 20, "gpt-5-mini")
    assert factory.is_configured({"OPENAI_API_KEY": KEY})
    assert not factory.is_configured({})
