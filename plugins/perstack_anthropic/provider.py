"""The provider behind the port: codec and connection put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from perstack.ports.provider import Delta, Generation, GenerationRequest, ProviderConfig
from perstack_anthropic.codec import ReplyDecoder, encode
from perstack_anthropic.settings import AnthropicSettings, endpoint_of
from perstack_http.endpoint import Endpoint, read_settings
from perstack_http.parts import load_blobs

if TYPE_CHECKING:
    from perstack_http.client import StreamClient


class AnthropicProvider:
    """The Messages API at one endpoint."""

    def __init__(self, endpoint: Endpoint, settings: AnthropicSettings) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._client: StreamClient | None = None

    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        """One try of one generation. Raises ProviderError."""
        body = encode(request, self._settings, await load_blobs(request.messages, request.blobs))
        decoder = ReplyDecoder(on_delta)
        await self._opened().post("/v1/messages", body, decoder.feed)
        return decoder.finish()

    async def close(self) -> None:
        """Close its connections."""
        if self._client is not None:
            await self._client.close()

    def _opened(self) -> StreamClient:
        if self._client is None:
            # httpx costs 100 ms to import: only who generates pays
            from perstack_http.client import StreamClient

            self._client = StreamClient(self._endpoint)
        return self._client


def create(config: ProviderConfig) -> AnthropicProvider:
    """A provider from its settings and the environment."""
    settings = read_settings(AnthropicSettings, config.setting)
    return AnthropicProvider(endpoint_of(settings, config.env), settings)
