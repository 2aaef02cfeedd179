"""What iterations record of the definition that they are started with, and the same in force again.

As with a Run, secrets are left out: they are those of today's perstack.toml.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from pydantic import Field

from perstack.core.base import falsy
from perstack.core.context import ContextKeys
from perstack.core.definition_secrets import with_secrets, without_secrets
from perstack.core.definitions import Budget, Expert, Project, ProviderSetting, ReasoningBudget, ToolSearch
from perstack.core.overrides import Overrides
from perstack.core.policy.permissions import Permissions
from perstack.core.price import Price
from perstack.core.sandbox import Sandbox
from perstack.core.teams import with_delegates

_Definition = TypeVar("_Definition", bound="SeriesDefinition")


class SeriesDefinition(ContextKeys):
    """An Expert as it is run: it, all that it may delegate to, and what holds for all of them."""

    experts: tuple[Expert, ...]
    """The Expert itself is the first."""
    model: str | tuple[str, ...] | None = None
    models: dict[str, str | tuple[str, ...]] = Field(default_factory=dict, exclude_if=falsy)
    provider: str | None = None
    reasoning_budget: ReasoningBudget | None = None
    max_steps: int | None = None
    max_depth: int | None = None
    max_repeats: int | None = None
    max_retries: int | None = None
    timeout: int | None = None
    retry_timeout: int | None = None
    tool_search: ToolSearch | None = None
    runtime: str | None = None
    sandbox: Sandbox | None = None
    permissions: Permissions | None = None
    """The project's, which hold besides today's; an Expert has its own."""
    budget: Budget | None = None
    agents_md: bool | None = None
    prices: tuple[Price, ...] = Field(default=(), exclude_if=falsy)
    """They precede today's."""
    chosen: Overrides = Overrides()


def definition_of(project: Project, expert: Expert, chosen: Overrides) -> SeriesDefinition:
    """What is recorded of an Expert of a project."""
    return SeriesDefinition(
        experts=tuple(without_secrets(one) for one in with_delegates(project, (expert.key,))),
        model=project.model,
        models=project.models,
        provider=_name(project.provider),
        reasoning_budget=project.reasoning_budget,
        max_steps=project.max_steps,
        max_depth=project.max_depth,
        max_repeats=project.max_repeats,
        max_retries=project.max_retries,
        timeout=project.timeout,
        retry_timeout=project.retry_timeout,
        tool_search=project.tool_search,
        runtime=project.runtime,
        sandbox=project.sandbox,
        permissions=project.permissions,
        budget=project.budget,
        agents_md=project.agents_md,
        prices=project.prices,
        chosen=chosen.recorded(),
        **_context_keys(project),
    )


def _context_keys(written: ContextKeys) -> dict[str, Any]:
    return {name: getattr(written, name) for name in ContextKeys.model_fields}


def in_force(definition: SeriesDefinition, today: Project) -> Project:
    """The project as it was recorded, with today's secrets, settings of providers, and place."""
    return today.model_copy(
        update={
            "experts": {one.key: _with_secrets(one, today) for one in definition.experts},
            "model": definition.model,
            "models": definition.models,
            "provider": _setting(definition.provider, today, None),
            "reasoning_budget": definition.reasoning_budget,
            "max_steps": definition.max_steps,
            "max_depth": definition.max_depth,
            "max_repeats": definition.max_repeats,
            "max_retries": definition.max_retries,
            "timeout": definition.timeout,
            "retry_timeout": definition.retry_timeout,
            "tool_search": definition.tool_search,
            "runtime": definition.runtime,
            "sandbox": definition.sandbox,
            "recorded_permissions": definition.permissions,
            "budget": definition.budget,
            "agents_md": definition.agents_md,
            "prices": (*definition.prices, *today.prices),
            **_context_keys(definition),
        }
    )


def for_begun(definition: SeriesDefinition) -> SeriesDefinition:
    """The same for a Job that has begun: it has limits of its own, which may have been raised since."""
    chosen = replace(
        definition.chosen,
        max_steps=None,
        max_retries=None,
        timeout=None,
        max_cost=None,
        max_tokens=None,
        max_time=None,
        max_tool_calls=None,
        compaction=None,
    )
    return definition.model_copy(update={"chosen": chosen})


def for_queued(definition: _Definition) -> _Definition:
    """The same for a Job whose Coordinator has begun, and which begins delegates by what was chosen then.

    What all its Runs share stands in its log, and may have been raised since.
    """
    chosen = replace(
        definition.chosen, max_steps=None, max_cost=None, max_tokens=None, max_time=None, max_tool_calls=None
    )
    return definition.model_copy(update={"chosen": chosen})


def _with_secrets(recorded: Expert, today: Project) -> Expert:
    now = today.experts.get(recorded.key)
    return with_secrets(recorded, now).model_copy(update={"provider": _setting(_name(recorded.provider), today, now)})


def _setting(name: str | None, today: Project, expert: Expert | None) -> ProviderSetting | None:
    """The nearest of today's tables for that provider."""
    if name is None:
        return None
    for setting in (None if expert is None else expert.provider, today.provider):
        if setting is not None and setting.provider_name == name:
            return setting
    return ProviderSetting(provider_name=name)


def _name(setting: ProviderSetting | None) -> str | None:
    return None if setting is None else setting.provider_name
