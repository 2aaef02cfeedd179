"""The provider behind the port: the formats of two vendors at one address, with Google's tokens."""

from __future__ import annotations

from collections.abc import Callable

from perstack.core.base import JsonObject
from perstack.errors import ProviderError
from perstack.ports.environment import refuse_redirected, unconfirmed_in
from perstack.ports.provider import Delta, Generation, GenerationRequest, ProviderConfig
from perstack_anthropic.codec import ReplyDecoder, encode, turns_of
from perstack_google.provider import generate as generate_by_gemini
from perstack_google.request import is_sendable
from perstack_http.endpoint import Endpoint, is_loopback, read_settings
from perstack_http.lazy import LazyClient
from perstack_http.parts import takes_all
from perstack_http.transcript import missing_blobs
from perstack_vertex.identity import FILE, Identity, identity_of
from perstack_vertex.settings import ADDRESS, ProjectLocation, VertexSettings, endpoint_of, place_of

ANTHROPIC_VERSION = "vertex-2023-10-16"
"""Source: Anthropic documentation, «Claude on Vertex AI»."""


class VertexProvider:
    """Models of Google and of Anthropic, at one place of Vertex AI."""

    def __init__(
        self, endpoint: Endpoint, settings: VertexSettings, place: ProjectLocation, identity: Identity | None
    ) -> None:
        self._settings = settings
        self.reply_settings = settings.reply_settings()
        self._place = place
        self._identity = identity
        self._client = LazyClient(endpoint)

    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        """One try of one generation. Raises ProviderError."""
        if request.model.startswith("claude"):
            return await self._by_claude(request, on_delta)
        path = self._place.path_of("google", request.model, "streamGenerateContent?alt=sse")

        async def post(body: bytes, on_data: Callable[[str], bool]) -> None:
            await self._post(path, body, on_data)

        # Vertex AI knows no ids of calls, and refuses what it does not know
        return await generate_by_gemini(request, self._settings.for_gemini(), post, on_delta, with_ids=False)

    def takes(self, model: str, mime_type: str) -> bool:
        """Whether the format of the model's vendor holds it."""
        return takes_all(mime_type) if model.startswith("claude") else is_sendable(mime_type)

    async def close(self) -> None:
        """Close its connections."""
        await self._client.close()

    async def _by_claude(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        blobs = await missing_blobs(request, turns_of(request))
        opening: JsonObject = {"anthropic_version": ANTHROPIC_VERSION, "stream": True}
        body = encode(request, self._settings.for_claude(), blobs, opening=opening)
        decoder = ReplyDecoder(on_delta)
        path = self._place.path_of("anthropic", request.model, "streamRawPredict")
        await self._post(path, body, decoder.feed)
        return decoder.finish()

    async def _post(self, path: str, body: bytes, on_data: Callable[[str], bool]) -> None:
        """Send with a token; one that was made earlier and is refused is replaced once."""
        if self._identity is None:
            return await self._client.post(path, body, on_data)
        token = await self._identity.token()
        has_begun = False

        def take(data: str) -> bool:
            nonlocal has_begun
            has_begun = True
            return on_data(data)

        try:
            return await self._client.post(path, body, take, token.headers)
        except ProviderError as error:
            if error.status_code != 401 or token.is_new or has_begun:
                raise
        token = await self._identity.token(instead_of=token)
        return await self._client.post(path, body, on_data, token.headers)


def create(config: ProviderConfig) -> VertexProvider:
    """A provider from its settings and the environment."""
    settings = read_settings(VertexSettings, config.setting)
    place = place_of(settings, config.env)
    endpoint = endpoint_of(settings, config.env, place)
    if "authorization" in {name.lower() for name in settings.headers}:
        return VertexProvider(endpoint, settings, place, None)
    identity = identity_of(config.env, is_needed=not is_loopback(endpoint.base_url))
    if identity is not None and settings.base_url is None:
        is_theirs = FILE in unconfirmed_in(config.env)
        refuse_redirected(config.env, ADDRESS, (FILE,), others=None if is_theirs else "a token of your Google account")
    return VertexProvider(endpoint, settings, place, identity)
