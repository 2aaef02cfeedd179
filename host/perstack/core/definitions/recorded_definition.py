"""Definitions that iterations and queued Jobs record, without secrets, and their reconstruction as a project."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from pydantic import Field

from perstack.core.base.records import falsy, fields_of
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.models import Price
from perstack.core.definitions.permissions import Permissions
from perstack.core.definitions.project import Project, with_delegates
from perstack.core.definitions.sandbox import Sandbox
from perstack.core.definitions.secrets import with_secrets, without_secrets
from perstack.core.definitions.settings import Budget, ContextKeys, Overrides, ProviderSetting, SharedKeys
from perstack.core.definitions.skills import find_base_skill, picked_changing_tools

_Definition = TypeVar("_Definition", bound="SeriesDefinition")


class SeriesDefinition(SharedKeys):
    """Expert with all Experts that it may delegate to, and the project's settings that hold for them."""

    experts: tuple[Expert, ...]  # the Expert to run comes first
    models: dict[str, str | tuple[str, ...]] = Field(default_factory=dict, exclude_if=falsy)
    provider: str | None = None
    sandbox: Sandbox | None = None
    permissions: Permissions | None = None  # the project's at that time; they hold in addition to today's
    budget: Budget | None = None
    prices: tuple[Price, ...] = Field(default=(), exclude_if=falsy)  # prices that take precedence over today's
    chosen: Overrides = Overrides()

    first_fields: ClassVar = (
        *ContextKeys.model_fields,
        *("experts", "model", "models", "provider", "reasoning_budget", "max_steps", "max_depth", "max_repeats"),
        *("max_retries", "timeout", "retry_timeout", "tool_search", "runtime", "sandbox", "permissions", "budget"),
        *("agents_md", "mask_secrets", "prices", "chosen"),
    )


def definition_of(project: Project, expert: Expert, chosen: Overrides) -> SeriesDefinition:
    """Return the definition to record for one Expert of a project."""
    members = with_delegates(project, (expert.key,))
    # with tools to change itself an Expert may add every other one, and the skills of each
    if any(picked_changing_tools(find_base_skill(item.skills)) for item in members):
        members = with_delegates(project, (expert.key, *project.experts))
    experts = tuple(without_secrets(item) for item in members)
    values = {"experts": experts, "provider": _provider_name(project.provider), "chosen": chosen.without_excluded()}
    return SeriesDefinition(**fields_of(project, SeriesDefinition, **values))


def restore_project(definition: SeriesDefinition, todays_project: Project) -> Project:
    """Return the project as it was recorded, with today's secrets, provider settings and location."""
    settings = {name: getattr(definition, name) for name in SeriesDefinition.model_fields if name != "chosen"}
    experts = {expert.key: _with_secrets(expert, todays_project) for expert in definition.experts}
    return todays_project.model_copy(
        update={
            **settings,
            "experts": experts,
            "provider": _todays_setting(definition.provider, todays_project, None),
            "permissions": todays_project.permissions,
            "recorded_permissions": definition.permissions,
            "prices": (*definition.prices, *todays_project.prices),
        }
    )


_NO_SHARED_LIMITS: dict[str, Any] = dict.fromkeys(("max_steps", *Budget.model_fields))


def without_job_limits(definition: SeriesDefinition) -> SeriesDefinition:
    """Return the definition without limits of a Job that has begun: its log has them, and may have raised them."""
    chosen = replace(definition.chosen, max_retries=None, timeout=None, compaction=None, **_NO_SHARED_LIMITS)
    return definition.model_copy(update={"chosen": chosen})


def without_shared_limits(definition: _Definition) -> _Definition:
    """Return the definition without the limits that a Job's Runs share: its log has them, and may have raised them."""
    chosen = replace(definition.chosen, **_NO_SHARED_LIMITS)
    return definition.model_copy(update={"chosen": chosen})


def _with_secrets(recorded_expert: Expert, todays_project: Project) -> Expert:
    todays_expert = todays_project.experts.get(recorded_expert.key)
    provider = _todays_setting(_provider_name(recorded_expert.provider), todays_project, todays_expert)
    return with_secrets(recorded_expert, todays_expert).model_copy(update={"provider": provider})


def _todays_setting(name: str | None, todays_project: Project, expert: Expert | None) -> ProviderSetting | None:
    """Return today's settings of a provider: the Expert's, else the project's, else empty ones."""
    if name is None:
        return None
    for setting in (None if expert is None else expert.provider, todays_project.provider):
        if setting is not None and setting.provider_name == name:
            return setting
    return ProviderSetting(provider_name=name)


def _provider_name(setting: ProviderSetting | None) -> str | None:
    return None if setting is None else setting.provider_name
