"""Registration of the plugin with the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perstack.dataclass import dataclass
from perstack.ports.hooks import hookimpl
from perstack.ports.provider import Provider, ProviderConfig, ProviderFactory
from perstack.support.prices import PublishedPrices
from perstack_google import KEYS

PLUGIN_API = 1

_PRICES = PublishedPrices("google")


@dataclass(frozen=True, slots=True)
class GoogleProviderFactory(ProviderFactory):
    """Factory of provider `google`."""

    name: str = "google"
    priority: int = 30
    default_model: str | None = "gemini-3.8-flash"
    how_to_configure: str = "set GEMINI_API_KEY"
    prices: PublishedPrices = _PRICES

    def is_configured(self, env: Mapping[str, str]) -> bool:
        """Return whether the environment has a key."""
        return any(env.get(name, "").strip() for name in KEYS)

    def create(self, config: ProviderConfig) -> Provider:
        """Create the provider without connecting yet.

        Raises MissingCredential without a key, DefinitionError for an invalid setting, UsageError for an invalid
        GOOGLE_GEMINI_BASE_URL.
        """
        from perstack_google.provider import create

        return create(config)


@hookimpl
def perstack_providers() -> Sequence[ProviderFactory]:
    """Return the factory of provider `google`."""
    return [GoogleProviderFactory()]
