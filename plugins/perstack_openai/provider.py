"""Provider port implemented with OpenAI's APIs: Chat Completions and Responses.

`profiles` is the table of endpoints: what each needs, refuses and does differently. `endpoints` builds an
`OpenAIConnection` (address, credentials, wire format) from a row, settings and environment. `chat_completions` and
`responses_api` are the codecs: pure functions that encode a request, and a decoder fed with the data of each
server-sent event. `dialect` joins a row with the user's settings, and with what the endpoint has refused: `refusals`
finds that, and `Dialect.adapted` applies it.

Each request extends the bytes of the Run's earlier requests, so that the vendor's prompt cache applies and each message
is encoded once. Responses stores nothing at the vendor: reasoning comes back as encrypted items, which are sent again.

Change together: a new option in `Dialect` with its settings classes and `reply_settings`. A new provider is a row of
`profiles`; it is in `CONNECTIONS` only if it has a settings class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from typing_extensions import override

from perstack.core.base.records import JsonObject
from perstack.core.messages.adaptations import Adaptation
from perstack.errors import ProviderError
from perstack.http_providers.messages import missing_blobs
from perstack.http_providers.provider import HttpProvider
from perstack.http_providers.schema_rules import OPENAI
from perstack.http_providers.wire_tools import wire_tools
from perstack.ports.provider import Delta, Generation, GenerationRequest, ProviderConfig
from perstack_openai.endpoints import OpenAIConnection, azure_connection, openai_connection, profile_connection
from perstack_openai.profiles import profile_named

if TYPE_CHECKING:
    from perstack_openai.chat_completions import ChatDecoder
    from perstack_openai.responses_api import ResponsesDecoder


class OpenAIProvider(HttpProvider):
    """Provider of one endpoint in one wire format. Its codec is imported at the first generation."""

    def __init__(self, connection: OpenAIConnection) -> None:
        super().__init__(connection.endpoint, connection.dialect.reply_settings())
        self._connection = connection
        self.endpoint_id = connection.endpoint.id
        self.runs_tools = connection.api == "responses"  # Chat Completions, the older API, has none

    @override
    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        if self._connection.api == "chat":
            return await self._chat(request, on_delta)
        return await self._responses(request, on_delta)

    @override
    def refused_fields(self, error: ProviderError, body: JsonObject) -> Sequence[Adaptation]:
        from perstack_openai.refusals import refused_fields

        return refused_fields(error, body)

    @override
    def takes(self, model: str, mime_type: str) -> bool:
        return self._connection.dialect.takes(mime_type)

    async def _chat(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        from perstack_openai.chat_completions import ChatDecoder, encode_chat, items_of_chat

        dialect = self._connection.dialect.adapted(request.adaptations)
        blobs = await missing_blobs(request, items_of_chat(request, dialect))
        decoder = ChatDecoder(on_delta, dialect, request.model)
        return await self._post_and_decode(request, encode_chat(request, dialect, blobs), decoder)

    async def _responses(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        from perstack_openai.responses_api import ResponsesDecoder, encode_responses, items_of_responses

        dialect = self._connection.dialect.adapted(request.adaptations)
        blobs = await missing_blobs(request, items_of_responses(request, dialect))
        decoder = ResponsesDecoder(on_delta, dialect.vendor)
        return await self._post_and_decode(request, encode_responses(request, dialect, blobs), decoder)

    async def _post_and_decode(
        self, request: GenerationRequest, body: bytes, decoder: ChatDecoder | ResponsesDecoder
    ) -> Generation:
        await self.post(self._connection.path(request.model), body, decoder.feed)
        return wire_tools(request, OPENAI).restored(decoder.finish())


# Connection functions of the providers that have settings of their own.

CONNECTIONS: Mapping[str, Callable[[ProviderConfig], OpenAIConnection]] = {
    "openai": openai_connection,
    "azure-openai": azure_connection,
}


def create(name: str, config: ProviderConfig) -> OpenAIProvider:
    """Create the provider of that name from its settings and the environment."""
    connect = CONNECTIONS.get(name, partial(profile_connection, profile_named(name)))
    return OpenAIProvider(connect(config))
