"""Provider `azure-openai`: OpenAI's models as deployments of one's own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal
from urllib.parse import quote, urlsplit

from pydantic import Field

from perstack.errors import DefinitionError, MissingCredential, Problem, UsageError
from perstack.ports.environment import refuse_redirected
from perstack.ports.provider import ProviderConfig
from perstack_http.endpoint import choose_base_url, is_loopback, missing_key, read_key, read_settings
from perstack_openai.settings import Api, CompatibleSettings, Connection, dialect_of, endpoint_of, has_credential

_KEYS = ("AZURE_OPENAI_API_KEY", "AZURE_API_KEY", "AZURE_OPENAI_AD_TOKEN")
_ENDPOINTS = ("AZURE_OPENAI_ENDPOINT", "AZURE_BASE_URL")
_RESOURCE = r"^[a-zA-Z0-9][a-zA-Z0-9-]{0,63}$"
"""The first word of the resource's address."""


class AzureSettings(CompatibleSettings):
    """Of `azure-openai`."""

    api: Api | None = None
    """The wire format. None: Responses, but Chat Completions with deployment based URLs."""
    resource_name: str | None = Field(default=None, pattern=_RESOURCE)
    api_version: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]+$")
    use_deployment_based_urls: bool = False
    documents: bool = True
    reasoning: bool | None = None
    reasoning_summary: Literal["auto", "concise", "detailed"] | None = None


def azure_connection(config: ProviderConfig) -> Connection:
    """A deployment at Azure; the model's name is the deployment's.

    Source: Azure OpenAI documentation, «API version lifecycle» (the v1 API) and «REST API reference»; the variables
    are those of OpenAI's SDK for Azure, of the AI SDK and of the original Perstack.
    """
    settings, env = read_settings(AzureSettings, config.setting), config.env
    base_url = _base_url(settings, env)
    headers = {**_credential(env), **settings.headers}
    if not has_credential(headers) and not is_loopback(base_url):
        raise missing_key("azure-openai", "AZURE_OPENAI_API_KEY")
    dialect = replace(
        dialect_of(settings, "azure-openai"),
        is_openai=True,
        takes_documents=settings.documents,
        reasoning=settings.reasoning,
        reasoning_summary=settings.reasoning_summary,
    )
    api = settings.api or ("chat" if settings.use_deployment_based_urls else "responses")
    prefix, query = _path(settings, env, api)
    return Connection(endpoint_of(base_url, headers, settings, api), dialect, api, prefix, query)


def _base_url(settings: AzureSettings, env: Mapping[str, str]) -> str:
    """The address up to `/openai`."""
    resource = None if settings.base_url is not None else _resource(settings, env)
    address = f"https://{resource}.openai.azure.com" if resource else ""
    if resource and settings.resource_name is None:
        refuse_redirected(env, "AZURE_RESOURCE_NAME", _KEYS)
    variable = _endpoint_in(env) or _ENDPOINTS[0]
    base_url = choose_base_url(settings, {} if resource else env, variable, address, keys=_KEYS)
    base_url = base_url.removesuffix("/v1")
    return base_url if urlsplit(base_url).path else f"{base_url}/openai"


def _endpoint_in(env: Mapping[str, str]) -> str | None:
    """The variable that holds a whole address."""
    return next((name for name in _ENDPOINTS if env.get(name)), None)


def _resource(settings: AzureSettings, env: Mapping[str, str]) -> str | None:
    """The setting's, else the environment's; None if that holds a whole address."""
    if settings.resource_name is not None:
        return settings.resource_name
    if _endpoint_in(env):
        return None
    resource = env.get("AZURE_RESOURCE_NAME", "").strip()
    if not resource:
        raise MissingCredential(
            "provider azure-openai has no address: set resourceName or baseUrl in [provider.setting],"
            " or AZURE_RESOURCE_NAME or AZURE_OPENAI_ENDPOINT in the environment or in .env"
        )
    if not re.fullmatch(_RESOURCE, resource):
        raise UsageError(
            "AZURE_RESOURCE_NAME: this is not a name of a resource: give the first word of its address,"
            " without .openai.azure.com"
        )
    return resource


def _credential(env: Mapping[str, str]) -> dict[str, str]:
    key = read_key(env, "AZURE_OPENAI_API_KEY") or read_key(env, "AZURE_API_KEY")
    if key:
        return {"api-key": key}
    token = read_key(env, "AZURE_OPENAI_AD_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _path(settings: AzureSettings, env: Mapping[str, str], api: Api) -> tuple[str, str]:
    """Prefix and query. The v1 API needs no version; the dated APIs before it do."""
    if not settings.use_deployment_based_urls:
        return "/v1", f"?api-version={settings.api_version}" if settings.api_version else ""
    version = settings.api_version or (env.get("OPENAI_API_VERSION") or env.get("AZURE_API_VERSION") or "").strip()
    if not version:
        wrong = "deployment based URLs need a version, such as 2024-10-21: set it here or in OPENAI_API_VERSION"
        raise DefinitionError((Problem(wrong, "perstack.toml", key="provider.setting.apiVersion"),))
    return "/deployments/{model}" if api == "chat" else "", f"?api-version={quote(version)}"
