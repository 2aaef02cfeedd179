"""Which providers can be used here, and which models they have."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from perstack.core.overrides import RECORDED
from perstack.dataclass import dataclass
from perstack.engine.setup import Setup
from perstack.errors import PerstackError
from perstack.ports.provider import OfferedModel, ProviderFactory, offered_models

_SECONDS = 10.0
"""That a provider may take to list its models."""


@dataclass(frozen=True, slots=True)
class ProviderState:
    """One provider on this machine."""

    name: str
    is_configured: bool
    """Whether the environment has all that it needs, a key for example."""
    is_usable: bool
    """Whether it is configured, or is a server that needs no setting and answers."""
    is_default: bool
    """Whether a Run that names no provider uses it."""
    how_to_configure: str
    default_model: str | None
    models: tuple[OfferedModel, ...] = ()
    problem: str = ""
    """Why its models cannot be listed."""


async def provider_states(setup: Setup) -> tuple[ProviderState, ...]:
    """In the order in which they are tried, the default first.

    What plays recordings has no model to choose: it is among them only where it is the default.
    """
    factories = sorted(setup.plugins.providers.values(), key=lambda factory: factory.priority)
    default = _default(setup, factories)
    factories = [factory for factory in factories if factory.name != RECORDED or default == RECORDED]
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(_state(one, setup.env, one.name == default)) for one in factories]
    return tuple(sorted((task.result() for task in asked), key=lambda state: not state.is_default))


def _default(setup: Setup, factories: Sequence[ProviderFactory]) -> str | None:
    """The one that is named for all Experts, or else the first that is configured."""
    if setup.overrides.provider is not None:
        return setup.overrides.provider
    if setup.project.provider is not None:
        return setup.project.provider.provider_name
    return next((factory.name for factory in factories if factory.is_configured(setup.env)), None)


async def _state(factory: ProviderFactory, env: Mapping[str, str], is_default: bool) -> ProviderState:
    # a recording is named in the settings, and never in the environment
    is_configured = factory.is_configured(env) or factory.name == RECORDED
    models, problem = tuple[OfferedModel, ...](), ""
    try:
        models = tuple(await asyncio.wait_for(asyncio.to_thread(offered_models, factory, env), _SECONDS))
    except PerstackError as error:
        problem = str(error)
    except TimeoutError:
        problem = f"gave no list of models in {_SECONDS:.0f} s"
    return ProviderState(
        name=factory.name,
        is_configured=is_configured,
        is_usable=is_configured or (bool(models) and hasattr(factory, "models")),
        is_default=is_default,
        how_to_configure=factory.how_to_configure,
        default_model=factory.default_model,
        models=models,
        problem=problem,
    )
