"""Provider port implemented with Anthropic's Messages API.

`messages_api` is the codec: pure functions that encode a request, and a decoder fed with the data of each server-sent
event. `settings` builds the endpoint from `[provider.setting]` and the environment. This module connects them through
the shared HTTP client.

Each request extends the bytes of the Run's earlier requests, so that prompt caching applies and each message is encoded
once. Thinking is sent back only with Anthropic's signature, kept in the part's opaque data under the vendor's key.

Change together: the codec with `perstack_bedrock` and `perstack_vertex`, which import `encode`, `turns_of`, the
decoder, `limits_of`, `effort_of`, `temperature_of` and `takes_schemas`.
"""

from __future__ import annotations

from collections.abc import Callable

from perstack.ports.provider import Delta, Generation, GenerationRequest, ProviderConfig
from perstack.support.http.endpoint import Endpoint, read_settings
from perstack.support.http.messages import is_common_media, missing_blobs
from perstack.support.http.provider import HttpProvider
from perstack_anthropic.messages_api import ReplyDecoder, encode, turns_of
from perstack_anthropic.settings import AnthropicSettings, endpoint_of


class AnthropicProvider(HttpProvider):
    """Provider of the Messages API at one endpoint."""

    def __init__(self, endpoint: Endpoint, settings: AnthropicSettings) -> None:
        """Connect to nothing yet."""
        super().__init__(endpoint, settings.reply_settings())
        self._settings = settings
        self.endpoint_id = endpoint.id

    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        """Generate once, without retries. Raises ProviderError."""
        body = encode(request, self._settings, await missing_blobs(request, turns_of(request)))
        decoder = ReplyDecoder(on_delta)
        await self.post("/v1/messages", body, decoder.feed)
        return decoder.finish()

    def takes(self, model: str, mime_type: str) -> bool:
        """Return whether the format supports blobs of this type."""
        return is_common_media(mime_type)


def create(config: ProviderConfig) -> AnthropicProvider:
    """Create the provider from its settings and the environment."""
    settings = read_settings(AnthropicSettings, config.setting)
    return AnthropicProvider(endpoint_of(settings, config.env), settings)
