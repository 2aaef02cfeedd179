"""Connections of the plugin's providers, built from `[provider.setting]` and the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal
from urllib.parse import quote, urlsplit

from pydantic import BaseModel, Field, ValidationError

from perstack.dataclass import dataclass
from perstack.errors import DefinitionError, MissingCredential, Problem, ProviderError, UsageError
from perstack.http_providers.endpoint import (
    Endpoint,
    EndpointSettings,
    choose_base_url,
    headers_of_env,
    is_loopback,
    missing_key,
    read_key,
    read_settings,
)
from perstack.ports.provider import OfferedModel, ProviderConfig
from perstack_openai.dialect import OPENAI, Dialect
from perstack_openai.profiles import Profile, profile_at, profile_named

Api = Literal["chat", "responses"]

_KEYS = ("OPENAI_API_KEY", "OPENAI_CUSTOM_HEADERS")

_CREDENTIALS = frozenset({"authorization", "api-key", "x-api-key", "ocp-apim-subscription-key"})
"""Headers that may hold a credential; gateways in front of an endpoint use the last two."""


@dataclass(frozen=True, slots=True)
class OpenAIConnection:
    """A connection: the endpoint, the options, the wire format and the path of requests."""

    endpoint: Endpoint
    dialect: Dialect
    api: Api
    prefix: str = ""  # path before the method; `{model}` in it is replaced by the model
    query: str = ""

    def path(self, model: str) -> str:
        """Return the path of the generation method for `model`."""
        method = "/responses" if self.api == "responses" else "/chat/completions"
        return self.prefix.replace("{model}", quote(model, safe="")) + method + self.query


class CompatibleSettings(EndpointSettings):
    """Settings that every provider of this plugin has."""

    name: str | None = None  # a label for people, which is never sent
    images: bool = True  # False if the model accepts no images: it then gets a line of text instead of each


class OpenAISettings(CompatibleSettings):
    """Settings of `openai`, and of any compatible server."""

    api: Api | None = None  # wire format. None: Responses at OpenAI itself, Chat Completions at other servers.
    organization: str | None = None
    project: str | None = None
    documents: bool | None = None  # True if the server accepts PDFs. None: True at OpenAI, False at compatible servers.
    reasoning: bool | None = None  # True if the model reasons; None to judge by its name
    reasoning_summary: Literal["auto", "concise", "detailed"] | None = None
    """Form of the summary of the reasoning that is shown (Responses only)."""


def openai_connection(config: ProviderConfig) -> OpenAIConnection:
    """Return the connection to OpenAI or a compatible server; a server on this machine needs no key.

    Source: OpenAI API reference, "Introduction", section "Authentication"; its SDKs and the
    original Perstack read these variables.
    """
    settings, env = read_settings(OpenAISettings, config.setting), config.env
    base_url = choose_base_url(settings, env, "OPENAI_BASE_URL", OPENAI.address)
    identity = {
        "OpenAI-Organization": settings.organization or env.get("OPENAI_ORG_ID") or env.get("OPENAI_ORGANIZATION"),
        "OpenAI-Project": settings.project or env.get("OPENAI_PROJECT_ID") or env.get("OPENAI_PROJECT"),
    }
    headers = {name: value for name, value in identity.items() if value}
    key = read_key(env, "OPENAI_API_KEY")
    if key:
        headers["Authorization"] = f"Bearer {key}"
    headers.update({**headers_of_env(env, "OPENAI_CUSTOM_HEADERS"), **settings.headers})
    if not has_credential(headers) and not is_loopback(base_url):
        raise missing_key("openai", "OPENAI_API_KEY")
    profile = profile_at(base_url)
    api = settings.api or ("responses" if profile.speaks_responses else "chat")
    dialect = replace(
        dialect_of(
            settings,
            profile,
            "openai" if api == "responses" else owner_of("openai", base_url),
        ),
        takes_documents=profile.speaks_responses if settings.documents is None else settings.documents,
        reasoning=settings.reasoning,
        reasoning_summary=settings.reasoning_summary,
    )
    return OpenAIConnection(endpoint_of(base_url, headers, settings, api), dialect, api)


def has_credential(headers: Mapping[str, str]) -> bool:
    """Return whether a header carries a credential."""
    return bool(_CREDENTIALS & {name.lower() for name in headers})


def endpoint_of(base_url: str, headers: Mapping[str, str], settings: EndpointSettings, api: Api) -> Endpoint:
    """Return the endpoint at a checked address. With Responses nothing arrives during minutes of reasoning."""
    return Endpoint(base_url, headers, *settings.silences(thinks_silently=api == "responses"))


def dialect_of(settings: CompatibleSettings, profile: Profile, vendor: str) -> Dialect:
    """Return the options of a server that accepts no PDFs; `vendor` is the key of its opaque parts."""
    return Dialect(
        profile=profile,
        vendor=vendor,
        takes_images=settings.images,
        takes_documents=False,
        max_tokens=settings.max_tokens,
        temperature=settings.temperature,
        top_p=settings.top_p,
        structured_output=settings.structured_output,
    )


def owner_of(name: str, base_url: str) -> str:
    """Return the key of a server's opaque parts. It names the server and contains no secret."""
    return f"{name}@{urlsplit(base_url).hostname}"


