"""Registration of the plugin with the host."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.http_providers.provider import EndpointProviderFactory, PublishedPrices
from perstack.ports.hooks import hookimpl
from perstack.ports.provider import Provider, ProviderConfig, ProviderFactory, ProviderTool
from perstack_google import KEYS

PLUGIN_API = 1


def _create(config: ProviderConfig) -> Provider:
    from perstack_google.provider import create

    return create(config)


FACTORY = EndpointProviderFactory(
    "google",
    priority=30,
    low_model="gemini-3.5-flash-lite",
    default_model="gemini-3.8-flash",
    high_model="gemini-2.5-pro",
    how_to_configure="set GEMINI_API_KEY",
    needs=(KEYS,),
    make=_create,
    prices=PublishedPrices("google"),
    tools=(
        ProviderTool("webSearch", "googleSearch"),
        ProviderTool("webFetch", "urlContext"),
        ProviderTool("codeExecution"),
    ),
)


@hookimpl
def perstack_providers() -> Sequence[ProviderFactory]:
    return [FACTORY]
