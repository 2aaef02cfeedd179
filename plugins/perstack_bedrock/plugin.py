"""Registration with the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from perstack.dataclass import dataclass
from perstack.ports.hooks import hookimpl
from perstack.ports.provider import Provider, ProviderConfig, ProviderFactory
from perstack_bedrock.variables import KEYS, REGIONS
from perstack_prices import PublishedPrices

_PRICES = PublishedPrices("aws")


@dataclass(frozen=True, slots=True)
class BedrockProviderFactory:
    """What the plugin registers."""

    name: str = "amazon-bedrock"
    priority: int = 60
    default_model: str | None = None
    how_to_configure: str = "set AWS_REGION, and AWS_BEARER_TOKEN_BEDROCK or AWS_ACCESS_KEY_ID"
    prices: PublishedPrices = _PRICES

    def is_configured(self, env: Mapping[str, str]) -> bool:
        """Whether a key and a region, or a profile, are in the environment, and the library is installed."""
        has_key = _any(env, KEYS) and _any(env, REGIONS)
        return (has_key or _any(env, ("AWS_PROFILE",))) and find_spec("botocore") is not None

    def create(self, config: ProviderConfig) -> Provider:
        """Opens no connection yet.

        Raises MissingCredential without credentials, a region or the library, DefinitionError if a setting is wrong,
        UsageError if a variable is.
        """
        from perstack_bedrock.provider import create

        return create(config)


def _any(env: Mapping[str, str], names: Sequence[str]) -> bool:
    return any(env.get(name, "").strip() for name in names)


@hookimpl
def perstack_providers() -> Sequence[ProviderFactory]:
    """Provider `amazon-bedrock`."""
    return [BedrockProviderFactory()]
