"""Registration with the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perstack.dataclass import dataclass
from perstack.ports.hooks import hookimpl
from perstack.ports.provider import Provider, ProviderConfig, ProviderFactory
from perstack_prices import PublishedPrices

_PRICES = PublishedPrices("anthropic")


@dataclass(frozen=True, slots=True)
class AnthropicProviderFactory:
    """What the plugin registers."""

    name: str = "anthropic"
    priority: int = 10
    default_model: str | None = "claude-sonnet-5"
    how_to_configure: str = "set ANTHROPIC_API_KEY"
    prices: PublishedPrices = _PRICES

    def is_configured(self, env: Mapping[str, str]) -> bool:
        """Whether there is a key."""
        return any(env.get(name, "").strip() for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"))

    def create(self, config: ProviderConfig) -> Provider:
        """Opens no connection yet.

        Raises MissingCredential without a key, DefinitionError if a setting is wrong, UsageError if
        ANTHROPIC_BASE_URL is.
        """
        from perstack_anthropic.provider import create

        return create(config)


@hookimpl
def perstack_providers() -> Sequence[ProviderFactory]:
    """Provider `anthropic`."""
    return [AnthropicProviderFactory()]