# Provider `azure-openai`: deployments of OpenAI's models in one's own Azure resource.

_AZURE_KEYS = ("AZURE_OPENAI_API_KEY", "AZURE_API_KEY", "AZURE_OPENAI_AD_TOKEN")
_ENDPOINTS = ("AZURE_OPENAI_ENDPOINT", "AZURE_BASE_URL")
_RESOURCE = r"^[a-zA-Z0-9][a-zA-Z0-9-]{0,63}$"  # pattern of a resource name, which is the first label of its host name


class AzureSettings(CompatibleSettings):
    """Settings of `azure-openai`."""

    api: Api | None = None  # wire format. None: Responses; Chat Completions with deployment-based URLs.
    resource_name: str | None = Field(default=None, pattern=_RESOURCE)
    api_version: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]+$")
    use_deployment_based_urls: bool = False
    documents: bool = True
    reasoning: bool | None = None
    reasoning_summary: Literal["auto", "concise", "detailed"] | None = None


def azure_connection(config: ProviderConfig) -> OpenAIConnection:
    """Return the connection to a deployment at Azure, whose name is used as the model's.

    Source: Azure OpenAI documentation, "API version lifecycle" (the v1 API) and "REST API reference"; OpenAI's SDK
    for Azure, the AI SDK and the original Perstack read these variables.
    """
    settings, env = read_settings(AzureSettings, config.setting), config.env
    base_url = _azure_base_url(settings, env)
    headers = {**_azure_credential(env), **settings.headers}
    if not has_credential(headers) and not is_loopback(base_url):
        raise missing_key("azure-openai", "AZURE_OPENAI_API_KEY")
    api = settings.api or ("chat" if settings.use_deployment_based_urls else "responses")
    dialect = replace(
        dialect_of(
            settings,
            profile_named("azure-openai"),
            "azure-openai" if api == "responses" else owner_of("azure-openai", base_url),
        ),
        takes_documents=settings.documents,
        reasoning=settings.reasoning,
        reasoning_summary=settings.reasoning_summary,
    )
    prefix, query = _azure_path(settings, env, api)
    return OpenAIConnection(endpoint_of(base_url, headers, settings, api), dialect, api, prefix, query)


def _azure_base_url(settings: AzureSettings, env: Mapping[str, str]) -> str:
    resource = None if settings.base_url is not None else _azure_resource(settings, env)
    address = f"https://{resource}.openai.azure.com" if resource else ""
    variable = _endpoint_variable(env) or _ENDPOINTS[0]
    base_url = choose_base_url(settings, {} if resource else env, variable, address)
    base_url = base_url.removesuffix("/v1")
    return base_url if urlsplit(base_url).path else f"{base_url}/openai"


def _endpoint_variable(env: Mapping[str, str]) -> str | None:
    return next((name for name in _ENDPOINTS if env.get(name)), None)


def _azure_resource(settings: AzureSettings, env: Mapping[str, str]) -> str | None:
    if settings.resource_name is not None:
        return settings.resource_name
    if _endpoint_variable(env):
        return None
    resource = env.get("AZURE_RESOURCE_NAME", "").strip()
    if not resource:
        raise MissingCredential(
            "provider azure-openai has no address: set resourceName or baseUrl in [provider.setting],"
            " or AZURE_RESOURCE_NAME or AZURE_OPENAI_ENDPOINT in the environment or in .env"
        )
    if not re.fullmatch(_RESOURCE, resource):
        raise UsageError(
            "AZURE_RESOURCE_NAME is not the name of a resource: give the first word of its address,"
            " without .openai.azure.com"
        )
    return resource


