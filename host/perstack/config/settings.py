"""Resolve model, provider and limits of one Run: options before Expert's keys before the file's before defaults."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TypeVar, get_args

from pydantic.alias_generators import to_snake

from perstack.core.definitions.experts import Expert
from perstack.core.definitions.models import ModelChoice, Models, UnknownName, wanted
from perstack.core.definitions.project import Project
from perstack.core.definitions.sandbox import SandboxPolicy, policy_of, runtime_of
from perstack.core.definitions.settings import (
    Budget,
    Compaction,
    CompactionExpert,
    Limits,
    Overrides,
    ProviderSetting,
    ReasoningBudget,
    lower,
)
from perstack.core.definitions.settings import policy_of as context_policy_of
from perstack.core.runs.events import StartRun
from perstack.core.runs.facts import Override
from perstack.core.runs.retries_and_fallbacks import models_of
from perstack.dataclass import dataclass
from perstack.errors import UsageError

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Candidates:
    """Models from one place, each a fallback for the one before."""

    models: tuple[ModelChoice, ...]
    is_of_provider: bool  # True if names without a provider are models of the chosen provider
    takes_others: bool  # True if names with another provider count too. False if the caller asked for a provider


@dataclass(frozen=True, slots=True)
class ChosenSettings:
    """Settings of a Run from options and definitions; settings that nobody chose stay open."""

    models: tuple[Candidates, ...] = ()  # candidates, the nearest first; empty for the provider's default model
    provider: ProviderSetting | None = None  # name of the provider; None for the first usable one
    reasoning_budget: ReasoningBudget | None = None
    limits: Limits = field(default_factory=Limits)


NO_OVERRIDES = Overrides()

DEFAULT_MAX_STEPS = 100
DEFAULT_MAX_DEPTH = 8
DEFAULT_MAX_REPEATS = 10
DEFAULT_RESULT_LIMIT = 20_000


def chosen(overrides: Overrides) -> tuple[Override, ...]:
    """Return the names of the settings that the caller chose, as they are recorded."""
    every: tuple[Override, ...] = get_args(Override)
    return tuple(name for name in every if not _is_left_open(getattr(overrides, to_snake(name))))


def _is_left_open(value: object) -> bool:
    return value is None or value is False


def recalled(overrides: Overrides, start: StartRun) -> Overrides:
    """Return the caller's settings; those left open keep the choice recorded when the Run started."""
    given = set(start.overrides)
    keeps_model = "model" in given and overrides.provider in (None, start.provider)
    limits = start.limits
    budget = limits.budget or Budget()
    return replace(
        overrides,
        model=overrides.model or (_models_again(start) if keeps_model else None),
        provider=overrides.provider or (start.provider if "provider" in given else None),
        reasoning_budget=_first(
            overrides.reasoning_budget, start.reasoning_budget if "reasoningBudget" in given else None
        ),
        max_steps=_first(overrides.max_steps, (limits.max_steps or 0) if "maxSteps" in given else None),
        max_retries=_first(overrides.max_retries, limits.max_retries if "maxRetries" in given else None),
        timeout=_first(overrides.timeout, limits.timeout if "timeout" in given else None),
        strict_skills=overrides.strict_skills or "strictSkills" in given,
        max_cost=_first(overrides.max_cost, budget.max_cost if "maxCost" in given else None),
        max_tokens=_first(overrides.max_tokens, budget.max_tokens if "maxTokens" in given else None),
        max_time=_first(overrides.max_time, budget.max_time if "maxTime" in given else None),
        max_tool_calls=_first(overrides.max_tool_calls, budget.max_tool_calls if "maxToolCalls" in given else None),
        compaction=_first(overrides.compaction, _compaction_of(limits) if "compaction" in given else None),
    )


