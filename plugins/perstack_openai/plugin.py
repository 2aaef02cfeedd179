"""Registration with the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perstack.dataclass import dataclass
from perstack.ports.hooks import hookimpl
from perstack.ports.provider import OfferedModel, Provider, ProviderConfig, ProviderFactory
from perstack_prices import PublishedPrices

_PRICES = PublishedPrices("openai")


@dataclass(frozen=True, slots=True)
class OpenAIProviderFactory:
    """What the plugin registers: one for each endpoint, of which `openai` is the first."""

    name: str = "openai"
    priority: int = 20
    default_model: str | None = "gpt-5-mini"
    how_to_configure: str = "set OPENAI_API_KEY"
    needs: tuple[tuple[str, ...], ...] = (("OPENAI_API_KEY",),)
    """Of each group, one variable must be set."""
    prices: PublishedPrices | None = _PRICES

    def is_configured(self, env: Mapping[str, str]) -> bool:
        """Whether the environment says all that is needed."""
        return all(any(env.get(variable, "").strip() for variable in group) for group in self.needs)

    def create(self, config: ProviderConfig) -> Provider:
        """Opens no connection yet.

        Raises MissingCredential without a key or an address, DefinitionError if a setting is wrong, UsageError if a
        variable is.
        """
        from perstack_openai.endpoints import create

        return create(self.name, config)


@dataclass(frozen=True, slots=True)
class OllamaProviderFactory(OpenAIProviderFactory):
    """The same, for a server on this machine, which can be asked what it has."""

    def models(self, env: Mapping[str, str]) -> Sequence[OfferedModel]:
        """Those that it has. Raises ProviderError if no server answers."""
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
    """Providers `openai`, `deepseek`, `azure-openai` and `ollama`."""
    return FACTORIES
