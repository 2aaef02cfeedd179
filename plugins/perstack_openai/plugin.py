"""Registration of the plugin with the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from typing_extensions import override

from perstack.dataclass import dataclass
from perstack.ports.hooks import hookimpl
from perstack.ports.provider import OfferedModel, Provider, ProviderConfig, ProviderFactory, ProviderTool
from perstack.support.http.provider import EndpointProviderFactory, PublishedPrices

PLUGIN_API = 1


def _create(name: str, config: ProviderConfig) -> Provider:
    from perstack_openai.provider import create

    return create(name, config)


@dataclass(frozen=True, slots=True)
class OllamaProviderFactory(EndpointProviderFactory):
    """Factory of `ollama`, whose server can list its models."""

    @override
    def models(self, env: Mapping[str, str]) -> Sequence[OfferedModel]:
        from perstack_openai.endpoints import ollama_models

        return ollama_models(env)


_STORES = frozenset({"vectorStoreIds"})

FACTORIES = (
    EndpointProviderFactory(
        "openai",
        priority=20,
        default_model="gpt-5-mini",
        how_to_configure="set OPENAI_API_KEY",
        needs=(("OPENAI_API_KEY",),),
        make=partial(_create, "openai"),
        prices=PublishedPrices("openai"),
        tools=(
            ProviderTool("webSearch", options=frozenset({"maxUses", "allowedDomains"})),
            ProviderTool("fileSearch", options=_STORES, required=_STORES),
        ),
    ),
    EndpointProviderFactory(
        "deepseek",
        priority=40,
        default_model="deepseek-flash",
        how_to_configure="set DEEPSEEK_API_KEY",
        needs=(("DEEPSEEK_API_KEY",),),
        make=partial(_create, "deepseek"),
        prices=PublishedPrices("deepseek"),
    ),
    EndpointProviderFactory(
        "azure-openai",
        priority=50,
        default_model=None,
        how_to_configure="set AZURE_OPENAI_API_KEY and AZURE_RESOURCE_NAME, and name a deployment as the model",
        needs=(
            ("AZURE_OPENAI_API_KEY", "AZURE_API_KEY", "AZURE_OPENAI_AD_TOKEN"),
            ("AZURE_RESOURCE_NAME", "AZURE_OPENAI_ENDPOINT", "AZURE_BASE_URL"),
        ),
        make=partial(_create, "azure-openai"),
        prices=PublishedPrices("azure"),
    ),
    OllamaProviderFactory(
        "ollama",
        priority=90,
        default_model=None,
        how_to_configure="set OLLAMA_BASE_URL to a server's address, and name one of its models",
        needs=(("OLLAMA_BASE_URL", "OLLAMA_HOST"),),
        is_vendor=False,  # a server on this machine, which the definition would make the user call
        make=partial(_create, "ollama"),
    ),
)


@hookimpl
def perstack_providers() -> Sequence[ProviderFactory]:
    """Return the factories of `openai`, `deepseek`, `azure-openai` and `ollama`."""
    return FACTORIES
