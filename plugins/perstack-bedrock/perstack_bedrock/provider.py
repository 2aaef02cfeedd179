"""Provider port implemented with Amazon Bedrock, through Converse or Anthropic's own format.

`request` encodes ConverseStream; with `api = "anthropic"` the codec of `perstack_anthropic` is used with
InvokeModelWithResponseStream. `reply` decodes both streams, which arrive in AWS's binary framing (`aws_events`).
`credentials` signs requests unless a bearer token is set; `settings` builds the endpoint and knows the differences
between model families.

Each request extends the bytes of the Run's earlier requests, except for the cache mark at the end, so that prompt
caching applies.

Change together: `request` and `reply` with the thinking parts' opaque data under `VENDOR`; model families in `settings`
with Anthropic's `limits_of` and `effort_of`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import quote

from typing_extensions import override

from perstack.core.base.records import JsonObject
from perstack.core.messages.media import PDF
from perstack.errors import ProviderError
from perstack.http_providers.endpoint import read_settings
from perstack.http_providers.messages import is_common_media, missing_blobs, signed_by
from perstack.http_providers.provider import HttpProvider
from perstack.http_providers.replies import OnData
from perstack.ports.provider import Delta, Generation, GenerationRequest, ProviderConfig
from perstack_anthropic import messages_api as anthropic
from perstack_anthropic.settings import REQUIRED
from perstack_bedrock.reply import MEDIA_TYPE, ChunkDecoder, ConverseDecoder, aws_events
from perstack_bedrock.request import encode, tools_of, turns_of
from perstack_bedrock.settings import Access, BedrockSettings, access_of

ANTHROPIC_VERSION = "bedrock-2023-05-31"

_WRONG_CREDENTIALS = re.compile(
    r"security token included in the request|request signature we calculated|signature expired|bearer token|api key",
    re.IGNORECASE,
)


class BedrockProvider(HttpProvider):
    """Provider of Amazon Bedrock in one region."""

    required_fields = REQUIRED

    def __init__(self, access: Access, settings: BedrockSettings) -> None:
        super().__init__(access.endpoint, settings.reply_settings(), aws_events)
        self._account = access.account
        self._settings = settings

    @override
    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        decoder: ChunkDecoder | ConverseDecoder
        if self._settings.api == "anthropic":
            method, decoder = "invoke-with-response-stream", ChunkDecoder(on_delta)
            tools = anthropic.tools_of(request)
            blobs = await missing_blobs(request, anthropic.turns_of(request))
            opening: JsonObject = {"anthropic_version": ANTHROPIC_VERSION}
            body = anthropic.encode(request, self._settings, blobs, opening=opening)
        else:
            method, decoder = "converse-stream", ConverseDecoder(on_delta)
            tools = tools_of(request)
            blobs = await missing_blobs(request, turns_of(request, self._settings))
            body = encode(request, self._settings, blobs)
        await self._post(f"/model/{quote(request.model, safe='')}/{method}", body, decoder.feed)
        return tools.restored(signed_by(decoder.finish(), request.model))

    @override
    def takes(self, model: str, mime_type: str) -> bool:
        settings = self._settings
        is_taken = settings.documents if mime_type == PDF else settings.images
        return is_common_media(mime_type) and (settings.api == "anthropic" or is_taken)

    async def _post(self, path: str, body: bytes, on_data: OnData) -> None:
        headers: dict[str, str] = {}
        if self._account is not None:
            url = self.endpoint.url(path)
            headers = await self._account.signature(url, body, self.endpoint.headers)
        await self.post(path, body, on_data, headers)

    @override
    def classified(self, error: ProviderError) -> ProviderError:
        # AWS also sends status 403 for credentials that it does not know
        if error.status_code != 403 or not _WRONG_CREDENTIALS.search(str(error)):
            return error
        return ProviderError(str(error), name="Authentication", status_code=403)


def create(config: ProviderConfig) -> BedrockProvider:
    settings = read_settings(BedrockSettings, config.setting)
    return BedrockProvider(access_of(settings, config.env, MEDIA_TYPE), settings)