def resolve_settings(
    project: Project, expert: Expert, overrides: Overrides = NO_OVERRIDES, *, steps_before: int = 0
) -> ChosenSettings:
    """Return the settings of a Run of this Expert. Raises UsageError for a name missing in `[models]`.

    The default step limit counts from `steps_before`, the steps that the Job has already.

    A model and a `setting` belong to the provider that they were written for: asking for another provider drops both,
    except for entries of a list that name that provider. A model without a named provider fits any. The nearest
    `[provider]` of the wanted name applies as a whole; tables of two levels are not merged.
    """
    provider = resolve_provider(project, expert, overrides)
    defaults = Limits()
    return ChosenSettings(
        models=_models(project, expert, provider, overrides),
        provider=provider,
        reasoning_budget=_first(overrides.reasoning_budget, expert.reasoning_budget, project.reasoning_budget),
        limits=Limits(
            max_steps=_bound(
                DEFAULT_MAX_STEPS + steps_before, overrides.max_steps, expert.max_steps, project.max_steps
            ),
            max_depth=_bound(DEFAULT_MAX_DEPTH, expert.max_depth, project.max_depth),
            budget=overrides.budget_over(lower(expert.budget, project.budget)),
            max_repeats=_bound(DEFAULT_MAX_REPEATS, expert.max_repeats, project.max_repeats),
            max_retries=_given(defaults.max_retries, overrides.max_retries, expert.max_retries, project.max_retries),
            timeout=_given(defaults.timeout, overrides.timeout, expert.timeout, project.timeout),
            retry_timeout=_given(defaults.retry_timeout, expert.retry_timeout, project.retry_timeout),
            context=context_policy_of(expert, project, overrides.compaction),
        ),
    )


def resolve_sandbox(project: Project, expert: Expert, overrides: Overrides = NO_OVERRIDES) -> SandboxPolicy | None:
    """Return the sandbox policy of this Expert's programs; None if nothing sets one."""
    if overrides.runtime is None and expert.runtime is None and project.runtime is None and project.sandbox is None:
        return None
    # a runtime that the caller names must exist; only names in files have the original's aliases
    runtime = overrides.runtime or runtime_of(expert.runtime, project.runtime)
    return policy_of(runtime, project.sandbox)


def _compaction_of(limits: Limits) -> Compaction:
    policy = limits.context
    if policy is not None and policy.expert is not None:
        return CompactionExpert(expert=policy.expert)
    return "off" if policy is None or policy.is_off else "auto"


def _first(*values: _T | None) -> _T | None:
    return next((value for value in values if value is not None), None)


def _given(default: int, *values: int | None) -> int:
    found = _first(*values)
    return default if found is None else found


def _bound(default: int, *values: int | None) -> int | None:
    """Return a limit; 0 means no limit, which is None."""
    return _given(default, *values) or None


def resolve_provider(project: Project, expert: Expert, overrides: Overrides) -> ProviderSetting | None:
    """Return the provider of a Run of this Expert; None if nothing chooses one."""
    written = _first(expert.provider, project.provider)
    if overrides.provider is None:
        return written
    for setting in (expert.provider, project.provider):
        if setting is not None and setting.provider_name == overrides.provider:
            return overrides.playing(setting)
    return overrides.playing(ProviderSetting(provider_name=overrides.provider))


def provider_named(project: Project, expert: Expert, name: str) -> ProviderSetting:
    """Return the nearest `[provider]` of that name; one without settings if there is none."""
    return resolve_provider(project, expert, Overrides(provider=name)) or ProviderSetting(provider_name=name)


def _models(
    project: Project, expert: Expert, provider: ProviderSetting | None, overrides: Overrides
) -> tuple[Candidates, ...]:
    try:
        if overrides.model:
            takes_others = overrides.provider is None or isinstance(overrides.model, tuple)
            return (Candidates(wanted(overrides.model, project.models), True, takes_others),)
        found: list[Candidates] = []
        for models, written_for in (
            (expert.model, _first(expert.provider, project.provider)),
            (project.model, project.provider),
        ):
            if models is not None:
                fits = written_for is None or provider is None or written_for.provider_name == provider.provider_name
                takes_others = fits and overrides.provider is None
                found.append(Candidates(wanted(models, project.models), fits, takes_others))
        return tuple(found)
    except UnknownName as error:
        raise UsageError(str(error)) from error


def with_one_model(project: Project, overrides: Overrides, provider: str) -> Overrides:
    """Return the overrides with the first model only, as the provider spells it. Raises UsageError if unknown."""
    candidates = _models(project, Expert(key="", instruction=""), None, overrides) if overrides.model else ()
    if not candidates or overrides.model == candidates[0].models[0].name:
        return overrides
    return replace(overrides, model=candidates[0].models[0].name.removeprefix(f"{provider}/"))


def _models_again(start: StartRun) -> Models:
    return models_of(start) if start.fallbacks else start.model
