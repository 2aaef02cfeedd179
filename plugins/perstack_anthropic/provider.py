"""The provider behind the port: codec and connection put together."""

from __future__ import annotations

from collections.abc import Callable

from perstack.ports.provider import Delta, Generation, GenerationRequest, ProviderConfig
from perstack_anthropic.codec import ReplyDecoder, encode, turns_of
from perstack_anthropic.settings import AnthropicSettings, endpoint_of
from perstack_http.endpoint import Endpoint, read_settings
from perstack_http.lazy import LazyClient
from perstack_http.parts import takes_all
from perstack_http.transcript import missing_blobs


class AnthropicProvider:
    """The Messages API at one endpoint."""

    def __init__(self, endpoint: Endpoint, settings: AnthropicSettings) -> None:
        self._settings = settings
        self.reply_settings = settings.reply_settings()
        self.endpoint_id = endpoint.id
        self._client = LazyClient(endpoint)

    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        """One try of one generation. Raises ProviderError."""
        body = encode(request, self._settings, await missing_blobs(request, turns_of(request)))
        decoder = ReplyDecoder(on_delta)
        await self._client.post("/v1/messages", body, decoder.feed)
        return decoder.finish()

    def takes(self, model: str, mime_type: str) -> bool:
        """Whether the format holds it."""
        return takes_all(mime_type)

    async def close(self) -> None:
        """Close its connections."""
        await self._client.close()


def create(config: ProviderConfig) -> AnthropicProvider:
    """A provider from its settings and the environment."""
    settings = read_settings(AnthropicSettings, config.setting)
    return AnthropicProvider(endpoint_of(settings, config.env), settings)
