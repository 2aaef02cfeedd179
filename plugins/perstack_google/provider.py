"""Provider port implemented with the Gemini API.

`request` encodes requests, with what models differ in, and `reply` decodes the stream, both without I/O. This module
builds the endpoint from `[provider.setting]` and the environment, and connects them through the shared HTTP client.

Models sign their thoughts and calls; signatures are kept in opaque data under the vendor's key and sent back. Each
request extends the bytes of the Run's earlier requests, so that each message is encoded once.

Change together: `generate`, `contents_of` and the decoder with `perstack_vertex`, which uses them at other endpoints; a
signature's position in `reply` and `request` (see `GeminiDecoder`).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import quote

from typing_extensions import override

from perstack.errors import ProviderError
from perstack.http_providers.endpoint import (
    Endpoint,
    choose_base_url,
    is_loopback,
    missing_key,
    read_key,
    read_settings,
)
from perstack.http_providers.messages import missing_blobs, signed_by
from perstack.http_providers.provider import HttpProvider
from perstack.http_providers.replies import OnData
from perstack.ports.provider import Delta, Generation, GenerationRequest, ProviderConfig
from perstack_google import KEYS
from perstack_google.reply import GeminiDecoder
from perstack_google.request import GoogleSettings, contents_of, encode, is_sendable, signs_calls, tools_of

BASE_URLS = ("GOOGLE_GEMINI_BASE_URL", "GOOGLE_GENERATIVE_AI_BASE_URL")
DEFAULT_BASE_URL = "https://generativelanguage.googleapis.com"
API_VERSION = "v1beta"
_ENDS_WITH_VERSION = re.compile(r"/v\d+((alpha|beta)\d*)?$")

Post = Callable[[bytes, OnData], Awaitable[None]]
"""Function that sends a body and passes on the data of each event, like `HttpProvider.post`."""


class GoogleProvider(HttpProvider):
    """Provider of the Gemini API at one endpoint."""

    def __init__(self, endpoint: Endpoint, settings: GoogleSettings) -> None:
        super().__init__(endpoint, settings.reply_settings())
        self._settings = settings
        self.endpoint_id = endpoint.id

    @override
    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:

        async def post(body: bytes, on_data: OnData) -> None:
            await self.post(path_of(request.model), body, on_data)

        return await generate(request, self._settings, post, on_delta)

    @override
    def classified(self, error: ProviderError) -> ProviderError:
        # Google replies with status 400 to an invalid key
        if error.status_code != 400 or "api key" not in str(error).lower():
            return error
        return ProviderError(str(error), name="Authentication", status_code=400)

    @override
    def takes(self, model: str, mime_type: str) -> bool:
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
    decoder = GeminiDecoder(on_delta, bills_queries=signs_calls(request.model))
    blobs = await missing_blobs(request, contents_of(request, with_ids=with_ids))
    await post(encode(request, settings, blobs, with_ids=with_ids), decoder.feed)
    return tools_of(request).restored(signed_by(decoder.finish(), request.model))


def endpoint_of(settings: GoogleSettings, env: Mapping[str, str]) -> Endpoint:
    """Return address and credentials. Raises MissingCredential, except for a server on this machine.

    Source: Gemini API reference, section "Authentication"; Google's and Vercel's SDKs and the
    original Perstack read these variables.
    """
    variable = next((name for name in BASE_URLS if env.get(name)), BASE_URLS[0])
    base_url = choose_base_url(settings, env, variable, DEFAULT_BASE_URL)
    key = next((key for name in KEYS if (key := read_key(env, name))), None)
    headers = ({"x-goog-api-key": key} if key else {}) | settings.headers
    if not {"x-goog-api-key", "authorization"} & {name.lower() for name in headers} and not is_loopback(base_url):
        raise missing_key("google", "GEMINI_API_KEY")
    return Endpoint(with_version(base_url, API_VERSION), headers, *settings.silences())


def with_version(base_url: str, version: str) -> str:
    """Append the API version to an address, unless it ends with one."""
    return base_url if _ENDS_WITH_VERSION.search(base_url) else f"{base_url}/{version}"


def path_of(model: str) -> str:
    """Return the generation method's path. A model may include its collection: `models/x`, `tunedModels/x`."""
    name = model if "/" in model else f"models/{model}"
    return f"/{quote(name, safe='/')}:streamGenerateContent?alt=sse"


def create(config: ProviderConfig) -> GoogleProvider:
    settings = read_settings(GoogleSettings, config.setting)
    return GoogleProvider(endpoint_of(settings, config.env), settings)
