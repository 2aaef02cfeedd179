"""The provider behind the port: codec and connection put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from perstack.ports.provider import Delta, Generation, GenerationRequest, ProviderConfig
from perstack_http.endpoint import Endpoint, read_settings
from perstack_http.parts import load_blobs
from perstack_openai.chat import encode_chat
from perstack_openai.chat_reply import ChatDecoder
from perstack_openai.dialect import Dialect
from perstack_openai.settings import OpenAISettings, endpoint_of, is_openai

if TYPE_CHECKING:
    from perstack_http.client import StreamClient


class ChatProvider:
    """Chat Completions at one endpoint."""

    def __init__(self, endpoint: Endpoint, dialect: Dialect) -> None:
        self._endpoint = endpoint
        self._dialect = dialect
        self._client: StreamClient | None = None

    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        """One try of one generation. Raises ProviderError."""
        body = encode_chat(request, self._dialect, await load_blobs(request.messages, request.blobs))
        decoder = ChatDecoder(on_delta)
        await self._opened().post("/chat/completions", body, decoder.feed)
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


def create(config: ProviderConfig) -> ChatProvider:
    """A provider from its settings and the environment."""
    settings = read_settings(OpenAISettings, config.setting)
    endpoint = endpoint_of(settings, config.env)
    official = is_openai(endpoint.base_url)
    dialect = Dialect(
        is_openai=official,
        takes_images=settings.images,
        takes_documents=official if settings.documents is None else settings.documents,
        max_tokens=settings.max_tokens,
        temperature=settings.temperature,
        top_p=settings.top_p,
    )
    return ChatProvider(endpoint, dialect)
