"""Registration with the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perstack.dataclass import dataclass
from perstack.ports.hooks import hookimpl
from perstack.ports.provider import Provider, ProviderConfig, ProviderFactory
from perstack_google.variables import KEYS
from perstack_prices import PublishedPrices

_PRICES = PublishedPrices("google")


@dataclass(frozen=True, slots=True)
class GoogleProviderFactory:
    """What the plugin registers."""

    name: str = "google"
    priority: int = 30
    default_model: str | None = "gemini-3.8-flash"
    how_to_configure: str = "set GEMINI_API_KEY"
    prices: PublishedPrices = _PRICES

    def is_configured(self, env: Mapping[str, str]) -> bool:
        """Whether there is a key."""
        return any(env.get(name, "").strip() for name in KEYS)

    def create(self, config: ProviderConfig) -> Provider:
        """Opens no connection yet.

        Raises MissingCredential without a key, DefinitionError if a setting is wrong, UsageError if
        GOOGLE_GEMINI_BASE_URL is.
        """
        from perstack_google.provider import create

        return create(config)


@hookimpl
def perstack_providers() -> Sequence[ProviderFactory]:
    """Provider `google`."""
    return [GoogleProviderFactory()]
