"""Registration of the plugin with the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from perstack.dataclass import dataclass
from perstack.ports.hooks import hookimpl
from perstack.ports.provider import Provider, ProviderConfig, ProviderFactory
from perstack.support.prices import PublishedPrices
from perstack_bedrock import KEYS, REGIONS

PLUGIN_API = 1

_PRICES = PublishedPrices("aws")


@dataclass(frozen=True, slots=True)
class BedrockProviderFactory(ProviderFactory):
    """Factory of provider `amazon-bedrock`."""

    name: str = "amazon-bedrock"
    priority: int = 60
    default_model: str | None = None
    how_to_configure: str = "set AWS_REGION, and AWS_BEARER_TOKEN_BEDROCK or AWS_ACCESS_KEY_ID"
    prices: PublishedPrices = _PRICES

    def is_configured(self, env: Mapping[str, str]) -> bool:
        """Return whether the environment has a key and a region, or a profile, and botocore is installed."""
        has_key = _any(env, KEYS) and _any(env, REGIONS)
        return (has_key or _any(env, ("AWS_PROFILE",))) and find_spec("botocore") is not None

    def create(self, config: ProviderConfig) -> Provider:
        """Create the provider without connecting yet.

        Raises MissingCredential without credentials, a region or the library, DefinitionError for an invalid setting,
        UsageError for an invalid variable.
        """
        from perstack_bedrock.provider import create

        return create(config)


def _any(env: Mapping[str, str], names: Sequence[str]) -> bool:
    return any(env.get(name, "").strip() for name in names)


@hookimpl
def perstack_providers() -> Sequence[ProviderFactory]:
    """Return the factory of provider `amazon-bedrock`."""
    return [BedrockProviderFactory()]
