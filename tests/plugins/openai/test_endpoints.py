"""Every endpoint of the plugin, in each of its formats, against a real server on this machine: one suite for all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from responses_stream import call, events_of, message, reasoning

from perstack.core.messages import (
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
from perstack.core.tools import ToolSpec
from perstack.errors import DefinitionError, MissingCredential, ProviderError, UsageError
from perstack.ports.provider import Delta, Generation, GenerationRequest, Provider, ProviderConfig
from perstack.testing.endpoint import Asked, FakeEndpoint, Reply, events
from perstack_openai.plugin import FACTORIES
from perstack_openai.settings import Connection

KEY = "sk-0123456789"
TOOLS = (ToolSpec(name="read", input_schema={"type": "object", "properties": {"path": {}}}),)
IMAGE = BlobPart(sha256="i", mime_type="image/png", size=3)


@dataclass(frozen=True)
class Case:
    """One endpoint in one format."""

    provider: str
    api: str
    path: str
    setting: dict[str, Any]
    base: str = ""
    """What follows the server's address in `baseUrl`."""

    def __str__(self) -> str:
        return f"{self.provider}-{self.api}{'-dated' if 'apiVersion' in self.setting else ''}"


CASES = (
    Case("openai", "responses", "/v1/responses", {"api": "responses"}, "/v1"),
    Case("openai", "chat", "/v1/chat/completions", {}, "/v1"),
    Case("deepseek", "chat", "/chat/completions", {}),
    Case("ollama", "chat", "/v1/chat/completions", {}),
    Case("azure-openai", "responses", "/openai/v1/responses", {}),
    Case("azure-openai", "chat", "/openai/v1/chat/completions", {"api": "chat"}, "/openai/v1"),
    Case(
        "azure-openai",
        "chat",
        "/openai/deployments/my%20gpt-5/chat/completions?api-version=2024-10-21",
        {"apiVersion": "2024-10-21", "useDeploymentBasedUrls": True},
        "/openai",
    ),
)
ENV = dict.fromkeys(("OPENAI_API_KEY", "DEEPSEEK_API_KEY", "AZURE_API_KEY", "OLLAMA_API_KEY"), KEY)

every_endpoint = pytest.mark.parametrize("case", CASES, ids=str)


def _factory(name: str) -> Any:
    return next(factory for factory in FACTORIES if factory.name == name)


def _connection(name: str, setting: dict[str, Any] | None = None, env: dict[str, str] | None = None) -> Connection:
    provider = _factory(name).create(ProviderConfig(setting or {}, ENV if env is None else env))
    found: Connection = provider._connection
    return found


async def _blob(sha256: str) -> bytes:
    return b"png"


def _request(*messages: Message, **rest: Any) -> GenerationRequest:
    query = UserMessage(contents=(TextPart(text="hi"),))
    return GenerationRequest("my gpt-5", "You.", History(messages or (query,)), TOOLS, _blob, **rest)


