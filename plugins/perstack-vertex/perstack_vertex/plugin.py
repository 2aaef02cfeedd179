"""Registration of the plugin with the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perstack.dataclass import dataclass
from perstack.ports.hooks import hookimpl
from perstack.ports.provider import Provider, ProviderConfig, ProviderFactory
from perstack.support.prices import PublishedPrices
from perstack_vertex import LOCATIONS, PROJECTS, first_of, has_library

PLUGIN_API = 1

_PRICES = PublishedPrices("google")


@dataclass(frozen=True, slots=True)
class VertexProviderFactory(ProviderFactory):
    """Factory of provider `google-vertex`."""

    name: str = "google-vertex"
    priority: int = 70
    default_model: str | None = "gemini-3.8-flash"
    how_to_configure: str = "set GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION"
    prices: PublishedPrices = _PRICES

    def is_configured(self, env: Mapping[str, str]) -> bool:
        """Return whether the environment has project and location, and the credentials library is installed."""
        return bool(first_of(env, PROJECTS) and first_of(env, LOCATIONS)) and has_library()

    def create(self, config: ProviderConfig) -> Provider:
        """Create the provider without connecting yet.

        Raises MissingCredential without a project, a location, the library or the credentials file, DefinitionError for
        an invalid setting, UsageError for an invalid variable.
        """
        from perstack_vertex.provider import create

        return create(config)


@hookimpl
def perstack_providers() -> Sequence[ProviderFactory]:
    """Return the factory of provider `google-vertex`."""
    return [VertexProviderFactory()]