def _azure_credential(env: Mapping[str, str]) -> dict[str, str]:
    key = read_key(env, "AZURE_OPENAI_API_KEY") or read_key(env, "AZURE_API_KEY")
    if key:
        return {"api-key": key}
    token = read_key(env, "AZURE_OPENAI_AD_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _azure_path(settings: AzureSettings, env: Mapping[str, str], api: Api) -> tuple[str, str]:
    """Return the path prefix and the query. The v1 API needs no version; the dated APIs before it do."""
    if not settings.use_deployment_based_urls:
        return "/v1", f"?api-version={settings.api_version}" if settings.api_version else ""
    version = settings.api_version or (env.get("OPENAI_API_VERSION") or env.get("AZURE_API_VERSION") or "").strip()
    if not version:
        message = "deployment-based URLs need a version, such as 2024-10-21: set it here or in OPENAI_API_VERSION"
        raise DefinitionError((Problem(message, "perstack.toml", key="provider.setting.apiVersion"),))
    return "/deployments/{model}" if api == "chat" else "", f"?api-version={quote(version)}"


# The other providers: Chat Completions at the addresses of their rows.


def profile_connection(profile: Profile, config: ProviderConfig) -> OpenAIConnection:
    """Return the connection to the endpoint of a row.

    A local server may use plain http, as is common in a local network; a credential is never sent over it to another
    machine.
    """
    settings, env = read_settings(CompatibleSettings, config.setting), config.env
    base_url = _profile_base_url(profile, settings, env)
    headers: dict[str, str] = {}
    key = next((key for name in profile.keys if (key := read_key(env, name))), None)
    is_safe = base_url.startswith("https:") or is_loopback(base_url)
    if key and is_safe:
        headers["Authorization"] = f"Bearer {key}"
    headers.update(settings.headers)
    if not is_safe and has_credential(headers):
        message = f"a credential is not sent over http://, where others could read it: use https://{base_url[7:]}"
        raise DefinitionError((Problem(message, "perstack.toml", key="provider.setting.headers"),))
    if not (profile.is_local or has_credential(headers) or is_loopback(base_url)):
        raise missing_key(profile.name, profile.keys[0])
    dialect = dialect_of(settings, profile, owner_of(profile.name, base_url))
    return OpenAIConnection(
        endpoint_of(base_url, headers, settings, "chat"), dialect, "chat", prefix="/v1" if profile.is_local else ""
    )


def _profile_base_url(profile: Profile, settings: EndpointSettings, env: Mapping[str, str]) -> str:
    """Return the base URL; for a local server without a final `/v1` or `/api`, which users may add."""
    default_variable = profile.address_variables[0]
    variable = next((name for name in profile.address_variables if env.get(name)), default_variable)
    if not profile.is_local:
        return choose_base_url(settings, env, variable, profile.address)
    environment = {variable: _server_url(env.get(variable, ""), urlsplit(profile.address).port)}
    base_url = choose_base_url(settings, environment, variable, profile.address, allow_plain=True)
    return re.sub(r"/(api|v1)$", "", base_url)


def _server_url(host: str, port: int | None) -> str:
    """Convert `host`, `host:port`, `:port` or an address to an address; empty for none. Source: Ollama, "FAQ"."""
    host = host.strip()
    if not host:
        return ""
    has_scheme = "//" in host
    if host.startswith(":"):
        host = f"localhost{host}"
    try:
        parts = urlsplit(host if has_scheme else f"http://{host}")
    except ValueError:
        return host  # the later check reports the error
    # The wildcard address that a server listens at is not an address to connect to.
    netloc = re.sub(r"^(0\.0\.0\.0|\[::\])(?=:|$)", "localhost", parts.netloc)
    if not has_scheme and not re.search(r":\d+$", netloc):
        netloc = f"{netloc}:{port}"
    return parts._replace(netloc=netloc).geturl()


_MODELS_TIMEOUT_S = 2.0
_MAX_MODELS_BYTES = 4_000_000


class _ServedModel(BaseModel):
    id: str = Field(max_length=500)


class _ServedModels(BaseModel):
    data: list[_ServedModel] = Field(max_length=10_000)


def served_models(profile: Profile, env: Mapping[str, str]) -> Sequence[OfferedModel]:
    """Return the models of a local server by name. Raises ProviderError without a valid answer.

    Source: OpenAI API reference, "List models"; Ollama documentation, "OpenAI compatibility", `/v1/models`.
    """
    import httpx

    endpoint = profile_connection(profile, ProviderConfig({}, env)).endpoint
    try:
        body = _fetch_model_list(f"{endpoint.base_url}/v1/models", endpoint.headers)
    except httpx.HTTPError as error:
        raise ProviderError(f"no server answers at {endpoint.base_url}: start it with `{profile.start}`") from error
    try:
        models = _ServedModels.model_validate_json(body)
    except ValidationError as error:
        raise ProviderError(f"the server at {endpoint.base_url} does not list models as {profile.name} does") from error
    return sorted((OfferedModel(model.id) for model in models.data), key=lambda model: model.name)


def _fetch_model_list(url: str, headers: Mapping[str, str]) -> bytes:
    """Return the response body, truncated above the maximum size of a model list."""
    import httpx

    body = b""
    with (
        httpx.Client(timeout=_MODELS_TIMEOUT_S, trust_env=not is_loopback(url)) as client,
        client.stream("GET", url, headers=dict(headers)) as answer,
    ):
        answer.raise_for_status()
        for chunk in answer.iter_bytes():
            body += chunk
            if len(body) > _MAX_MODELS_BYTES:
                break
    return body
