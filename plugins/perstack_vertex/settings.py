"""`[provider.setting]` of provider `google-vertex`, and what the environment adds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote

from pydantic import Field

from perstack.dataclass import dataclass
from perstack.errors import MissingCredential, UsageError
from perstack_anthropic.settings import AnthropicSettings
from perstack_google.settings import GoogleSettings, with_version
from perstack_http.endpoint import Endpoint, EndpointSettings, choose_base_url
from perstack_vertex.variables import LOCATIONS, PROJECTS, first_of

API_VERSION = "v1"
ADDRESS = "GOOGLE_VERTEX_BASE_URL"

_PROJECT = r"^[A-Za-z0-9.:-]+$"
_LOCATION = r"^[a-z0-9-]+$"
_WITHOUT_REGION = {"global": "aiplatform.googleapis.com"} | {
    area: f"aiplatform.{area}.rep.googleapis.com" for area in ("us", "eu")
}


class VertexSettings(EndpointSettings):
    """Beyond what every endpoint has."""

    project: str | None = Field(default=None, pattern=_PROJECT)
    """The id of the Google Cloud project that pays."""
    location: str | None = Field(default=None, pattern=_LOCATION)
    """A region, or `global`, `us`, `eu`."""

    def for_gemini(self) -> GoogleSettings:
        """What the codec of Gemini reads."""
        return GoogleSettings(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            structured_output=self.structured_output,
        )

    def for_claude(self) -> AnthropicSettings:
        """What the codec of Claude reads. A schema for the result is refused where the organization has not allowed it.

        Source: Vertex AI, «Structured outputs with Anthropic Claude models», «Control access to structured outputs».
        """
        return AnthropicSettings(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            structured_output=self.structured_output or False,
        )


@dataclass(frozen=True, slots=True)
class ProjectLocation:
    """Whose models, and where they run."""

    project: str
    location: str

    @property
    def base_url(self) -> str:
        """Google's own address of the location.

        Source: Vertex AI documentation, «Deployments and endpoints»; `us` and `eu` as Google's SDK has them.
        """
        return f"https://{_WITHOUT_REGION.get(self.location, f'{self.location}-aiplatform.googleapis.com')}"

    def path_of(self, publisher: str, model: str, method: str) -> str:
        """Where a model generates, below the version."""
        models = f"/projects/{self.project}/locations/{self.location}/publishers/{publisher}/models"
        return f"{models}/{quote(model, safe='@')}:{method}"


def place_of(settings: VertexSettings, env: Mapping[str, str]) -> ProjectLocation:
    """Project and location. Raises MissingCredential if one is nowhere said, UsageError if a variable cannot be one."""
    return ProjectLocation(
        settings.project or _of_env(env, PROJECTS, "project", "GOOGLE_CLOUD_PROJECT", _PROJECT),
        settings.location or _of_env(env, LOCATIONS, "location", "GOOGLE_CLOUD_LOCATION", _LOCATION),
    )


def endpoint_of(settings: VertexSettings, env: Mapping[str, str], place: ProjectLocation) -> Endpoint:
    """The address, without the token that each request is sent with."""
    base_url = choose_base_url(settings, env, ADDRESS, place.base_url)
    return Endpoint(with_version(base_url, API_VERSION), settings.headers, *settings.silences())


def _of_env(env: Mapping[str, str], names: tuple[str, ...], what: str, variable: str, pattern: str) -> str:
    found = first_of(env, names)
    if found is None:
        raise MissingCredential(
            f"provider google-vertex has no {what}: set {variable}, or {what} in [provider.setting] of perstack.toml"
        )
    if not re.fullmatch(pattern, found):
        wrong = next(name for name in names if env.get(name, "").strip() == found)
        raise UsageError(f"{wrong}: {found!r} is not a {what} of Google Cloud")
    return found
