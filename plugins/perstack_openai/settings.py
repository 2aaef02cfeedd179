"""`[provider.setting]` of provider `openai`, and what the environment adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

from perstack_http.endpoint import (
    Endpoint,
    EndpointSettings,
    choose_base_url,
    headers_of_env,
    is_loopback,
    missing_key,
    read_key,
)

DEFAULT_BASE_URL = "https://api.openai.com/v1"


class OpenAISettings(EndpointSettings):
    """Beyond what every endpoint has."""

    api: Literal["chat"] = "chat"
    """The wire format: Chat Completions."""
    organization: str | None = None
    project: str | None = None
    name: str | None = None
    """A label for people; nothing is sent."""
    images: bool = True
    """Whether the server takes images; if not, the model is told of them in words."""
    documents: bool | None = None
    """Whether the server takes PDFs. None: OpenAI's own does, compatible ones do not."""


def endpoint_of(settings: OpenAISettings, env: Mapping[str, str]) -> Endpoint:
    """Address and credentials. Raises MissingCredential; a server on this machine needs no key.

    Source: OpenAI API reference, «Introduction», section «Authentication»; the variables are those of its SDKs.
    """
    base_url = choose_base_url(settings, env, "OPENAI_BASE_URL", DEFAULT_BASE_URL)
    own = {
        "OpenAI-Organization": settings.organization or env.get("OPENAI_ORG_ID"),
        "OpenAI-Project": settings.project or env.get("OPENAI_PROJECT_ID"),
    }
    headers = {name: value for name, value in own.items() if value}
    key = read_key(env, "OPENAI_API_KEY")
    if key:
        headers["Authorization"] = f"Bearer {key}"
    headers.update({**headers_of_env(env, "OPENAI_CUSTOM_HEADERS"), **settings.headers})
    if not {"authorization", "api-key"} & {name.lower() for name in headers} and not is_loopback(base_url):
        raise missing_key("openai", "OPENAI_API_KEY")
    return Endpoint(base_url, headers, settings.read_timeout / 1000)


def is_openai(base_url: str) -> bool:
    """Whether this is OpenAI's own server, and not one compatible with it."""
    host = urlsplit(base_url).hostname or ""
    return host == "openai.com" or host.endswith(".openai.com")
