"""Registration of the plugin with the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perstack.dataclass import dataclass
from perstack.ports.hooks import hookimpl
from perstack.ports.provider import Provider, ProviderConfig, ProviderFactory
from perstack.support.prices import PublishedPrices

PLUGIN_API = 1

_PRICES = PublishedPrices("anthropic")


@dataclass(frozen=True, slots=True)
class AnthropicProviderFactory(ProviderFactory):
    """Factory of provider `anthropic`."""

    name: str = "anthropic"
    priority: int = 10
    default_model: str | None = "claude-sonnet-5"
    how_to_configure: str = "set ANTHROPIC_API_KEY"
    prices: PublishedPrices = _PRICES

    def is_configured(self, env: Mapping[str, str]) -> bool:
        """Return whether the environment has a key."""
        return any(env.get(name, "").strip() for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"))

    def create(self, config: ProviderConfig) -> Provider:
        """Create the provider without connecting yet.

        Raises MissingCredential without a key, DefinitionError for an invalid setting, UsageError for an invalid
        ANTHROPIC_BASE_URL.
        """
        from perstack_anthropic.provider import create

        return create(config)


@hookimpl
def perstack_providers() -> Sequence[ProviderFactory]:
    """Return the factory of provider `anthropic`."""
    return [AnthropicProviderFactory()]
