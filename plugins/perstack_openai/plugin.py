"""Registration of the plugin with the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perstack.dataclass import dataclass
from perstack.ports.hooks import hookimpl
from perstack.ports.provider import OfferedModel, Provider, ProviderConfig, ProviderFactory
from perstack.support.prices import PublishedPrices

PLUGIN_API = 1

_PRICES = PublishedPrices("openai")


@dataclass(frozen=True, slots=True)
class OpenAIProviderFactory(ProviderFactory):
    """Factory of one provider of this plugin."""

    name: str = "openai"
    priority: int = 20
    default_model: str | None = "gpt-5-mini"
    how_to_configure: str = "set OPENAI_API_KEY"
    needs: tuple[tuple[str, ...], ...] = (("OPENAI_API_KEY",),)
    """Groups of variables; one of each group must be set."""
    prices: PublishedPrices | None = _PRICES

    def is_configured(self, env: Mapping[str, str]) -> bool:
        """Return whether the environment has all required variables."""
        return all(any(env.get(variable, "").strip() for variable in group) for group in self.needs)

    def create(self, config: ProviderConfig) -> Provider:
        """Create the provider without connecting yet.

        Raises MissingCredential without a key or an address, DefinitionError for an invalid setting, UsageError for an
        invalid variable.
        """
        from perstack_openai.provider import create

        return create(self.name, config)


@dataclass(frozen=True, slots=True)
class OllamaProviderFactory(OpenAIProviderFactory):
    """Factory of `ollama`, whose server can list its models."""

    def models(self, env: Mapping[str, str]) -> Sequence[OfferedModel]:
        """Return the server's models. Raises ProviderError if no server answers."""
        from perstack_openai.ollama import models

        return models(env)


FACTORIES = (
    OpenAIProviderFactory(),
    OpenAIProviderFactory(
        "deepseek",
        priority=40,
        default_model="deepseek-flash",
        how_to_configure="set DEEPSEEK_API_KEY",
        needs=(("DEEPSEEK_API_KEY",),),
        prices=PublishedPrices("deepseek"),
    ),
    OpenAIProviderFactory(
        "azure-openai",
        priority=50,
        default_model=None,
        how_to_configure="set AZURE_OPENAI_API_KEY and AZURE_RESOURCE_NAME, and name a deployment as the model",
        needs=(
            ("AZURE_OPENAI_API_KEY", "AZURE_API_KEY", "AZURE_OPENAI_AD_TOKEN"),
            ("AZURE_RESOURCE_NAME", "AZURE_OPENAI_ENDPOINT", "AZURE_BASE_URL"),
        ),
        prices=PublishedPrices("azure"),
    ),
    OllamaProviderFactory(
        "ollama",
        priority=90,
        default_model=None,
        how_to_configure="set OLLAMA_BASE_URL to a server's address, and name one of its models",
        needs=(("OLLAMA_BASE_URL", "OLLAMA_HOST"),),
        prices=None,
    ),
)


@hookimpl
def perstack_providers() -> Sequence[ProviderFactory]:
    """Return the factories of `openai`, `deepseek`, `azure-openai` and `ollama`."""
    return FACTORIES
