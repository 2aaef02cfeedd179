"""Provider `anthropic` against a real server on this machine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from perstack.core.messages import BlobPart, History, TextPart, UserMessage
from perstack.errors import DefinitionError, MissingCredential, ProviderError
from perstack.ports.provider import Delta, Generation, GenerationRequest, ProviderConfig
from perstack.testing.endpoint import FakeEndpoint, Reply, events
from perstack_anthropic.plugin import AnthropicProviderFactory, perstack_providers

KEY = "sk-ant-0123456789"
WHOLE = Reply(
    events(
        '{"type":"message_start","message":{"usage":{"input_tokens":7,"output_tokens":1}}}',
        '{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}',
        '{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}',
        '{"type":"content_block_stop","index":0}',
        '{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":3}}',
        '{"type":"message_stop"}',
    )
)
HALF = WHOLE.chunks[:3]


async def _blob(sha256: str) -> bytes:
    return b"png"


def _request(*contents: TextPart | BlobPart) -> GenerationRequest:
    message = UserMessage(contents=contents or (TextPart(text="hi"),))
    return GenerationRequest("claude-sonnet-5", "You.", History((message,)), (), _blob)


def _generate(
    *replies: Reply,
    env: dict[str, str] | None = None,
    times: int = 1,
    request: GenerationRequest | None = None,
    **more: Any,
) -> tuple[Generation, list[Delta], FakeEndpoint]:
    async def scenario() -> tuple[Generation, list[Delta], FakeEndpoint]:
        async with FakeEndpoint(*replies) as endpoint:
            setting = {"baseUrl": endpoint.url, **more}
            config = ProviderConfig(setting, {"ANTHROPIC_API_KEY": KEY} if env is None else env)
            provider = AnthropicProviderFactory().create(config)
            deltas: list[Delta] = []
            try:
                for _ in range(times - 1):
                    await provider.generate(request or _request(), deltas.append)
                return await provider.generate(request or _request(), deltas.append), deltas, endpoint
            finally:
                await provider.close()

    return asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_generation_is_streamed_and_comes_back_whole() -> None:
    generation, deltas, endpoint = _generate(WHOLE)
    assert generation.reply.text == "Hello"
    assert (generation.usage.input_tokens, generation.usage.output_tokens) == (7, 3)
    assert deltas == [Delta("text", "Hello")]
    (asked,) = endpoint.asked
    assert (asked.method, asked.path) == ("POST", "/v1/messages")
    assert (asked.headers["x-api-key"], asked.headers["anthropic-version"]) == (KEY, "2023-06-01")
    assert asked.headers["content-type"] == "application/json"
    assert json.loads(asked.body)["model"] == "claude-sonnet-5"


def test_headers_of_the_settings_are_sent_over_our_own() -> None:
    _, _, endpoint = _generate(WHOLE, headers={"X-Api-Key": "mine", "anthropic-beta": "b"})
    assert (endpoint.asked[0].headers["x-api-key"], endpoint.asked[0].headers["anthropic-beta"]) == ("mine", "b")


def test_headers_of_the_environment_are_sent_under_those_of_the_settings() -> None:
    env = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_CUSTOM_HEADERS": "X-Team: blue\nX-Other: env"}
    headers = _generate(WHOLE, env=env, headers={"X-Other": "set"})[2].asked[0].headers
    assert (headers["x-team"], headers["x-other"]) == ("blue", "set")


def test_a_token_in_place_of_a_key_is_sent_as_a_bearer() -> None:
    _, _, endpoint = _generate(WHOLE, env={"ANTHROPIC_AUTH_TOKEN": "token"})
    assert endpoint.asked[0].headers["authorization"] == "Bearer token"


def test_the_base_url_of_the_environment_is_used() -> None:
    async def scenario() -> FakeEndpoint:
        async with FakeEndpoint(WHOLE) as endpoint:
            env = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": f"{endpoint.url}/v1/"}
            provider = AnthropicProviderFactory().create(ProviderConfig({}, env))
            await provider.generate(_request(), lambda delta: None)
            await provider.close()
            return endpoint

    assert asyncio.run(scenario()).asked[0].path == "/v1/messages"


def test_steps_of_a_run_share_a_connection() -> None:
    assert _generate(WHOLE, times=4)[2].connections == 1


def test_an_image_is_read_from_the_blobs_and_sent() -> None:
    image = BlobPart(sha256="i", mime_type="image/png", size=3)
    _, _, endpoint = _generate(WHOLE, request=_request(TextPart(text="look"), image))
    assert json.loads(endpoint.asked[0].body)["messages"][0]["content"][1]["source"]["data"] == "cG5n"


@pytest.mark.parametrize(("status", "retryable"), [(400, False), (401, False), (429, True), (500, True), (529, True)])
def test_an_error_keeps_its_status_and_its_own_words(status: int, retryable: bool) -> None:
    body = b'{"type":"error","error":{"type":"t","message":"own words"},"request_id":"req_1"}'
    headers = {"content-type": "application/json", "retry-after": "3"}
    with pytest.raises(ProviderError, match="own words") as caught:
        _generate(Reply((body,), status=status, headers=headers))
    assert (caught.value.status_code, caught.value.is_retryable, caught.value.retry_after) == (status, retryable, 3)


def test_a_stream_cut_in_the_middle_is_worth_another_try() -> None:
    for ending in ("cut", "whole"):
        with pytest.raises(ProviderError) as caught:
            _generate(Reply(HALF, ending=ending))
        assert (caught.value.name, caught.value.is_retryable) == ("CutStream", True)


def test_cancelling_in_the_middle_closes_the_connection() -> None:
    async def scenario() -> None:
        async with FakeEndpoint(Reply(HALF, ending="hang")) as endpoint:
            provider = AnthropicProviderFactory().create(
                ProviderConfig({"baseUrl": endpoint.url}, {"ANTHROPIC_API_KEY": KEY})
            )
            begun = asyncio.Event()
            task = asyncio.create_task(provider.generate(_request(), lambda delta: begun.set()))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await endpoint.left.wait()
            await provider.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_missing_key_names_the_variable_before_anything_is_sent() -> None:
    with pytest.raises(MissingCredential, match="ANTHROPIC_API_KEY"):
        AnthropicProviderFactory().create(ProviderConfig({}, {}))


def test_a_server_on_this_machine_needs_no_key() -> None:
    assert "x-api-key" not in _generate(WHOLE, env={})[2].asked[0].headers


def test_a_wrong_setting_is_told_with_its_key() -> None:
    with pytest.raises(DefinitionError, match=r"provider\.setting\.baseURL"):
        AnthropicProviderFactory().create(ProviderConfig({"baseURL": "x"}, {"ANTHROPIC_API_KEY": KEY}))


def test_the_plugin_registers_a_provider_that_a_key_configures() -> None:
    (factory,) = perstack_providers()
    assert (factory.name, factory.priority, factory.default_model) == ("anthropic", 10, "claude-sonnet-5")
    assert factory.is_configured({"ANTHROPIC_API_KEY": KEY})
    assert not factory.is_configured({"ANTHROPIC_API_KEY": " "})
    assert "ANTHROPIC_API_KEY" in factory.how_to_configure
