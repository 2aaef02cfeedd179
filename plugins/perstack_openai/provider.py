"""The provider behind the port: codecs and connection put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from perstack.ports.provider import Delta, Generation, GenerationRequest
from perstack_http.parts import load_blobs
from perstack_openai.chat import encode_chat
from perstack_openai.chat_reply import ChatDecoder
from perstack_openai.responses import encode_responses
from perstack_openai.responses_reply import ResponsesDecoder
from perstack_openai.settings import Connection

if TYPE_CHECKING:
    from perstack_http.client import StreamClient


class OpenAIProvider:
    """One endpoint that speaks one of OpenAI's formats."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._client: StreamClient | None = None

    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        """One try of one generation. Raises ProviderError."""
        blobs = await load_blobs(request.messages, request.blobs)
        dialect = self._connection.dialect
        decoder: ChatDecoder | ResponsesDecoder
        if self._connection.api == "responses":
            body, decoder = encode_responses(request, dialect, blobs), ResponsesDecoder(on_delta, dialect.vendor)
        else:
            body, decoder = encode_chat(request, dialect, blobs), ChatDecoder(on_delta)
        await self._opened().post(self._connection.path(request.model), body, decoder.feed)
        return decoder.finish()

    async def close(self) -> None:
        """Close its connections."""
        if self._client is not None:
            await self._client.close()

    def _opened(self) -> StreamClient:
        if self._client is None:
            # httpx costs 100 ms to import: only who generates pays
            from perstack_http.client import StreamClient

            self._client = StreamClient(self._connection.endpoint)
        return self._client
