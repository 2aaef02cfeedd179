"""What is provider `anthropic`'s own: its variables. What it does with them is in the suite of all providers."""

from __future__ import annotations

from perstack_anthropic.plugin import perstack_providers
from perstack_anthropic.provider import endpoint_of
from perstack_anthropic.settings import AnthropicSettings

KEY = "sk-ant-0123456789"


def test_headers_of_the_environment_are_sent_under_those_of_the_settings() -> None:
    env = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_CUSTOM_HEADERS": "X-Team: blue\nX-Other: env"}
    headers = endpoint_of(AnthropicSettings(headers={"X-Other": "set"}), env).headers
    assert (headers["X-Team"], headers["X-Other"], headers["anthropic-version"]) == ("blue", "set", "2023-06-01")


def test_a_token_in_place_of_a_key_is_sent_as_a_bearer() -> None:
    assert endpoint_of(AnthropicSettings(), {"ANTHROPIC_AUTH_TOKEN": "t"}).headers["authorization"] == "Bearer t"


def test_the_base_url_of_the_environment_is_used() -> None:
    env = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": "https://gate.example/v1/"}
    assert endpoint_of(AnthropicSettings(), env).url("/v1/messages") == "https://gate.example/v1/messages"


def test_the_plugin_registers_a_provider_that_a_key_configures() -> None:
    (factory,) = perstack_providers()
    assert (factory.name, factory.priority, factory.default_model) == ("anthropic", 10, "claude-sonnet-5")
    assert factory.is_configured({"ANTHROPIC_API_KEY": KEY})
    assert not factory.is_configured({"ANTHROPIC_API_KEY": " "})
