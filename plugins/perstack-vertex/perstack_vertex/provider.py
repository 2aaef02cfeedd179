"""Provider port implemented with Vertex AI: Gemini and Claude models at one address, with Google's access tokens.

`perstack_google` and `perstack_anthropic` have the wire formats, chosen by the model's name; this module adds
the addresses, the settings and the tokens (`credentials`). A token that was created for an earlier request and is
refused is replaced once.

Vertex AI differs from the vendors' own endpoints in three things: Gemini's calls have no ids (`with_ids`), Claude's
version is in the body (`opening`), and a result schema for Claude needs a permission, so it is off by default.

Change together: `for_gemini` and `for_claude` with the settings of those codecs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from urllib.parse import quote

from pydantic import Field
from typing_extensions import override

from perstack.core.base.records import JsonObject
from perstack.dataclass import dataclass
from perstack.errors import MissingCredential, ProviderError, UsageError
from perstack.http_providers.endpoint import Endpoint, EndpointSettings, choose_base_url, is_loopback, read_settings
from perstack.http_providers.messages import is_common_media, missing_blobs
from perstack.http_providers.provider import HttpProvider
from perstack.http_providers.replies import OnData, ReplyProgress
from perstack.ports.provider import Delta, Generation, GenerationRequest, ProviderConfig
from perstack_anthropic.messages_api import MessagesDecoder, complete_generation, encode, turns_of
from perstack_anthropic.settings import REQUIRED, AnthropicSettings
from perstack_google.provider import generate as generate_by_gemini
from perstack_google.provider import with_version
from perstack_google.request import GoogleSettings, is_sendable
from perstack_vertex import LOCATIONS, PROJECTS, first_of
from perstack_vertex.credentials import Identity, identity_of

API_VERSION = "v1"
ADDRESS = "GOOGLE_VERTEX_BASE_URL"

_PROJECT = r"^[A-Za-z0-9.:-]+$"
_LOCATION = r"^[a-z0-9-]+$"
_WITHOUT_REGION = {"global": "aiplatform.googleapis.com"} | {
    area: f"aiplatform.{area}.rep.googleapis.com" for area in ("us", "eu")
}


class VertexSettings(EndpointSettings):
    """Settings of provider `google-vertex`, in addition to `EndpointSettings`."""

    project: str | None = Field(default=None, pattern=_PROJECT)  # id of the Google Cloud project that is billed
    location: str | None = Field(default=None, pattern=_LOCATION)  # region, or `global`, `us`, `eu`

    def for_gemini(self) -> GoogleSettings:
        """Return the settings for the Gemini codec."""
        return GoogleSettings(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            structured_output=self.structured_output,
        )

    def for_claude(self) -> AnthropicSettings:
        """Return the settings for the Claude codec.

        A result schema is off by default, because it is refused unless the organization allows it. Source: Vertex AI,
        "Structured outputs with Anthropic Claude models", "Control access to structured outputs".
        """
        return AnthropicSettings(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            structured_output=self.structured_output or False,
        )


@dataclass(frozen=True, slots=True)
class ProjectLocation:
    """Google Cloud project, and the location in which models run."""

    project: str
    location: str

    @property
    def base_url(self) -> str:
        """Google's address. Source: Vertex AI, "Deployments and endpoints"; `us` and `eu` as in Google's SDK."""
        return f"https://{_WITHOUT_REGION.get(self.location, f'{self.location}-aiplatform.googleapis.com')}"

    def path_of(self, publisher: str, model: str, method: str) -> str:
        """Return the path of a model's method, below the version."""
        models = f"/projects/{self.project}/locations/{self.location}/publishers/{publisher}/models"
        return f"{models}/{quote(model, safe='@')}:{method}"


def place_of(settings: VertexSettings, env: Mapping[str, str]) -> ProjectLocation:
    """Return project and location. Raises MissingCredential if one is missing, UsageError if a variable is invalid."""
    return ProjectLocation(
        settings.project or _read_variable(env, PROJECTS, "project", "GOOGLE_CLOUD_PROJECT", _PROJECT),
        settings.location or _read_variable(env, LOCATIONS, "location", "GOOGLE_CLOUD_LOCATION", _LOCATION),
    )