def _reply(case: Case, text: str = "", thinking: str = "", calls: tuple[tuple[str, str], ...] = ()) -> Reply:
    """A reply as this endpoint streams it: calls are their ids and paths."""
    if case.api == "responses":
        items = [reasoning("rs_1", thinking)] if thinking else []
        items += [message("msg_1", text)] if text else []
        items += [call(f"f{id_}", id_, "read", json.dumps({"path": path})) for id_, path in calls]
        return Reply(events(*(json.dumps(event) for event in events_of(*items))))
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning" if case.provider == "ollama" else "reasoning_content": thinking}] if thinking else []
    deltas += [{"content": text}] if text else []
    for index, (id_, path) in enumerate(calls):
        function = {"name": "read", "arguments": json.dumps({"path": path})}
        deltas.append({"tool_calls": [{"index": index, "id": id_, "type": "function", "function": function}]})
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if calls else "stop"}]})
    chunks.append({"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}})
    return Reply(events(*map(json.dumps, chunks), "[DONE]"))


def _with(
    case: Case, *replies: Reply, act: Callable[[Provider, FakeEndpoint], Any], env: dict[str, str] | None = None
) -> FakeEndpoint:
    async def scenario() -> FakeEndpoint:
        async with FakeEndpoint(*replies) as endpoint:
            setting = {"baseUrl": endpoint.url + case.base, **case.setting}
            provider = _factory(case.provider).create(ProviderConfig(setting, ENV if env is None else env))
            try:
                await act(provider, endpoint)
            finally:
                await provider.close()
            return endpoint

    return asyncio.run(asyncio.wait_for(scenario(), 30))


def _generate(
    case: Case, reply: Reply, request: GenerationRequest | None = None, env: dict[str, str] | None = None
) -> tuple[Generation, list[Delta], Asked]:
    found: list[Generation] = []
    deltas: list[Delta] = []

    async def act(provider: Provider, endpoint: FakeEndpoint) -> None:
        found.append(await provider.generate(request or _request(), deltas.append))

    endpoint = _with(case, reply, act=act, env=env)
    return found[0], deltas, endpoint.asked[0]


# --- what every endpoint does -----------------------------------------------------------------------------------------


@every_endpoint
def test_text_is_streamed_to_where_the_endpoint_has_it(case: Case) -> None:
    generation, deltas, asked = _generate(case, _reply(case, "Hello"))
    assert (generation.reply.text, generation.finish_reason) == ("Hello", "stop")
    assert (generation.usage.input_tokens, generation.usage.output_tokens) == (100, 50)
    assert "".join(delta.text for delta in deltas) == "Hello"
    assert (asked.method, asked.path) == ("POST", case.path)
    assert json.loads(asked.body)["model"] == "my gpt-5"


@every_endpoint
def test_the_key_is_sent_as_the_endpoint_takes_it(case: Case) -> None:
    headers = _generate(case, _reply(case, "Hello"))[2].headers
    if case.provider == "azure-openai":
        assert (headers["api-key"], "authorization" in headers) == (KEY, False)
    else:
        assert headers["authorization"] == f"Bearer {KEY}"


@every_endpoint
def test_one_tool_is_called_and_its_result_goes_back(case: Case) -> None:
    reply = _generate(case, _reply(case, "I look.", calls=(("c1", "a.txt"),)))[0].reply
    assert reply.contents[-1] == ToolCallPart(tool_call_id="c1", tool_name="read", args={"path": "a.txt"})
    result = ToolResultPart(tool_call_id="c1", tool_name="read", contents=(TextPart(text="found"),))
    request = _request(*_request().messages, reply, ToolMessage(contents=(result,)))
    generation, _, asked = _generate(case, _reply(case, "Done"), request)
    last = json.loads(asked.body)["input" if case.api == "responses" else "messages"][-1]
    assert (last.get("output", last.get("content")), last.get("call_id", last.get("tool_call_id"))) == ("found", "c1")
    assert generation.reply.text == "Done"


@every_endpoint
def test_parallel_tools_are_told_apart(case: Case) -> None:
    generation = _generate(case, _reply(case, calls=(("c1", "a"), ("c2", "b"))))[0]
    assert [(one.tool_call_id, one.args["path"]) for one in generation.reply.tool_calls] == [("c1", "a"), ("c2", "b")]
    assert generation.finish_reason == "toolCalls"


@every_endpoint
def test_thinking_is_kept_apart_from_text(case: Case) -> None:
    generation, deltas, _ = _generate(case, _reply(case, "Yes.", thinking="Hm."))
    thought, text = generation.reply.contents
    assert isinstance(thought, ThinkingPart)
    assert (thought.thinking, text) == ("Hm.", TextPart(text="Yes."))
    assert deltas[0] == Delta("reasoning", "Hm.")


@every_endpoint
def test_an_image_is_read_from_the_blobs_and_sent(case: Case) -> None:
    request = _request(UserMessage(contents=(TextPart(text="look"), IMAGE)))
    assert b"data:image/png;base64,cG5n" in _generate(case, _reply(case, "A cat."), request)[2].body


@every_endpoint
def test_a_stream_cut_in_the_middle_is_worth_another_try(case: Case) -> None:
    half = _reply(case, "Hello").chunks[:2]
    for ending in ("cut", "whole"):
        with pytest.raises(ProviderError) as caught:
            _generate(case, Reply(half, ending=ending))
        assert (caught.value.name, caught.value.is_retryable) == ("CutStream", True)


@every_endpoint
@pytest.mark.parametrize(
    ("status", "words", "name", "retryable"),
    [
        (429, "slow down", "RateLimit", True),
        (401, f"wrong key {KEY}", "Authentication", False),
        (400, "this exceeds the context window", "ContextOverflow", False),
        (503, "busy", "ServerError", True),
    ],
)
def test_an_error_keeps_its_status_and_words_and_hides_the_key(
    case: Case, status: int, words: str, name: str, retryable: bool
) -> None:
    body = json.dumps({"error": {"message": words, "type": "t", "param": None, "code": None}}).encode()
    headers = {"content-type": "application/json", "retry-after": "7"}
    with pytest.raises(ProviderError, match=words.removesuffix(KEY)) as caught:
        _generate(case, Reply((body,), status=status, headers=headers))
    error = caught.value
    assert (error.status_code, error.name, error.is_retryable, error.retry_after) == (status, name, retryable, 7)
    assert KEY not in str(error)


@every_endpoint
def test_cancelling_in_the_middle_closes_the_connection(case: Case) -> None:
    async def act(provider: Provider, endpoint: FakeEndpoint) -> None:
        begun = asyncio.Event()
        task = asyncio.create_task(provider.generate(_request(), lambda delta: begun.set()))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await endpoint.left.wait()

    _with(case, Reply(_reply(case, "Hello").chunks[:-2], ending="hang"), act=act)


@every_endpoint
def test_settings_set_sampling_and_limits(case: Case) -> None:
    case = Case(
        case.provider,
        case.api,
        case.path,
        {**case.setting, "temperature": 0.5, "topP": 0.9, "maxTokens": 99},
        case.base,
    )
    body = json.loads(_generate(case, _reply(case, "Hello"))[2].body)
    most = "max_output_tokens" if case.api == "responses" else "max_completion_tokens"
    most = most if case.provider == "azure-openai" or case.api == "responses" else "max_tokens"
    assert (body["temperature"], body["top_p"], body[most]) == (0.5, 0.9, 99)


@every_endpoint
def test_a_server_on_this_machine_needs_no_key(case: Case) -> None:
    headers = _generate(case, _reply(case, "Hello"), env={})[2].headers
    assert not {"authorization", "api-key"} & set(headers)


# --- what one of them does --------------------------------------------------------------------------------------------


def test_openai_speaks_responses_and_compatible_servers_chat_completions_unless_told() -> None:
    compatible = {"baseUrl": "https://compatible.example/v1"}
    assert _connection("openai").api == "responses"
    assert _connection("openai", {"api": "chat"}).api == "chat"
    assert _connection("openai", compatible).api == "chat"
    assert _connection("openai", {**compatible, "api": "responses"}).api == "responses"
    assert _connection("openai", env={**ENV, "OPENAI_BASE_URL": "https://compatible.example"}).api == "chat"
    assert _connection("openai", {"baseUrl": "https://eu.api.openai.com/v1"}).api == "responses"


@pytest.mark.parametrize(
    ("provider", "env", "variable"),
    [
        ("openai", {}, "OPENAI_API_KEY"),
        ("deepseek", {}, "DEEPSEEK_API_KEY"),
        ("azure-openai", {"AZURE_RESOURCE_NAME": "mine"}, "AZURE_OPENAI_API_KEY"),
        ("azure-openai", {"AZURE_API_KEY": KEY}, "AZURE_RESOURCE_NAME"),
    ],
)
def test_what_is_missing_is_named_before_anything_is_sent(provider: str, env: dict[str, str], variable: str) -> None:
    with pytest.raises(MissingCredential, match=variable):
        _connection(provider, env=env)


@pytest.mark.parametrize(
    ("words", "asks_for_reasoning"),
    [
        ("The encrypted content gAAA= could not be verified: organization_id did not match.", True),
        ("Encrypted content is not supported with this model.", False),
    ],
)
def test_encrypted_reasoning_that_is_refused_is_left_out(words: str, asks_for_reasoning: bool) -> None:
    case = CASES[0]
    ours = {"openai": {"id": "rs_1", "summary": [], "encrypted_content": "gAAA="}}
    reply = ExpertMessage(contents=(ThinkingPart(thinking="", opaque=ours), TextPart(text="Done.")))
    request = _request(*_request().messages, reply, *_request().messages, reasoning_budget="low")
    refused = Reply((json.dumps({"error": {"message": words}}).encode(),), status=400)

    async def act(provider: Provider, endpoint: FakeEndpoint) -> None:
        again = await provider.generate(request, lambda delta: None)
        assert isinstance(again.reply.contents[0], ThinkingPart)
        assert "openai" in (again.reply.contents[0].opaque or {})

    endpoint = _with(case, refused, _reply(case, "Yes.", thinking="Hm."), act=act)
    first, second = (json.loads(asked.body) for asked in endpoint.asked)
    assert [item["type"] for item in first["input"]] == ["message", "reasoning", "message", "message"]
    assert [item["type"] for item in second["input"]] == ["message", "message", "message"]
    assert (("include" in second), ("reasoning" in second)) == (asks_for_reasoning, asks_for_reasoning)


def test_deepseek_gets_the_reasoning_of_every_reply_back_for_it_refuses_calls_without() -> None:
    case = CASES[2]
    thought = ExpertMessage(contents=(ThinkingPart(thinking="Hm."), ToolCallPart(tool_call_id="c1", tool_name="read")))
    result = ToolResultPart(tool_call_id="c1", tool_name="read", contents=(TextPart(text="found"),))
    elsewhere = ExpertMessage(contents=(TextPart(text="Done."),))
    request = _request(*_request().messages, thought, ToolMessage(contents=(result,)), elsewhere)
    messages = json.loads(_generate(case, _reply(case, "x"), request)[2].body)["messages"]
    assert [one["reasoning_content"] for one in messages if one["role"] == "assistant"] == ["Hm.", ""]


@pytest.mark.parametrize(
    ("budget", "sent"),
    [
        (None, {}),
        ("none", {"thinking": {"type": "disabled"}}),
        (0, {"thinking": {"type": "disabled"}}),
        ("minimal", {"thinking": {"type": "enabled"}, "reasoning_effort": "low"}),
        ("medium", {"thinking": {"type": "enabled"}, "reasoning_effort": "high"}),
    ],
)
def test_deepseek_has_a_switch_for_thinking_and_its_own_efforts(budget: Any, sent: dict[str, Any]) -> None:
    case = CASES[2]
    body = json.loads(_generate(case, _reply(case, "x"), _request(reasoning_budget=budget))[2].body)
    assert {key: body[key] for key in ("thinking", "reasoning_effort") if key in body} == sent


@pytest.mark.parametrize(
    ("env", "url"),
    [
        ({}, "http://localhost:11434"),
        ({"OLLAMA_HOST": "box"}, "http://box:11434"),
        ({"OLLAMA_HOST": "box:8080"}, "http://box:8080"),
        ({"OLLAMA_HOST": ":8080"}, "http://localhost:8080"),
        ({"OLLAMA_HOST": "0.0.0.0"}, "http://localhost:11434"),
        ({"OLLAMA_HOST": "[::]:99"}, "http://localhost:99"),
        ({"OLLAMA_HOST": "https://ollama.example"}, "https://ollama.example"),
        ({"OLLAMA_BASE_URL": "http://192.168.1.4:11434/v1", "OLLAMA_HOST": "box"}, "http://192.168.1.4:11434"),
        ({"OLLAMA_BASE_URL": "http://192.168.1.4:11434/api/"}, "http://192.168.1.4:11434"),
    ],
)
def test_the_address_of_ollama_is_understood_as_its_own_tools_have_it(env: dict[str, str], url: str) -> None:
    connection = _connection("ollama", env=env)
    assert connection.endpoint.base_url == url
    assert connection.endpoint.url(connection.path("m")) == f"{url}/v1/chat/completions"


@pytest.mark.parametrize("host", ["http://[::1", "box:port", "ftp://box"])
def test_an_address_of_ollama_that_is_none_is_told_by_its_variable(host: str) -> None:
    with pytest.raises(UsageError, match="OLLAMA_HOST"):
        _connection("ollama", env={"OLLAMA_HOST": host})


def test_the_key_of_a_gateway_does_in_place_of_the_vendors() -> None:
    for name in ("openai", "deepseek", "azure-openai"):
        setting = {"baseUrl": "https://gateway.example/openai", "headers": {"X-Api-Key": KEY}}
        assert _connection(name, setting, env={}).endpoint.secrets == (KEY,)


def test_the_address_of_ollama_in_the_settings_comes_first_and_may_be_plain() -> None:
    connection = _connection("ollama", {"baseUrl": "http://192.168.1.4:11434"}, {"OLLAMA_HOST": "box"})
    assert connection.endpoint.base_url == "http://192.168.1.4:11434"


def test_no_key_is_sent_to_ollama_over_a_network_in_plain() -> None:
    env = {"OLLAMA_API_KEY": KEY}
    assert _connection("ollama", {"baseUrl": "http://192.168.1.4:11434"}, env).endpoint.headers == {}
    assert _connection("ollama", {"baseUrl": "https://ollama.com"}, env).endpoint.headers
    with pytest.raises(DefinitionError, match="https://192"):
        _connection("ollama", {"baseUrl": "http://192.168.1.4", "headers": {"Authorization": "Bearer x"}}, {})


@pytest.mark.parametrize(
    ("setting", "env", "url"),
    [
        ({"resourceName": "mine"}, {}, "https://mine.openai.azure.com/openai/v1/responses"),
        ({}, {"AZURE_RESOURCE_NAME": "mine"}, "https://mine.openai.azure.com/openai/v1/responses"),
        ({}, {"AZURE_OPENAI_ENDPOINT": "https://a.example/"}, "https://a.example/openai/v1/responses"),
        ({}, {"AZURE_OPENAI_ENDPOINT": "https://a.example/openai/v1/"}, "https://a.example/openai/v1/responses"),
        ({"resourceName": "b"}, {"AZURE_OPENAI_ENDPOINT": "https://a"}, "https://b.openai.azure.com/openai/v1/responses"),
        ({"baseUrl": "https://a.example/gate", "resourceName": "b"}, {}, "https://a.example/gate/v1/responses"),
        ({"resourceName": "a", "apiVersion": "preview"}, {}, "https://a.openai.azure.com/openai/v1/responses?api-version=preview"),
        ({"resourceName": "a"}, {"OPENAI_API_VERSION": "2024-10-21"}, "https://a.openai.azure.com/openai/v1/responses"),
        (
            {"resourceName": "a", "useDeploymentBasedUrls": True},
            {"OPENAI_API_VERSION": "2024-10-21"},
            "https://a.openai.azure.com/openai/deployments/dep/chat/completions?api-version=2024-10-21",
        ),
        (
            {"resourceName": "a", "useDeploymentBasedUrls": True, "apiVersion": "preview", "api": "responses"},
            {},
            "https://a.openai.azure.com/openai/responses?api-version=preview",
        ),
    ],
)  # fmt: skip
def test_the_address_at_azure_is_made_of_its_settings(setting: dict[str, Any], env: dict[str, str], url: str) -> None:
    connection = _connection("azure-openai", setting, {"AZURE_API_KEY": KEY, **env})
    assert connection.endpoint.url(connection.path("dep")) == url


def test_azure_refuses_what_no_address_can_be_made_of() -> None:
    with pytest.raises(DefinitionError, match=r"provider\.setting\.apiVersion"):
        _connection("azure-openai", {"resourceName": "a", "useDeploymentBasedUrls": True})
    with pytest.raises(DefinitionError, match=r"provider\.setting\.resourceName"):
        _connection("azure-openai", {"resourceName": "a.evil.example/"})
    with pytest.raises(UsageError, match="AZURE_RESOURCE_NAME"):
        _connection("azure-openai", env={"AZURE_API_KEY": KEY, "AZURE_RESOURCE_NAME": "https://a"})


def test_azure_takes_a_token_in_place_of_a_key() -> None:
    env = {"AZURE_OPENAI_AD_TOKEN": KEY, "AZURE_RESOURCE_NAME": "mine"}
    assert _connection("azure-openai", env=env).endpoint.headers == {"Authorization": f"Bearer {KEY}"}
    both = {**env, "AZURE_OPENAI_API_KEY": "first", "AZURE_API_KEY": "second"}
    assert _connection("azure-openai", env=both).endpoint.headers == {"api-key": "first"}


def test_a_setting_of_another_endpoint_is_told_with_its_key() -> None:
    with pytest.raises(DefinitionError, match=r"provider\.setting\.resourceName"):
        _connection("ollama", {"resourceName": "mine"})


@pytest.mark.parametrize(
    ("env", "names"),
    [
        ({}, []),
        ({"DEEPSEEK_API_KEY": "k"}, ["deepseek"]),
        ({"AZURE_API_KEY": "k"}, []),
        ({"AZURE_API_KEY": "k", "AZURE_RESOURCE_NAME": "r"}, ["azure-openai"]),
        ({"OLLAMA_HOST": "box"}, ["ollama"]),
        ({"OLLAMA_BASE_URL": " "}, []),
    ],
)
def test_an_endpoint_is_chosen_only_if_the_environment_says_all_it_needs(env: dict[str, str], names: list[str]) -> None:
    assert [factory.name for factory in FACTORIES if factory.is_configured(env)] == names


def test_the_endpoints_are_tried_in_the_order_of_their_priorities() -> None:
    assert [(factory.name, factory.priority) for factory in FACTORIES] == [
        ("openai", 20),
        ("deepseek", 40),
        ("azure-openai", 50),
        ("ollama", 90),
    ]
