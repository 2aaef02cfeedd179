"""The provider behind the port: codecs and connection put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from perstack.errors import ProviderError
from perstack.ports.provider import Delta, Generation, GenerationRequest
from perstack_http.lazy import LazyClient
from perstack_http.transcript import missing_blobs
from perstack_openai.dialect import Dialect
from perstack_openai.settings import Connection

if TYPE_CHECKING:
    from perstack_openai.chat_reply import ChatDecoder
    from perstack_openai.responses_reply import ResponsesDecoder


class OpenAIProvider:
    """One endpoint that speaks one of OpenAI's formats, whose codec is imported when it generates."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.reply_settings = connection.dialect.reply_settings()
        self.endpoint_id = connection.endpoint.id
        self._client = LazyClient(connection.endpoint)

    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        """One try of one generation. Raises ProviderError."""
        if self._connection.api == "chat":
            return await self._chat(request, on_delta)
        return await self._responses(request, on_delta)

    def takes(self, model: str, mime_type: str) -> bool:
        """Whether the server is sent it as it is."""
        return self._connection.dialect.takes(mime_type)

    async def close(self) -> None:
        """Close its connections."""
        await self._client.close()

    async def _chat(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        from perstack_openai.chat import encode_chat, items_of_chat
        from perstack_openai.chat_reply import ChatDecoder

        dialect = self._connection.dialect
        blobs = await missing_blobs(request, items_of_chat(request, dialect))
        return await self._posted(request.model, encode_chat(request, dialect, blobs), ChatDecoder(on_delta))

    async def _responses(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        from perstack_openai.responses import encode_responses, items_of_responses
        from perstack_openai.responses_reply import ResponsesDecoder

        decoder = ResponsesDecoder(on_delta, self._connection.dialect.vendor)

        async def send(dialect: Dialect) -> Generation:
            blobs = await missing_blobs(request, items_of_responses(request, dialect))
            return await self._posted(request.model, encode_responses(request, dialect, blobs), decoder)

        try:
            return await send(self._connection.dialect)
        except ProviderError as error:
            plainer = _without_encrypted(self._connection.dialect, error)
            if plainer is None:
                raise
        return await send(plainer)

    async def _posted(self, model: str, body: bytes, decoder: ChatDecoder | ResponsesDecoder) -> Generation:
        await self._client.post(self._connection.path(model), body, decoder.feed)
        return decoder.finish()


def _without_encrypted(dialect: Dialect, error: ProviderError) -> Dialect | None:
    """How to ask again after encrypted reasoning was refused; None if the error is another.

    Another organization's key cannot read it, and a model that does not reason has none, which the name of a
    deployment does not tell: neither may stop a Run for good.
    """
    words = str(error).lower()
    if error.status_code != 400 or "encrypted content" not in words:
        return None
    return replace(dialect, vendor="", reasoning=False if "not supported" in words else dialect.reasoning)
