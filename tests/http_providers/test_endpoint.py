"""Addresses, keys and settings: what is refused before anything is sent."""

from __future__ import annotations

import subprocess
import sys

import pytest

from perstack.errors import DefinitionError, MissingCredential, UsageError
from perstack.http_providers.endpoint import (
    Endpoint,
    EndpointSettings,
    choose_base_url,
    headers_of_env,
    read_key,
    read_settings,
)


def _choose(setting: str | None = None, env: str | None = None) -> str:
    environment = {} if env is None else {"X_BASE_URL": env}
    return choose_base_url(EndpointSettings(base_url=setting), environment, "X_BASE_URL", "https://vendor.example")


def test_the_setting_comes_before_the_environment_and_that_before_the_vendor() -> None:
    assert _choose("https://a.example/v1/", "https://b.example") == "https://a.example/v1"
    assert _choose(None, "https://b.example/") == "https://b.example"
    assert _choose() == "https://vendor.example"
    assert _choose(None, "") == "https://vendor.example"


@pytest.mark.parametrize(
    "url", ["http://localhost:11434/v1", "http://127.0.0.1:1", "http://[::1]:8080", "http://127.9.9.9"]
)
def test_plain_http_is_allowed_to_this_machine(url: str) -> None:
    assert _choose(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "http://api.example",
        "http://localhost.evil.example",
        "http://127.0.0.1.evil.example",
        "http://192.168.1.4:11434",
        "ftp://api.example",
        "api.example",
        "https://",
        "https://user:pass@api.example",
        "https://api.example/v1?key=1",
        "https://api.example:99999",
        "https://[::1",
    ],
)
def test_an_address_that_cannot_be_used_is_refused_by_who_wrote_it(url: str) -> None:
    with pytest.raises(DefinitionError, match="baseUrl"):
        _choose(url)
    with pytest.raises(UsageError, match="X_BASE_URL"):
        _choose(None, url)


@pytest.mark.parametrize(
    ("base", "whole"),
    [
        ("https://a.example", "https://a.example/v1/messages"),
        ("https://a.example/v1", "https://a.example/v1/messages"),
        ("https://a.example/proxy/v1", "https://a.example/proxy/v1/messages"),
    ],
)
def test_a_base_url_may_hold_the_version_or_not(base: str, whole: str) -> None:
    assert Endpoint(base, {}).url("/v1/messages") == whole


def test_a_path_of_one_part_is_always_added() -> None:
    assert Endpoint("https://a.example/chat", {}).url("/chat") == "https://a.example/chat/chat"


def test_all_wrong_settings_are_told_at_once() -> None:
    with pytest.raises(DefinitionError) as caught:
        read_settings(EndpointSettings, {"baseURL": "x", "colour": 1, "temperature": "hot", "maxTokens": 0})
    assert {problem.key for problem in caught.value.problems} == {
        "provider.setting.baseURL",
        "provider.setting.colour",
        "provider.setting.temperature",
        "provider.setting.maxTokens",
    }
    assert "baseURL: there is no such setting; did you mean `baseUrl`?" in str(caught.value)
    assert "colour: there is no such setting; available: baseUrl, headers" in str(caught.value)


@pytest.mark.parametrize("headers", [{"X": "a\nb"}, {"X": "ü"}, {"": "a"}, {"X\r": "a"}])
def test_a_header_that_cannot_be_sent_is_told(headers: dict[str, str]) -> None:
    with pytest.raises(DefinitionError, match=r"provider\.setting\.headers"):
        read_settings(EndpointSettings, {"headers": dict(headers)})


def test_a_key_is_stripped_and_an_empty_one_is_none() -> None:
    assert read_key({"K": " sk-1\n"}, "K") == "sk-1"
    assert read_key({"K": "  "}, "K") is None


def test_a_key_that_no_header_can_hold_is_told_without_showing_it() -> None:
    with pytest.raises(MissingCredential, match="K holds characters") as caught:
        read_key({"K": "sk-\u201csecret\u201d"}, "K")
    assert "secret" not in str(caught.value)


def test_headers_of_the_environment_are_one_a_line() -> None:
    env = {"H": "X-Team: blue\nX-Url: http://a:1\nno colon\n: nameless"}
    assert headers_of_env(env, "H") == {"X-Team": "blue", "X-Url": "http://a:1"}


def test_credentials_are_secrets_and_the_version_is_not() -> None:
    endpoint = Endpoint("https://a.example", {"x-api-key": "sk-123456", "anthropic-version": "2023-06-01"})
    assert endpoint.secrets == ("sk-123456",)


def test_a_password_and_a_key_in_the_base_url_are_secrets_too() -> None:
    assert set(Endpoint("https://ada:in-the-url@a.example/v1?key=query-key", {}).secrets) == {"in-the-url", "query-key"}


@pytest.mark.parametrize("plugin", ["perstack_anthropic", "perstack_openai"])
def test_making_a_provider_imports_no_http_library(plugin: str) -> None:
    code = f"""
import sys
import {plugin}.plugin as plugin
from perstack.ports.provider import ProviderConfig
env = {{"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k"}}
plugin.perstack_providers()[0].create(ProviderConfig({{}}, env))
print(sorted(name for name in sys.modules if name in ("httpx", "httpx_sse", "anyio", "ssl")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
