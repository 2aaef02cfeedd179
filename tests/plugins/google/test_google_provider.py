"""Provider `google` against a real server on this machine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from perstack.core.messages import (
    BlobPart,
    ExpertMessage,
    History,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    UserMessage,
)
from perstack.errors import DefinitionError, MissingCredential, ProviderError
from perstack.ports.provider import Delta, Generation, GenerationRequest, ProviderConfig
from perstack.testing.endpoint import FakeEndpoint, Reply, events
from perstack_google.plugin import GoogleProviderFactory, perstack_providers
from perstack_google.request import UNSIGNED
from perstack_google.settings import GoogleSettings, endpoint_of, path_of

KEY = "AIza0123456789"


def _event(*parts: dict[str, Any], **rest: Any) -> str:
    return json.dumps({"candidates": [{"content": {"role": "model", "parts": list(parts)}, **rest}]})


USAGE = '{"usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 3}}'
WHOLE = Reply(events(_event({"text": "Hel"}), _event({"text": "lo"}, finishReason="STOP"), USAGE))
HALF = WHOLE.chunks[:1]


async def _blob(sha256: str) -> bytes:
    return b"png"


def _request(*contents: TextPart | BlobPart) -> GenerationRequest:
    message = UserMessage(contents=contents or (TextPart(text="hi"),))
    return GenerationRequest("gemini-3.8-flash", "You.", History((message,)), (), _blob)


def _generate(
    *replies: Reply,
    env: dict[str, str] | None = None,
    times: int = 1,
    request: GenerationRequest | None = None,
    **more: Any,
) -> tuple[Generation, list[Delta], FakeEndpoint]:
    async def scenario() -> tuple[Generation, list[Delta], FakeEndpoint]:
        async with FakeEndpoint(*replies) as endpoint:
            config = ProviderConfig({"baseUrl": endpoint.url, **more}, {"GEMINI_API_KEY": KEY} if env is None else env)
            provider = GoogleProviderFactory().create(config)
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
    assert (generation.reply.text, generation.finish_reason) == ("Hello", "stop")
    assert (generation.usage.input_tokens, generation.usage.output_tokens) == (7, 3)
    assert deltas == [Delta("text", "Hel"), Delta("text", "lo")]
    (asked,) = endpoint.asked
    assert (asked.method, asked.path) == ("POST", "/v1beta/models/gemini-3.8-flash:streamGenerateContent?alt=sse")
    assert asked.headers["x-goog-api-key"] == KEY


def test_steps_of_a_run_share_a_connection() -> None:
    assert _generate(WHOLE, times=4)[2].connections == 1


def test_one_tool_and_parallel_tools_are_called() -> None:
    calls = [{"functionCall": {"id": name, "name": "read", "args": {"path": name}}} for name in ("a", "b")]
    for wanted in (calls[:1], calls):
        generation = _generate(Reply(events(_event(*wanted, finishReason="STOP"))))[0]
        assert [call.tool_call_id for call in generation.reply.tool_calls] == ["a", "b"][: len(wanted)]
        assert generation.finish_reason == "toolCalls"


def test_thinking_is_kept_apart_from_text() -> None:
    reply = Reply(events(_event({"text": "Hm.", "thought": True}, {"text": "Yes."}, finishReason="STOP")))
    generation, deltas, _ = _generate(reply)
    assert generation.reply.contents == (ThinkingPart(thinking="Hm."), TextPart(text="Yes."))
    assert deltas[0] == Delta("reasoning", "Hm.")


def test_an_image_is_read_from_the_blobs_and_sent() -> None:
    image = BlobPart(sha256="i", mime_type="image/png", size=3)
    body = json.loads(_generate(WHOLE, request=_request(image))[2].asked[0].body)
    assert body["contents"][0]["parts"][0]["inlineData"]["data"] == "cG5n"


@pytest.mark.parametrize(
    ("status", "words", "name", "retryable"),
    [
        (400, "API key not valid. Please pass a valid API key.", "Authentication", False),
        (401, f"wrong key {KEY}", "Authentication", False),
        (429, "Resource has been exhausted", "RateLimit", True),
        (503, "The model is overloaded.", "ServerError", True),
        (
            400,
            "The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).",
            "ContextOverflow",
            False,
        ),
    ],
)
def test_an_error_keeps_its_status_and_words_and_hides_the_key(
    status: int, words: str, name: str, retryable: bool
) -> None:
    body = json.dumps({"error": {"code": status, "message": words, "status": "S"}}).encode()
    headers = {"content-type": "application/json", "retry-after": "7"}
    with pytest.raises(ProviderError) as caught:
        _generate(Reply((body,), status=status, headers=headers))
    error = caught.value
    assert words.removesuffix(KEY) in str(error)
    assert (error.status_code, error.name, error.is_retryable) == (status, name, retryable)
    assert error.retry_after == (7 if retryable or status == 401 else error.retry_after)
    assert KEY not in str(error)


def test_signatures_that_are_refused_are_left_out() -> None:
    call = ToolCallPart(tool_call_id="a", tool_name="read", opaque={"google": {"signature": "c2ln"}})
    message = UserMessage(contents=(TextPart(text="hi"),))
    history = History((message, ExpertMessage(contents=(call,)), message))
    request = GenerationRequest("gemini-3.8-flash", "You.", history, (), _blob)
    refused = Reply((b'{"error": {"code": 400, "message": "Corrupted thought signature."}}',), status=400)
    generation, _, endpoint = _generate(refused, WHOLE, request=request)
    assert generation.reply.text == "Hello"
    sent = [json.loads(asked.body)["contents"][1]["parts"][0]["thoughtSignature"] for asked in endpoint.asked]
    assert sent == ["c2ln", UNSIGNED]


def test_the_delay_that_an_errors_body_asks_for_is_waited_for() -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34s"}]
    body = json.dumps({"error": {"code": 429, "message": "quota", "details": details}}, indent=2).encode()
    with pytest.raises(ProviderError) as caught:
        _generate(Reply((body,), status=429, headers={"content-type": "application/json"}))
    assert caught.value.retry_after == 34


def test_a_stream_cut_in_the_middle_is_worth_another_try() -> None:
    for ending in ("cut", "whole"):
        with pytest.raises(ProviderError) as caught:
            _generate(Reply(HALF, ending=ending))
        assert (caught.value.name, caught.value.is_retryable) == ("CutStream", True)


def test_cancelling_in_the_middle_closes_the_connection() -> None:
    async def scenario() -> None:
        async with FakeEndpoint(Reply(HALF, ending="hang")) as endpoint:
            provider = GoogleProviderFactory().create(ProviderConfig({"baseUrl": endpoint.url}, {}))
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
    with pytest.raises(MissingCredential, match="GEMINI_API_KEY"):
        GoogleProviderFactory().create(ProviderConfig({}, {}))


def test_a_server_on_this_machine_needs_no_key() -> None:
    assert "x-goog-api-key" not in _generate(WHOLE, env={})[2].asked[0].headers


def test_the_first_key_that_is_set_counts() -> None:
    env = {"GEMINI_API_KEY": "third", "GOOGLE_API_KEY": "second", "GOOGLE_GENERATIVE_AI_API_KEY": "first"}
    for name, key in (("GOOGLE_GENERATIVE_AI_API_KEY", "first"), ("GOOGLE_API_KEY", "second")):
        assert endpoint_of(GoogleSettings(), env).headers == {"x-goog-api-key": key}
        del env[name]
    assert endpoint_of(GoogleSettings(), env).headers == {"x-goog-api-key": "third"}


@pytest.mark.parametrize(
    ("base_url", "model", "url"),
    [
        (None, "g", "https://generativelanguage.googleapis.com/v1beta/models/g"),
        ("https://gate.example/v1beta/", "g", "https://gate.example/v1beta/models/g"),
        ("https://gate.example/v1", "models/g", "https://gate.example/v1/models/g"),
        ("https://gate.example/gemini", "tunedModels/g h", "https://gate.example/gemini/v1beta/tunedModels/g%20h"),
    ],
)
def test_the_address_is_made_of_base_version_and_model(base_url: str | None, model: str, url: str) -> None:
    endpoint = endpoint_of(GoogleSettings(base_url=base_url), {"GEMINI_API_KEY": KEY})
    assert endpoint.url(path_of(model)) == f"{url}:streamGenerateContent?alt=sse"


def test_the_base_url_of_the_environment_is_used_and_headers_are_sent_over_our_own() -> None:
    env = {"GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": "https://gate.example"}
    endpoint = endpoint_of(GoogleSettings(headers={"x-goog-api-key": "mine"}), env)
    assert (endpoint.base_url, endpoint.headers) == ("https://gate.example/v1beta", {"x-goog-api-key": "mine"})


def test_a_wrong_setting_is_told_with_its_key() -> None:
    with pytest.raises(DefinitionError, match=r"provider\.setting\.baseURL"):
        GoogleProviderFactory().create(ProviderConfig({"baseURL": "x"}, {"GEMINI_API_KEY": KEY}))


def test_the_plugin_registers_a_provider_that_a_key_configures() -> None:
    (factory,) = perstack_providers()
    assert (factory.name, factory.priority, factory.default_model) == ("google", 30, "gemini-3.8-flash")
    assert factory.is_configured({"GOOGLE_API_KEY": KEY})
    assert not factory.is_configured({"GOOGLE_API_KEY": " "})
    assert "GEMINI_API_KEY" in factory.how_to_configure
