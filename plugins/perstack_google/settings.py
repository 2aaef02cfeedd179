"""Settings of provider `google`: `[provider.setting]`, the environment, and the thinking options of models.

Source of the latter: Gemini API documentation, «Gemini thinking», sections «Thinking levels» and «Thinking budgets».
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Literal
from urllib.parse import quote

from perstack.core.base.records import JsonObject
from perstack.core.definitions.experts import ReasoningBudget
from perstack.support.http.endpoint import (
    Endpoint,
    EndpointSettings,
    choose_base_url,
    is_loopback,
    missing_key,
    read_key,
)
from perstack.support.http.messages import BUDGET_TOKENS, budget_word
from perstack_google import KEYS

BASE_URLS = ("GOOGLE_GEMINI_BASE_URL", "GOOGLE_GENERATIVE_AI_BASE_URL")
DEFAULT_BASE_URL = "https://generativelanguage.googleapis.com"
API_VERSION = "v1beta"

_ENDS_WITH_VERSION = re.compile(r"/v\d+((alpha|beta)\d*)?$")


class GoogleSettings(EndpointSettings):
    """Settings of provider `google`, in addition to `EndpointSettings`."""

    CHANGE_REPLIES: ClassVar[frozenset[str]] = EndpointSettings.CHANGE_REPLIES | {"thinking"}

    thinking: Literal["budget", "level"] | None = None
    """Form of the model's reasoning budget: a number of tokens, or a level. None: by its name."""


def endpoint_of(settings: GoogleSettings, env: Mapping[str, str]) -> Endpoint:
    """Return address and credentials. Raises MissingCredential, except for a server on this machine.

    Source: Gemini API reference, section «Authentication»; Google's and Vercel's SDKs and the
    original Perstack read these variables.
    """
    variable = next((name for name in BASE_URLS if env.get(name)), BASE_URLS[0])
    base_url = choose_base_url(settings, env, variable, DEFAULT_BASE_URL, keys=KEYS)
    key = next((key for name in KEYS if (key := read_key(env, name))), None)
    headers = ({"x-goog-api-key": key} if key else {}) | settings.headers
    if not {"x-goog-api-key", "authorization"} & {name.lower() for name in headers} and not is_loopback(base_url):
        raise missing_key("google", "GEMINI_API_KEY")
    return Endpoint(with_version(base_url, API_VERSION), headers, *settings.silences())


def with_version(base_url: str, version: str) -> str:
    """Append the API version to an address, unless it ends with one."""
    return base_url if _ENDS_WITH_VERSION.search(base_url) else f"{base_url}/{version}"


def path_of(model: str) -> str:
    """Return the path of the generation method.

    A model name may include its collection: `models/x`, `tunedModels/x`.
    """
    name = model if "/" in model else f"models/{model}"
    return f"/{quote(name, safe='/')}:streamGenerateContent?alt=sse"


_LEVELS = {"none": "MINIMAL", "minimal": "MINIMAL", "low": "LOW", "medium": "MEDIUM", "high": "HIGH"}

_WITHOUT_THINKING = re.compile(r"gemini-(1|2\.0)|gemma")
_COUNTS_TOKENS = re.compile(r"gemini-2")
_GEMINI_3_PRO = re.compile(r"gemini-3-pro")

_RANGES = ((re.compile(r"pro"), 128, 32_768), (re.compile(r"lite"), 512, 24_576), (re.compile(r""), 1, 24_576))
"""Minimum and maximum thinking tokens of each family with token budgets. Only `pro` cannot turn thinking off."""


def signs_calls(model: str) -> bool:
    """Return whether the model rejects its calls without a signature, and accepts files inside tool results."""
    return not (_WITHOUT_THINKING.search(model) or _COUNTS_TOKENS.search(model))


def takes_schemas(model: str, *, has_tools: bool) -> bool:
    """Return whether the model accepts a schema for its reply; older ones reject it together with tools.

    Source: Gemini API, «Structured outputs», sections «Model support» and «Structured outputs with tools».
    """
    return _WITHOUT_THINKING.search(model) is None and (signs_calls(model) or not has_tools)


def thinking_config(model: str, budget: ReasoningBudget | None, settings: GoogleSettings) -> JsonObject | None:
    """Return `thinkingConfig`; None to omit it."""
    if budget is None or (settings.thinking is None and _WITHOUT_THINKING.search(model)):
        return None
    counts = settings.thinking == "budget" if settings.thinking else _COUNTS_TOKENS.search(model) is not None
    if counts:
        tokens = _tokens(model, budget)
        return {"thinkingBudget": tokens, "includeThoughts": tokens > 0}
    return {"thinkingLevel": _level(model, budget), "includeThoughts": budget not in ("none", 0)}


def _tokens(model: str, budget: ReasoningBudget) -> int:
    wanted = budget if isinstance(budget, int) else BUDGET_TOKENS[budget]
    family, least, most = next(one for one in _RANGES if one[0].search(model))
    if wanted <= 0 and family.pattern != "pro":
        return 0
    return max(least, min(wanted, most))


def _level(model: str, budget: ReasoningBudget) -> str:
    level = _LEVELS[budget_word(budget)]
    if level == "MINIMAL" and "flash" not in model:
        return "LOW"
    if level == "MEDIUM" and _GEMINI_3_PRO.search(model):
        return "HIGH"
    return level
