"""Settings of provider `anthropic`: `[provider.setting]` and the environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from perstack.support.http.endpoint import (
    Endpoint,
    EndpointSettings,
    choose_base_url,
    headers_of_env,
    is_loopback,
    missing_key,
    read_key,
)

DEFAULT_BASE_URL = "https://api.anthropic.com"
API_VERSION = "2023-06-01"
_KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_CUSTOM_HEADERS")


class AnthropicSettings(EndpointSettings):
    """Settings of provider `anthropic`, in addition to `EndpointSettings`."""

    CHANGE_REPLIES: ClassVar[frozenset[str]] = EndpointSettings.CHANGE_REPLIES | {"thinking"}

    thinking: Literal["budget", "adaptive"] | None = None
    """Form of the model's reasoning budget: a number of tokens, or an effort. None: by its name."""


def endpoint_of(settings: AnthropicSettings, env: Mapping[str, str]) -> Endpoint:
    """Return address and credentials. Raises MissingCredential, except for a server on this machine.

    Source: Anthropic API reference, «API overview», section «Authentication»; its SDKs read these variables.
    """
    base_url = choose_base_url(settings, env, "ANTHROPIC_BASE_URL", DEFAULT_BASE_URL, keys=_KEYS)
    custom = {**headers_of_env(env, "ANTHROPIC_CUSTOM_HEADERS"), **settings.headers}
    headers = {"anthropic-version": API_VERSION, **_credentials(env), **custom}
    if not {"x-api-key", "authorization"} & {name.lower() for name in headers} and not is_loopback(base_url):
        raise missing_key("anthropic", "ANTHROPIC_API_KEY")
    return Endpoint(base_url, headers, *settings.silences())


def _credentials(env: Mapping[str, str]) -> dict[str, str]:
    key = read_key(env, "ANTHROPIC_API_KEY")
    if key:
        return {"x-api-key": key}
    token = read_key(env, "ANTHROPIC_AUTH_TOKEN")
    return {"authorization": f"Bearer {token}"} if token else {}
