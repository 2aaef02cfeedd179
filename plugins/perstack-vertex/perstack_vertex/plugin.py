"""Registration of the plugin with the host."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.http_providers.provider import EndpointProviderFactory, PublishedPrices
from perstack.ports.hooks import hookimpl
from perstack.ports.provider import Provider, ProviderConfig, ProviderFactory
from perstack_vertex import LIBRARIES, LOCATIONS, PROJECTS

PLUGIN_API = 1


def _create(config: ProviderConfig) -> Provider:
    from perstack_vertex.provider import create

    return create(config)


FACTORY = EndpointProviderFactory(
    "google-vertex",
    priority=70,
    low_model="gemini-3.5-flash-lite",
    default_model="gemini-3.8-flash",
    high_model="gemini-2.5-pro",
    how_to_configure="set GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION",
    needs=(PROJECTS, LOCATIONS),
    make=_create,
    prices=PublishedPrices("google"),
    libraries=LIBRARIES,
)


@hookimpl
def perstack_providers() -> Sequence[ProviderFactory]:
    return [FACTORY]
