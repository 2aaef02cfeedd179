"""Provider port implemented with Anthropic's Messages API.

`messages_api` is the codec: pure functions that encode a request, and a decoder fed with the data of each server-sent
event. `settings` are read without importing it. This module builds the endpoint from `[provider.setting]` and the
environment, and connects them through the shared HTTP client.

Each request extends the bytes of the Run's earlier requests, so that prompt caching applies and each message is encoded
once. Thinking is sent back only with Anthropic's signature, kept in the part's opaque data under the vendor's key.

Change together: the codec with `perstack_bedrock` and `perstack_vertex`, which import `encode`, `turns_of`,
`complete_generation`, the decoder, `limits_of`, `effort_of`, `temperature_of` and `takes_schemas`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from typing_extensions import override

from perstack.http_providers.endpoint import (
    Endpoint,
    choose_base_url,
    headers_of_env,
    is_loopback,
    missing_key,
    read_key,
    read_settings,
)
from perstack.http_providers.provider import HttpProvider
from perstack.ports.provider import Delta, Generation, GenerationRequest, ProviderConfig
from perstack_anthropic.settings import REQUIRED, AnthropicSettings

DEFAULT_BASE_URL = "https://api.anthropic.com"
API_VERSION = "2023-06-01"
_KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_CUSTOM_HEADERS")


class AnthropicProvider(HttpProvider):
    """Provider of the Messages API at one endpoint. Its codec is imported at the first generation."""

    required_fields = REQUIRED

    def __init__(self, endpoint: Endpoint, settings: AnthropicSettings) -> None:
        super().__init__(endpoint, settings.reply_settings())
        self._settings = settings
        self.endpoint_id = endpoint.id

    @override
    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        from perstack.http_providers.messages import missing_blobs
        from perstack_anthropic.messages_api import MessagesDecoder, complete_generation, encode, turns_of

        body = encode(request, self._settings, await missing_blobs(request, turns_of(request)))
        decoder = MessagesDecoder(on_delta)
        await self.post("/v1/messages", body, decoder.feed)
        return complete_generation(decoder.finish(), request, self._settings)

    @override
    def takes(self, model: str, mime_type: str) -> bool:
        from perstack.http_providers.messages import is_common_media

        return is_common_media(mime_type)


def endpoint_of(settings: AnthropicSettings, env: Mapping[str, str]) -> Endpoint:
    """Return address and credentials. Raises MissingCredential, except for a server on this machine.

    Source: Anthropic API reference, "API overview", section "Authentication"; its SDKs read these variables.
    """
    base_url = choose_base_url(settings, env, "ANTHROPIC_BASE_URL", DEFAULT_BASE_URL)
    custom = {**headers_of_env(env, "ANTHROPIC_CUSTOM_HEADERS"), **settings.headers}
    headers = {"anthropic-version": API_VERSION, **_credential_headers(env), **custom}
    if not {"x-api-key", "authorization"} & {name.lower() for name in headers} and not is_loopback(base_url):
        raise missing_key("anthropic", "ANTHROPIC_API_KEY")
    # a model that does not show its thinking sends only pings, often for minutes
    return Endpoint(base_url, headers, *settings.silences(thinks_silently=True))


def _credential_headers(env: Mapping[str, str]) -> dict[str, str]:
    key = read_key(env, "ANTHROPIC_API_KEY")
    if key:
        return {"x-api-key": key}
    token = read_key(env, "ANTHROPIC_AUTH_TOKEN")
    return {"authorization": f"Bearer {token}"} if token else {}


def create(config: ProviderConfig) -> AnthropicProvider:
    settings = read_settings(AnthropicSettings, config.setting)
    return AnthropicProvider(endpoint_of(settings, config.env), settings)
