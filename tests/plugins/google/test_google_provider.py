"""What is provider `google`'s own: its keys and addresses, and what its errors say. The rest is in the suite of all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from provider_suite import climb, error_of, request_of
from wire import KEY
from wire_google import GOOGLE

from perstack.core.messages.messages import ExpertMessage, TextPart, ToolCallPart, UserMessage
from perstack.testing.fake_endpoint import PreparedReply
from perstack_google.plugin import perstack_providers
from perstack_google.provider import endpoint_of, path_of
from perstack_google.request import UNSIGNED, GoogleSettings


def test_a_wrong_key_is_told_as_such_though_its_status_is_400() -> None:
    error = error_of(GOOGLE, GOOGLE.error_reply(400, "API key not valid. Please pass a valid API key."))
    assert (error.name, error.status_code, error.is_retryable) == ("Authentication", 400, False)


def test_signatures_that_are_refused_are_left_out() -> None:
    call = ToolCallPart(tool_call_id="a", tool_name="read", opaque={"google": {"signature": "c2ln"}})
    message = UserMessage(contents=(TextPart(text="hi"),))
    request = request_of(GOOGLE, message, ExpertMessage(contents=(call,)), message)

    def rule(body: Any) -> str | None:
        return "Corrupted thought signature." if "c2ln" in json.dumps(body) else None

    bodies = climb(GOOGLE, rule, request)[2]
    sent = [body["contents"][1]["parts"][0]["thoughtSignature"] for body in bodies]
    assert sent == ["c2ln", UNSIGNED]


def test_the_delay_that_an_errors_body_asks_for_is_waited_for() -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34s"}]
    body = json.dumps({"error": {"code": 429, "message": "quota", "details": details}}, indent=2).encode()
    assert (
        error_of(GOOGLE, PreparedReply((body,), status=429, headers={"content-type": "application/json"})).retry_after
        == 34
    )


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
    for variable in ("GOOGLE_GEMINI_BASE_URL", "GOOGLE_GENERATIVE_AI_BASE_URL"):
        env = {"GEMINI_API_KEY": KEY, variable: "https://gate.example"}
        endpoint = endpoint_of(GoogleSettings(headers={"x-goog-api-key": "mine"}), env)
        assert (endpoint.base_url, endpoint.headers) == ("https://gate.example/v1beta", {"x-goog-api-key": "mine"})


def test_the_plugin_registers_a_provider_that_a_key_configures() -> None:
    (factory,) = perstack_providers()
    assert (factory.name, factory.priority, factory.default_model) == ("google", 30, "gemini-3.8-flash")
    assert factory.is_configured({"GOOGLE_API_KEY": KEY})
    assert not factory.is_configured({"GOOGLE_API_KEY": " "})
    assert "GEMINI_API_KEY" in factory.how_to_configure
