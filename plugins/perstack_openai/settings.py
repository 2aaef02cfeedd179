"""`[provider.setting]` of provider `openai`, what the environment adds, and what both make: a connection.

`compatible` and `azure` do the same for the other endpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal
from urllib.parse import quote, urlsplit

from perstack.dataclass import dataclass
from perstack.ports.provider import ProviderConfig
from perstack_http.endpoint import (
    Endpoint,
    EndpointSettings,
    choose_base_url,
    headers_of_env,
    is_loopback,
    missing_key,
    read_key,
    read_settings,
)
from perstack_openai.dialect import Dialect

Api = Literal["chat", "responses"]

DEFAULT_BASE_URL = "https://api.openai.com/v1"
_KEYS = ("OPENAI_API_KEY", "OPENAI_CUSTOM_HEADERS")

_CREDENTIALS = frozenset({"authorization", "api-key", "x-api-key", "ocp-apim-subscription-key"})
"""The last two are what gateways in front of an endpoint ask for."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Where requests go, in which format, and under which path."""

    endpoint: Endpoint
    dialect: Dialect
    api: Api
    prefix: str = ""
    """Before the method's path; `{model}` in it stands for the model."""
    query: str = ""

    def path(self, model: str) -> str:
        """The path of the method that generates with `model`."""
        method = "/responses" if self.api == "responses" else "/chat/completions"
        return self.prefix.replace("{model}", quote(model, safe="")) + method + self.query


class CompatibleSettings(EndpointSettings):
    """What every endpoint of this plugin has."""

    name: str | None = None
    """A label for people; nothing is sent."""
    images: bool = True
    """Whether the model takes images; if not, it sees them as a line of text."""


class OpenAISettings(CompatibleSettings):
    """Of `openai`, and of any server that speaks one of its formats."""

    api: Api | None = None
    """The wire format. None: Responses at OpenAI itself, Chat Completions elsewhere."""
    organization: str | None = None
    project: str | None = None
    documents: bool | None = None
    """Whether the server takes PDFs. None: OpenAI's own does, compatible ones do not."""
    reasoning: bool | None = None
    """Whether the model reasons, where its name does not tell."""
    reasoning_summary: Literal["auto", "concise", "detailed"] | None = None
    """Over Responses: shows a summary of the reasoning."""


def openai_connection(config: ProviderConfig) -> Connection:
    """OpenAI, or a server compatible with it; one on this machine needs no key.

    Source: OpenAI API reference, «Introduction», section «Authentication»; the variables are those of its SDKs, and
    of the original Perstack.
    """
    settings, env = read_settings(OpenAISettings, config.setting), config.env
    base_url = choose_base_url(settings, env, "OPENAI_BASE_URL", DEFAULT_BASE_URL, keys=_KEYS)
    own = {
        "OpenAI-Organization": settings.organization or env.get("OPENAI_ORG_ID") or env.get("OPENAI_ORGANIZATION"),
        "OpenAI-Project": settings.project or env.get("OPENAI_PROJECT_ID") or env.get("OPENAI_PROJECT"),
    }
    headers = {name: value for name, value in own.items() if value}
    key = read_key(env, "OPENAI_API_KEY")
    if key:
        headers["Authorization"] = f"Bearer {key}"
    headers.update({**headers_of_env(env, "OPENAI_CUSTOM_HEADERS"), **settings.headers})
    if not has_credential(headers) and not is_loopback(base_url):
        raise missing_key("openai", "OPENAI_API_KEY")
    official = is_openai(base_url)
    dialect = replace(
        dialect_of(settings, "openai"),
        is_openai=official,
        takes_documents=official if settings.documents is None else settings.documents,
        reasoning=settings.reasoning,
        reasoning_summary=settings.reasoning_summary,
    )
    api = settings.api or ("responses" if official else "chat")
    return Connection(endpoint_of(base_url, headers, settings, api), dialect, api)


def is_openai(base_url: str) -> bool:
    """Whether this is OpenAI's own server, and not one compatible with it."""
    host = urlsplit(base_url).hostname or ""
    return host == "openai.com" or host.endswith(".openai.com")


def has_credential(headers: Mapping[str, str]) -> bool:
    """Whether the headers say who is asking."""
    return bool(_CREDENTIALS & {name.lower() for name in headers})


def endpoint_of(base_url: str, headers: Mapping[str, str], settings: EndpointSettings, api: Api) -> Endpoint:
    """The endpoint at a checked address. Over Responses nothing comes while a model thinks, which may take minutes."""
    return Endpoint(base_url, headers, *settings.silences(thinks_silently=api == "responses"))


def dialect_of(settings: CompatibleSettings, vendor: str) -> Dialect:
    """What the settings say of a server that is not OpenAI's and takes no PDFs."""
    return Dialect(
        is_openai=False,
        vendor=vendor,
        takes_images=settings.images,
        takes_documents=False,
        max_tokens=settings.max_tokens,
        temperature=settings.temperature,
        top_p=settings.top_p,
        structured_output=settings.structured_output,
    )
