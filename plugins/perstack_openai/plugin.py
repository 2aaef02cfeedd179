"""Registration of the plugin with the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from typing_extensions import override

from perstack.dataclass import dataclass
from perstack.http_providers.provider import EndpointProviderFactory, PublishedPrices
from perstack.ports.hooks import hookimpl
from perstack.ports.provider import OfferedModel, Provider, ProviderConfig, ProviderFactory, ProviderTool
from perstack_openai.profiles import PLAIN, PROFILES, Profile

PLUGIN_API = 1


def _create(name: str, config: ProviderConfig) -> Provider:
    from perstack_openai.provider import create

    return create(name, config)


@dataclass(frozen=True, slots=True)
class LocalServerFactory(EndpointProviderFactory):
    """Factory of the provider for a server that the user runs, which can list its models."""

    profile: Profile = PLAIN
    is_asked_always: bool = False  # True if no other program uses its port, so that it is looked for without a variable

    @override
    def models(self, env: Mapping[str, str]) -> Sequence[OfferedModel] | None:
        if not (self.is_asked_always or self.is_configured(env)):
            return None
        from perstack_openai.endpoints import served_models

        return served_models(self.profile, env)


_STORES = frozenset({"vectorStoreIds"})

_HOSTED = {
    "openai": (
        ProviderTool("webSearch", options=frozenset({"maxUses", "allowedDomains"})),
        ProviderTool("fileSearch", options=_STORES, required=_STORES),
    )
}
"""Tools that the endpoint runs itself, by provider."""


def _create_factory(profile: Profile) -> ProviderFactory:
    prices = None if profile.price_list is None else PublishedPrices(profile.price_list)
    make = partial(_create, profile.name)
    if profile.is_local:
        return LocalServerFactory(
            profile.name,
            priority=profile.priority,
            how_to_configure=f"set {profile.address_variables[0]} to a server's address, and name one of its models",
            needs=(profile.address_variables,),
            is_vendor=False,  # a local server that only the definition names, not the user
            make=make,
            profile=profile,
            is_asked_always=profile.has_own_port,
            served_by=profile.start if profile.has_own_port else "",
        )
    how_to_configure, needs = f"set {profile.keys[0]}", [profile.keys]
    if not profile.address:
        how_to_configure = f"{how_to_configure} and {profile.address_variables[0]}, and name a deployment as the model"
        needs.append(profile.address_variables)
    return EndpointProviderFactory(
        profile.name,
        priority=profile.priority,
        low_model=profile.low_model,
        default_model=profile.default_model,
        high_model=profile.high_model,
        how_to_configure=how_to_configure,
        needs=tuple(needs),
        make=make,
        prices=prices,
        tools=_HOSTED.get(profile.name, ()),
        takes_any_address=profile.takes_any_address,
    )


FACTORIES = tuple(_create_factory(profile) for profile in PROFILES)


@hookimpl
def perstack_providers() -> Sequence[ProviderFactory]:
    return FACTORIES
