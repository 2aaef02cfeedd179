"""Registration of the plugin with the host."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.http_providers.provider import EndpointProviderFactory, PublishedPrices
from perstack.ports.hooks import hookimpl
from perstack.ports.provider import Provider, ProviderConfig, ProviderFactory, ProviderTool

PLUGIN_API = 1


def _create(config: ProviderConfig) -> Provider:
    from perstack_anthropic.provider import create

    return create(config)


FACTORY = EndpointProviderFactory(
    "anthropic",
    priority=10,
    low_model="claude-haiku-4-5",
    default_model="claude-sonnet-5",
    high_model="claude-opus-5",
    how_to_configure="set ANTHROPIC_API_KEY",
    needs=(("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),),
    make=_create,
    prices=PublishedPrices("anthropic"),
    tools=tuple(
        ProviderTool(name, options=frozenset({"maxUses", "allowedDomains", "blockedDomains"}))
        for name in ("webSearch", "webFetch")
    ),
)


@hookimpl
def perstack_providers() -> Sequence[ProviderFactory]:
    return [FACTORY]