def endpoint_of(settings: VertexSettings, env: Mapping[str, str], location: ProjectLocation) -> Endpoint:
    """Return the endpoint, without the token that each request carries."""
    base_url = choose_base_url(settings, env, ADDRESS, location.base_url)
    return Endpoint(with_version(base_url, API_VERSION), settings.headers, *settings.silences())


def _read_variable(env: Mapping[str, str], names: tuple[str, ...], kind: str, variable: str, pattern: str) -> str:
    """Return the first of these variables that is set. Raises MissingCredential and UsageError."""
    value = first_of(env, names)
    if value is None:
        raise MissingCredential(
            f"provider google-vertex has no {kind}: set {variable}, or {kind} in [provider.setting] of perstack.toml"
        )
    if not re.fullmatch(pattern, value):
        source = next(name for name in names if env.get(name, "").strip() == value)
        raise UsageError(f"{source}: {value!r} is not a {kind} of Google Cloud")
    return value


ANTHROPIC_VERSION = "vertex-2023-10-16"
"""API version for Claude. Source: Anthropic documentation, "Claude on Vertex AI"."""


class VertexProvider(HttpProvider):
    """Provider of Google's and Anthropic's models in one location of Vertex AI."""

    required_fields = REQUIRED

    def __init__(
        self, endpoint: Endpoint, settings: VertexSettings, location: ProjectLocation, identity: Identity | None
    ) -> None:
        """Connect to nothing yet; `identity` is None if requests need no token."""
        super().__init__(endpoint, settings.reply_settings())
        self._settings = settings
        self._location = location
        self._identity = identity

    @override
    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        if request.model.startswith("claude"):
            return await self._generate_with_claude(request, on_delta)
        path = self._location.path_of("google", request.model, "streamGenerateContent?alt=sse")

        async def post(body: bytes, on_data: OnData) -> None:
            await self._post(path, body, on_data)

        # Vertex AI rejects call ids as unknown fields
        return await generate_by_gemini(request, self._settings.for_gemini(), post, on_delta, with_ids=False)

    @override
    def takes(self, model: str, mime_type: str) -> bool:
        return is_common_media(mime_type) if model.startswith("claude") else is_sendable(mime_type)

    async def _generate_with_claude(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        blobs = await missing_blobs(request, turns_of(request))
        opening: JsonObject = {"anthropic_version": ANTHROPIC_VERSION, "stream": True}
        body = encode(request, self._settings.for_claude(), blobs, opening=opening)
        decoder = MessagesDecoder(on_delta)
        path = self._location.path_of("anthropic", request.model, "streamRawPredict")
        await self._post(path, body, decoder.feed)
        return complete_generation(decoder.finish(), request, self._settings.for_claude())

    async def _post(self, path: str, body: bytes, on_data: OnData) -> None:
        """Send a request with a token. A refused token is replaced once, unless it is new or the reply has begun."""
        if self._identity is None:
            return await self.post(path, body, on_data)
        token = await self._identity.token()
        has_begun = False

        def take(data: str) -> ReplyProgress:
            nonlocal has_begun
            has_begun = True
            return on_data(data)

        try:
            return await self.post(path, body, take, token.headers)
        except ProviderError as error:
            if error.status_code != 401 or token.is_new or has_begun:
                raise
        token = await self._identity.token(instead_of=token)
        return await self.post(path, body, on_data, token.headers)


def create(config: ProviderConfig) -> VertexProvider:
    settings = read_settings(VertexSettings, config.setting)
    location = place_of(settings, config.env)
    endpoint = endpoint_of(settings, config.env, location)
    if "authorization" in {name.lower() for name in settings.headers}:
        return VertexProvider(endpoint, settings, location, None)
    identity = identity_of(config.env, is_needed=not is_loopback(endpoint.base_url))
    return VertexProvider(endpoint, settings, location, identity)
