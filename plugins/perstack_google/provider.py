"""Provider port implemented with the Gemini API.

`request` encodes requests and `reply` decodes the stream, both without I/O. `settings` builds the endpoint from
`[provider.setting]` and the environment, and maps reasoning budgets to models. This module connects them through the
shared HTTP client.

Models sign their thoughts and calls; signatures are kept in opaque data under the vendor's key and sent back. Google
rejects a signature made with another key or for another model, so `generate` then repeats the request without
signatures. Each request extends the bytes of the Run's earlier requests, so that each message is encoded once.

Change together: `generate`, `contents_of` and the decoder with `perstack_vertex`, which uses them at other endpoints; a
signature's position in `reply` and `request` (see `ReplyDecoder`).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from perstack.errors import ProviderError
from perstack.ports.provider import Delta, Generation, GenerationRequest, ProviderConfig
from perstack.support.http.endpoint import Endpoint, read_settings
from perstack.support.http.messages import missing_blobs
from perstack.support.http.provider import HttpProvider
from perstack_google.reply import ReplyDecoder
from perstack_google.request import contents_of, encode, is_sendable
from perstack_google.settings import GoogleSettings, endpoint_of, path_of

Post = Callable[[bytes, Callable[[str], bool]], Awaitable[None]]
"""Function that sends a body and passes on the data of each event, like `HttpProvider.post`."""

_REFUSED_SIGNATURE = re.compile(r"(invalid|corrupted) thought signature|thought signature is not valid")


class GoogleProvider(HttpProvider):
    """Provider of the Gemini API at one endpoint."""

    def __init__(self, endpoint: Endpoint, settings: GoogleSettings) -> None:
        """Connect to nothing yet."""
        super().__init__(endpoint, settings.reply_settings())
        self._settings = settings
        self.endpoint_id = endpoint.id

    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        """Generate once, without retries. Raises ProviderError."""

        async def post(body: bytes, on_data: Callable[[str], bool]) -> None:
            await self.post(path_of(request.model), body, on_data)

        return await generate(request, self._settings, post, on_delta)

    def takes(self, model: str, mime_type: str) -> bool:
        """Return whether the format supports blobs of this type."""
        return is_sendable(mime_type)


async def generate(
    request: GenerationRequest,
    settings: GoogleSettings,
    post: Post,
    on_delta: Callable[[Delta], None],
    *,
    with_ids: bool = True,
) -> Generation:
    """Generate once at any endpoint of this format. Raises ProviderError."""

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
            raise _reclassified(error) from error.__cause__
    # made with another key or for another model; that must not stop a Run permanently
    return await send(with_signatures=False)


def _refuses_signatures(error: ProviderError) -> bool:
    words = str(error).lower().replace("_", " ")
    return error.status_code == 400 and _REFUSED_SIGNATURE.search(words) is not None


def _reclassified(error: ProviderError) -> ProviderError:
    """Reclassify status 400 about an API key, which Google sends for a wrong key, as an authentication error."""
    if error.status_code != 400 or "api key" not in str(error).lower():
        return error
    return ProviderError(str(error), name="Authentication", status_code=400)


def create(config: ProviderConfig) -> GoogleProvider:
    """Create the provider from its settings and the environment."""
    settings = read_settings(GoogleSettings, config.setting)
    return GoogleProvider(endpoint_of(settings, config.env), settings)
