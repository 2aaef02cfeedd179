"""Settings of provider `amazon-bedrock`: `[provider.setting]`, the environment, and differences of model families."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from perstack.core.base.records import JsonObject
from perstack.core.definitions.settings import ReasoningBudget
from perstack.dataclass import dataclass
from perstack.errors import MissingCredential, UsageError
from perstack.http_providers.endpoint import Endpoint, choose_base_url, is_loopback, read_key
from perstack.http_providers.provider import are_installed
from perstack.ports.provider import GenerationRequest
from perstack_anthropic.messages_api import effort_of, limits_of
from perstack_anthropic.settings import AnthropicSettings
from perstack_bedrock import LIBRARIES, REGIONS
from perstack_bedrock.credentials import AwsAccount, may_have_credentials, region_of_profile

BASE_URLS = ("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", "AWS_ENDPOINT_URL")
TOKEN = "AWS_BEARER_TOKEN_BEDROCK"  # noqa: S105 - the name of a variable
KEY = "AWS_ACCESS_KEY_ID"
SECRET = "AWS_SECRET_ACCESS_KEY"  # noqa: S105 - the name of a variable
INSTALL = "pip install 'perstack[bedrock]'"

_REGION = r"^[a-z0-9-]+$"
_DOMAINS = {"cn-": "amazonaws.com.cn", "eusc-": "amazonaws.eu"}
"""Domains of AWS partitions that differ from the default, by region prefix."""


class BedrockSettings(AnthropicSettings):
    """Settings in addition to Anthropic's."""

    CHANGE_REPLIES: ClassVar[frozenset[str]] = AnthropicSettings.CHANGE_REPLIES | {"images", "documents"}

    region: str | None = Field(default=None, pattern=_REGION)
    profile: str | None = Field(default=None, min_length=1)
    """Profile of AWS's configuration files, used instead of keys in the environment."""
    api: Literal["converse", "anthropic"] = "converse"
    """`anthropic`: Claude in Anthropic's format, through InvokeModelWithResponseStream."""
    cache: bool | None = None  # True to set cache marks in Converse requests; None: decided by the model's name
    images: bool = True  # False for a model without image support: it gets a line of text instead of each
    documents: bool = True  # False for a model without PDF support: it gets a line of text instead of each


@dataclass(frozen=True, slots=True)
class Access:
    """Endpoint and signer of requests. `account` is None if they carry a token or go to a server on this machine."""

    endpoint: Endpoint
    account: AwsAccount | None


def access_of(settings: BedrockSettings, env: Mapping[str, str], accept: str) -> Access:
    """Return address and credentials; a token in the environment takes precedence.

    Raises MissingCredential if credentials, a region or the library are missing; a server on this machine needs no
    credentials. Source: Amazon Bedrock user guide, "API keys"; AWS SDKs and Tools reference guide.
    """
    if not are_installed(LIBRARIES):
        raise MissingCredential(f"provider amazon-bedrock needs AWS's library botocore: {INSTALL}")
    region = _choose_region(settings, env)
    variable = next((name for name in BASE_URLS if env.get(name)), BASE_URLS[0])
    if region is None and settings.base_url is None and not env.get(variable):
        raise _missing_region_error()
    base_url = choose_base_url(settings, env, variable, _regional_url(region or ""))
    token = read_key(env, TOKEN)
    headers = {"accept": accept, **({"authorization": f"Bearer {token}"} if token else {}), **settings.headers}
    endpoint = Endpoint(base_url, headers, *settings.silences())
    if "authorization" in {name.lower() for name in headers}:
        return Access(endpoint, None)
    if not may_have_credentials(settings.profile, env):
        if not is_loopback(base_url):
            raise MissingCredential(
                f"provider amazon-bedrock has no credentials: set {TOKEN}, or {KEY} and {SECRET}, "
                "in the environment or in .env, or name a profile of AWS's"
            )
        return Access(endpoint, None)
    if region is None:
        raise _missing_region_error()
    if settings.profile is None and env.get(KEY) and not env.get(SECRET):
        raise MissingCredential(f"provider amazon-bedrock has only half of the key pair: also set {SECRET}")
    return Access(endpoint, AwsAccount(settings.profile, env, region))


def _regional_url(region: str) -> str:
    domain = next((domain for start, domain in _DOMAINS.items() if region.startswith(start)), "amazonaws.com")
    return f"https://bedrock-runtime.{region}.{domain}"


def _choose_region(settings: BedrockSettings, env: Mapping[str, str]) -> str | None:
    if settings.region is not None:
        return settings.region
    values = (value for name in REGIONS if (value := env.get(name, "").strip()))
    region = next(values, None) or region_of_profile(settings.profile, env)
    if region is not None and not re.match(_REGION, region):
        raise UsageError(f"AWS_REGION, or the region of the profile: {region!r} is not a region of AWS")
    return region


def _missing_region_error() -> MissingCredential:
    return MissingCredential(
        "provider amazon-bedrock has no region: set AWS_REGION, or region in [provider.setting] of perstack.toml"
    )


# Differences between Bedrock's model families, by model id.
#
# Source: Amazon Bedrock user guide, "Prompt caching", "Extended thinking", "Adaptive thinking"; Amazon Nova 2 user
# guide, "Extended thinking"; API reference, `ToolResultBlock`.

_CACHES = re.compile(r"anthropic\.claude-(?!v2|instant|3-(haiku|sonnet|opus)|3-5-sonnet-20240620)|amazon\.nova-")
_SIGNS = re.compile(r"claude|amazon\.nova-")


def accepts_cache_marks(model: str, settings: BedrockSettings) -> bool:
    """Return whether the model accepts cache marks; others reject a request with one."""
    return settings.cache if settings.cache is not None else _CACHES.search(model) is not None


def accepts_error_status(model: str) -> bool:
    """Return whether a tool result may be marked as an error."""
    return _SIGNS.search(model) is not None


def limits_and_thinking(request: GenerationRequest, settings: BedrockSettings) -> tuple[int | None, JsonObject]:
    """Return `maxTokens` (None: the model's default), and the fields of a known model family that limit thinking."""
    model, budget, max_tokens = request.model, request.reasoning_budget, request.max_tokens_within(settings.max_tokens)
    if budget is None:
        return max_tokens, {}
    if "claude" not in model and settings.thinking is None:
        return max_tokens, _thinking_fields_without_claude(model, budget)
    room, fields = limits_of(model, budget, settings)
    if not _limits_tokens(fields):
        return max_tokens, fields
    # thinking tokens are part of the reply's tokens, so a lower limit of the request lowers them too
    capped = request.max_tokens_within(room)
    return capped, limits_of(model, budget, settings.model_copy(update={"max_tokens": capped}))[1]


def _limits_tokens(fields: JsonObject) -> bool:
    """Return whether the fields set a thinking budget in tokens, which counts against `maxTokens`."""
    thinking = fields.get("thinking")
    return isinstance(thinking, dict) and "budget_tokens" in thinking


def _thinking_fields_without_claude(model: str, budget: ReasoningBudget) -> JsonObject:
    is_off = budget == "none" or budget == 0
    if "amazon.nova-2" in model:
        if is_off:
            return {"reasoningConfig": {"type": "disabled"}}
        return {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": effort_of(budget)}}
    if "openai.gpt-oss" in model:
        return {"reasoning_effort": "low" if is_off else effort_of(budget)}
    return {}
