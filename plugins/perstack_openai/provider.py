"""Provider port implemented with OpenAI's APIs: Chat Completions and Responses.

`endpoints` builds an `OpenAIConnection` (address, credentials, wire format) from settings and environment, one function
per provider name. `chat_completions` and `responses_api` are the codecs: pure functions that encode a request, and a
decoder fed with the data of each server-sent event. `dialect` has what servers and models differ in.

Each request extends the bytes of the Run's earlier requests, so that the vendor's prompt cache applies and each message
is encoded once. Responses stores nothing at the vendor: reasoning comes back as encrypted items, which are sent again;
if the server refuses them, the request is repeated without (`_without_encrypted`).

Change together: a new option in `Dialect` with its settings classes and `reply_settings`; a new provider with
`CONNECTIONS` and `plugin.FACTORIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from typing_extensions import override

from perstack.errors import ProviderError
from perstack.ports.provider import Delta, Generation, GenerationRequest, ProviderConfig
from perstack.support.http.messages import missing_blobs
from perstack.support.http.provider import HttpProvider
from perstack.support.http.tool_schemas import OPENAI
from perstack.support.http.wire_tools import wire_tools
from perstack_openai.dialect import Dialect
from perstack_openai.endpoints import (
    OpenAIConnection,
    azure_connection,
    deepseek_connection,
    ollama_connection,
    openai_connection,
)

if TYPE_CHECKING:
    from perstack_openai.chat_completions import ChatDecoder
    from perstack_openai.responses_api import ResponsesDecoder


class OpenAIProvider(HttpProvider):
    """Provider of one endpoint in one wire format, whose codec is imported on the first generation."""

    def __init__(self, connection: OpenAIConnection) -> None:
        """Connect to nothing yet."""
        super().__init__(connection.endpoint, connection.dialect.reply_settings())
        self._connection = connection
        self.endpoint_id = connection.endpoint.id
        self.runs_tools = connection.api == "responses"  # the older API has none

    @override
    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        if self._connection.api == "chat":
            return await self._chat(request, on_delta)
        return await self._responses(request, on_delta)

    @override
    def takes(self, model: str, mime_type: str) -> bool:
        return self._connection.dialect.takes(mime_type)

    async def _chat(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        from perstack_openai.chat_completions import ChatDecoder, encode_chat, items_of_chat

        dialect = self._connection.dialect
        blobs = await missing_blobs(request, items_of_chat(request, dialect))
        return await self._post_and_decode(request, encode_chat(request, dialect, blobs), ChatDecoder(on_delta))

    async def _responses(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        from perstack_openai.responses_api import ResponsesDecoder, encode_responses, items_of_responses

        decoder = ResponsesDecoder(on_delta, self._connection.dialect.vendor)

        async def send(dialect: Dialect) -> Generation:
            blobs = await missing_blobs(request, items_of_responses(request, dialect))
            return await self._post_and_decode(request, encode_responses(request, dialect, blobs), decoder)

        try:
            return await send(self._connection.dialect)
        except ProviderError as error:
            plainer = _without_encrypted(self._connection.dialect, error)
            if plainer is None:
                raise
        return await send(plainer)

    async def _post_and_decode(
        self, request: GenerationRequest, body: bytes, decoder: ChatDecoder | ResponsesDecoder
    ) -> Generation:
        await self.post(self._connection.path(request.model), body, decoder.feed)
        return wire_tools(request, OPENAI).restored(decoder.finish())


def _without_encrypted(dialect: Dialect, error: ProviderError) -> Dialect | None:
    """Return options for a retry after encrypted reasoning was refused; None for another error.

    Another organization's key cannot read it, and a deployment's name does not tell whether its model reasons at all.
    Neither may stop a Run permanently.
    """
    words = str(error).lower()
    if error.status_code != 400 or "encrypted content" not in words:
        return None
    return replace(dialect, vendor="", reasoning=False if "not supported" in words else dialect.reasoning)


# Connection functions by provider name.

CONNECTIONS: Mapping[str, Callable[[ProviderConfig], OpenAIConnection]] = {
    "openai": openai_connection,
    "deepseek": deepseek_connection,
    "azure-openai": azure_connection,
    "ollama": ollama_connection,
}


def create(name: str, config: ProviderConfig) -> OpenAIProvider:
    """Create the provider of that name from its settings and the environment."""
    return OpenAIProvider(CONNECTIONS[name](config))
