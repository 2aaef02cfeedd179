"""Registration of the plugin with the host."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.http_providers.provider import EndpointProviderFactory, PublishedPrices
from perstack.ports.hooks import hookimpl
from perstack.ports.provider import Provider, ProviderConfig, ProviderFactory
from perstack_bedrock import KEYS, LIBRARIES, PROFILE, REGIONS

PLUGIN_API = 1


def _create(config: ProviderConfig) -> Provider:
    from perstack_bedrock.provider import create

    return create(config)


FACTORY = EndpointProviderFactory(
    "amazon-bedrock",
    priority=60,
    default_model=None,
    how_to_configure="set AWS_REGION, and AWS_BEARER_TOKEN_BEDROCK or AWS_ACCESS_KEY_ID",
    needs=((*KEYS, PROFILE), (*REGIONS, PROFILE)),
    make=_create,
    prices=PublishedPrices("aws"),
    libraries=LIBRARIES,
)


@hookimpl
def perstack_providers() -> Sequence[ProviderFactory]:
    return [FACTORY]
