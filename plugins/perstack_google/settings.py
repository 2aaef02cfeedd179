"""`[provider.setting]` of provider `google`, and what the environment adds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Literal
from urllib.parse import quote

from perstack_google.variables import KEYS
from perstack_http.endpoint import Endpoint, EndpointSettings, choose_base_url, is_loopback, missing_key, read_key

BASE_URLS = ("GOOGLE_GEMINI_BASE_URL", "GOOGLE_GENERATIVE_AI_BASE_URL")
DEFAULT_BASE_URL = "https://generativelanguage.googleapis.com"
API_VERSION = "v1beta"

_ENDS_WITH_VERSION = re.compile(r"/v\d+((alpha|beta)\d*)?$")


class GoogleSettings(EndpointSettings):
    """Beyond what every endpoint has."""

    CHANGE_REPLIES: ClassVar[frozenset[str]] = EndpointSettings.CHANGE_REPLIES | {"thinking"}

    thinking: Literal["budget", "level"] | None = None
    """How this model takes a reasoning budget: as a number of tokens, or as a level. None: by its name."""


def endpoint_of(settings: GoogleSettings, env: Mapping[str, str]) -> Endpoint:
    """Address and credentials. Raises MissingCredential; a server on this machine needs none.

    Source: Gemini API reference, section «Authentication»; the variables are those of Google's and Vercel's SDKs, and
    of the original Perstack.
    """
    variable = next((name for name in BASE_URLS if env.get(name)), BASE_URLS[0])
    base_url = choose_base_url(settings, env, variable, DEFAULT_BASE_URL, keys=KEYS)
    key = next((key for name in KEYS if (key := read_key(env, name))), None)
    headers = ({"x-goog-api-key": key} if key else {}) | settings.headers
    if not {"x-goog-api-key", "authorization"} & {name.lower() for name in headers} and not is_loopback(base_url):
        raise missing_key("google", "GEMINI_API_KEY")
    return Endpoint(with_version(base_url, API_VERSION), headers, *settings.silences())


def with_version(base_url: str, version: str) -> str:
    """An address that ends with the API's version: its own, or this one."""
    return base_url if _ENDS_WITH_VERSION.search(base_url) else f"{base_url}/{version}"


def path_of(model: str) -> str:
    """Where a model generates, below the version. A name may say its collection: `models/x`, `tunedModels/x`."""
    name = model if "/" in model else f"models/{model}"
    return f"/{quote(name, safe='/')}:streamGenerateContent?alt=sse"
