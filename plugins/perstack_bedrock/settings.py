"""`[provider.setting]` of provider `amazon-bedrock`, and what the environment adds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import ClassVar, Literal

from pydantic import Field

from perstack.dataclass import dataclass
from perstack.errors import MissingCredential, UsageError
from perstack.ports.environment import refuse_redirected, unconfirmed_in
from perstack_anthropic.settings import AnthropicSettings
from perstack_bedrock.credentials import AwsAccount, may_have_credentials, region_of_profile
from perstack_bedrock.variables import REGIONS
from perstack_http.endpoint import Endpoint, choose_base_url, is_loopback, read_key

BASE_URLS = ("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", "AWS_ENDPOINT_URL")
TOKEN = "AWS_BEARER_TOKEN_BEDROCK"  # noqa: S105 - the name of a variable
KEY = "AWS_ACCESS_KEY_ID"
SECRET = "AWS_SECRET_ACCESS_KEY"  # noqa: S105 - likewise
INSTALL = "pip install 'perstack[bedrock]'"

_REGION = r"^[a-z0-9-]+$"
_DOMAINS = {"cn-": "amazonaws.com.cn", "eusc-": "amazonaws.eu"}
"""Of the partitions of AWS that are on other domains than the rest."""


class BedrockSettings(AnthropicSettings):
    """Beyond what every endpoint has, and Anthropic's own."""

    CHANGE_REPLIES: ClassVar[frozenset[str]] = AnthropicSettings.CHANGE_REPLIES | {"images", "documents"}

    region: str | None = Field(default=None, pattern=_REGION)
    profile: str | None = Field(default=None, min_length=1)
    """A profile of AWS's configuration files, in place of keys in the environment."""
    api: Literal["converse", "anthropic"] = "converse"
    """`anthropic`: Claude in its own format, by InvokeModelWithResponseStream."""
    cache: bool | None = None
    """Over Converse, whether requests say where to cache. None: by the model's name."""
    images: bool = True
    """False for a model that takes none: it sees them as a line of text."""
    documents: bool = True
    """The same for PDFs."""


@dataclass(frozen=True, slots=True)
class Access:
    """Where requests go, and who signs them; nobody, if they bear a token or go to a server on this machine."""

    endpoint: Endpoint
    account: AwsAccount | None


def access_of(settings: BedrockSettings, env: Mapping[str, str], accept: str) -> Access:
    """Address and credentials, of which the environment's token comes first.

    Raises MissingCredential if credentials, a region or the library are missing; a server on this machine needs no
    credentials. Source: Amazon Bedrock user guide, «API keys»; AWS SDKs and Tools reference guide.
    """
    if find_spec("botocore") is None:
        raise MissingCredential(f"provider amazon-bedrock needs AWS's library botocore: {INSTALL}")
    region = _region_of(settings, env)
    variable = next((name for name in BASE_URLS if env.get(name)), BASE_URLS[0])
    if region is None and settings.base_url is None and not env.get(variable):
        raise _missing_region()
    base_url = choose_base_url(settings, env, variable, _address_in(region or ""), keys=(TOKEN,))
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
        raise _missing_region()
    if settings.profile is None and env.get(KEY) and not env.get(SECRET):
        raise MissingCredential(f"provider amazon-bedrock has half a pair of keys: set {SECRET} beside {KEY}")
    if settings.base_url is None:
        is_theirs = settings.profile is None and {KEY, SECRET} <= set(unconfirmed_in(env))
        refuse_redirected(env, variable, (), others=None if is_theirs else "a signature of your AWS account")
    return Access(endpoint, AwsAccount(settings.profile, env, region))


def _address_in(region: str) -> str:
    domain = next((domain for start, domain in _DOMAINS.items() if region.startswith(start)), "amazonaws.com")
    return f"https://bedrock-runtime.{region}.{domain}"


def _region_of(settings: BedrockSettings, env: Mapping[str, str]) -> str | None:
    if settings.region is not None:
        return settings.region
    named = (value for name in REGIONS if (value := env.get(name, "").strip()))
    found = next(named, None) or region_of_profile(settings.profile, env)
    if found is not None and not re.match(_REGION, found):
        raise UsageError(f"AWS_REGION, or the region of the profile: {found!r} is not a region of AWS")
    return found


def _missing_region() -> MissingCredential:
    return MissingCredential(
        "provider amazon-bedrock has no region: set AWS_REGION, or region in [provider.setting] of perstack.toml"
    )
