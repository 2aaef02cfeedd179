"""What is each endpoint's own: addresses, credentials, what one of them refuses. The rest is in the suite of all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from provider_suite import body_of, climb, request_of
from wire import KEY
from wire_openai import COMPATIBLE, DEEPSEEK, OPENAI

from perstack.core.messages.messages import (
    BlobPart,
    ExpertMessage,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from perstack.errors import DefinitionError, MissingCredential, UsageError
from perstack.ports.provider import Generation, ProviderConfig
from perstack_openai.endpoints import OpenAIConnection
from perstack_openai.plugin import FACTORIES
from perstack_openai.profiles import PROFILES, profile_at

ENV = dict.fromkeys(("OPENAI_API_KEY", "DEEPSEEK_API_KEY", "AZURE_API_KEY", "OLLAMA_API_KEY"), KEY)
QUERY = UserMessage(contents=(TextPart(text="hi"),))


def _connection(
    name: str, setting: dict[str, Any] | None = None, env: dict[str, str] | None = None
) -> OpenAIConnection:
    factory: Any = next(factory for factory in FACTORIES if factory.name == name)
    found: OpenAIConnection = factory.create(ProviderConfig(setting or {}, ENV if env is None else env))._connection
    return found


def test_organization_and_project_come_from_settings_or_environment() -> None:
    env = {"OPENAI_API_KEY": KEY, "OPENAI_ORG_ID": "org-env", "OPENAI_PROJECT_ID": "proj-env"}
    headers = _connection("openai", {"organization": "org-set"}, env).endpoint.headers
    assert (headers["OpenAI-Organization"], headers["OpenAI-Project"]) == ("org-set", "proj-env")
    assert _connection("openai", {"project": "proj-set"}, env).endpoint.headers["OpenAI-Project"] == "proj-set"
    original = {"OPENAI_API_KEY": KEY, "OPENAI_ORGANIZATION": "org-1", "OPENAI_PROJECT": "proj-1"}
    headers = _connection("openai", env=original).endpoint.headers
    assert (headers["OpenAI-Organization"], headers["OpenAI-Project"]) == ("org-1", "proj-1")


def test_a_compatible_server_may_be_said_to_take_documents_and_to_take_no_images() -> None:
    document = BlobPart(sha256="p", mime_type="application/pdf", size=3)
    image = BlobPart(sha256="i", mime_type="image/png", size=3)
    request = request_of(COMPATIBLE, UserMessage(contents=(document, image)))
    told, shown = body_of(COMPATIBLE, request)["messages"][1]["content"]
    assert ("application/pdf, 3 bytes" in told["text"], shown["type"]) == (True, "image_url")
    sent, told = body_of(COMPATIBLE, request, documents=True, images=False)["messages"][1]["content"]
    assert (sent["type"], "image/png, 3 bytes" in told["text"]) == ("file", True)


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
    assert profile_at(url).speaks_responses is official


def test_openai_speaks_responses_and_compatible_servers_chat_completions_unless_told() -> None:
    compatible = {"baseUrl": "https://compatible.example/v1"}
    assert _connection("openai").api == "responses"
    assert _connection("openai", {"api": "chat"}).api == "chat"
    assert _connection("openai", compatible).api == "chat"
    assert _connection("openai", {**compatible, "api": "responses"}).api == "responses"
    assert _connection("openai", env={**ENV, "OPENAI_BASE_URL": "https://compatible.example"}).api == "chat"
    assert _connection("openai", {"baseUrl": "https://eu.api.openai.com/v1"}).api == "responses"


def test_what_is_missing_is_named_before_anything_is_sent() -> None:
    with pytest.raises(MissingCredential, match="OPENAI_API_KEY"):
        _connection("openai", {"baseUrl": "https://compatible.example/v1"}, {})
    with pytest.raises(MissingCredential, match="AZURE_RESOURCE_NAME"):
        _connection("azure-openai", env={"AZURE_API_KEY": KEY})


@pytest.mark.parametrize(
    ("words", "asks_for_reasoning"),
    [
        ("The encrypted content gAAA= could not be verified: organization_id did not match.", True),
        ("Encrypted content is not supported with this model.", False),
    ],
)
def test_encrypted_reasoning_that_is_refused_is_left_out(words: str, asks_for_reasoning: bool) -> None:
    ours = {"openai": {"id": "rs_1", "summary": [], "encrypted_content": "gAAA="}}
    reply = ExpertMessage(contents=(ThinkingPart(thinking="", opaque=ours), TextPart(text="Done.")))
    request = request_of(OPENAI, QUERY, reply, QUERY, reasoning_budget="low")
    again, _, (first, second) = climb(OPENAI, lambda body: words if "gAAA=" in json.dumps(body) else None, request)
    assert isinstance(again, Generation)
    assert [item["type"] for item in first["input"]] == ["message", "reasoning", "message", "message"]
    assert [item["type"] for item in second["input"]] == ["message", "message", "message"]
    assert (("include" in second), ("reasoning" in second)) == (asks_for_reasoning, True)


def test_deepseek_gets_the_reasoning_of_every_reply_back_for_it_refuses_calls_without() -> None:
    thought = ExpertMessage(contents=(ThinkingPart(thinking="Hm."), ToolCallPart(tool_call_id="c1", tool_name="read")))
    result = ToolResultPart(tool_call_id="c1", tool_name="read", contents=(TextPart(text="found"),))
    elsewhere = ExpertMessage(contents=(TextPart(text="Done."),))
    request = request_of(DEEPSEEK, QUERY, thought, ToolMessage(contents=(result,)), elsewhere)
    messages = body_of(DEEPSEEK, request)["messages"]
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
    body = body_of(DEEPSEEK, request_of(DEEPSEEK, reasoning_budget=budget))
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
        ({}, {"AZURE_BASE_URL": "https://a.example", "AZURE_RESOURCE_NAME": "b"}, "https://a.example/openai/v1/responses"),
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
            {"resourceName": "a", "useDeploymentBasedUrls": True},
            {"AZURE_API_VERSION": "2024-10-21"},
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
        ({"OPENAI_API_KEY": "k"}, ["openai"]),
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
    assert FACTORIES[0].default_model == "gpt-5-mini"
    order = [factory.name for factory in sorted(FACTORIES, key=lambda factory: factory.priority)]
    assert order == [profile.name for profile in PROFILES]
    assert order[:4] == ["openai", "deepseek", "azure-openai", "openrouter"]
    assert len({factory.priority for factory in FACTORIES}) == len(FACTORIES)
