"""The provider behind the port: codec and connection put together."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from perstack.errors import ProviderError
from perstack.ports.provider import Delta, Generation, GenerationRequest, ProviderConfig
from perstack_google.reply import ReplyDecoder
from perstack_google.request import contents_of, encode, is_sendable
from perstack_google.settings import GoogleSettings, endpoint_of, path_of
from perstack_http.endpoint import Endpoint, read_settings
from perstack_http.lazy import LazyClient
from perstack_http.transcript import missing_blobs

Post = Callable[[bytes, Callable[[str], bool]], Awaitable[None]]
"""Sends a body, and hands on the data of each event, as `LazyClient.post` does."""

_REFUSED_SIGNATURE = re.compile(r"(invalid|corrupted) thought signature|thought signature is not valid")


class GoogleProvider:
    """The Gemini API at one endpoint."""

    def __init__(self, endpoint: Endpoint, settings: GoogleSettings) -> None:
        self._settings = settings
        self.reply_settings = settings.reply_settings()
        self.endpoint_id = endpoint.id
        self._client = LazyClient(endpoint)

    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        """One try of one generation. Raises ProviderError."""

        async def post(body: bytes, on_data: Callable[[str], bool]) -> None:
            await self._client.post(path_of(request.model), body, on_data)

        return await generate(request, self._settings, post, on_delta)

    def takes(self, model: str, mime_type: str) -> bool:
        """Whether the format holds it."""
        return is_sendable(mime_type)

    async def close(self) -> None:
        """Close its connections."""
        await self._client.close()


async def generate(
    request: GenerationRequest,
    settings: GoogleSettings,
    post: Post,
    on_delta: Callable[[Delta], None],
    *,
    with_ids: bool = True,
) -> Generation:
    """One try of one generation at any endpoint of this format. Raises ProviderError."""

    async def send(*, with_signatures: bool = True) -> Generation:
        decoder = ReplyDecoder(on_delta)
        contents = contents_of(request, with_signatures=with_signatures, with_ids=with_ids)
        blobs = await missing_blobs(request, contents)
        body = encode(request, settings, blobs, with_signatures=with_signatures, with_ids=with_ids)
        await post(body, decoder.feed)
        return decoder.finish()

    try:
        return await send()
    except ProviderError as error:
        if not _refuses_signatures(error):
            raise _told_better(error) from error.__cause__
    # made with another key or for another model: it may not stop a Run for good
    return await send(with_signatures=False)


def _refuses_signatures(error: ProviderError) -> bool:
    words = str(error).lower().replace("_", " ")
    return error.status_code == 400 and _REFUSED_SIGNATURE.search(words) is not None


def _told_better(error: ProviderError) -> ProviderError:
    """Google answers a wrong key with status 400."""
    if error.status_code != 400 or "api key" not in str(error).lower():
        return error
    return ProviderError(str(error), name="Authentication", status_code=400)


def create(config: ProviderConfig) -> GoogleProvider:
    """A provider from its settings and the environment."""
    settings = read_settings(GoogleSettings, config.setting)
    return GoogleProvider(endpoint_of(settings, config.env), settings)
