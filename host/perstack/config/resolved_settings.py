"""Resolve model, provider and limits of one Run, in this order: options, Expert's keys, the file's keys, defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from functools import cache
from posixpath import basename
from typing import TYPE_CHECKING, Any

from pydantic.alias_generators import to_snake

from perstack.core.base.records import fields_of
from perstack.core.definitions.exec_grant import (
    ExecGrant,
    denies_exec,
    exec_grant,
    names_exec,
    offers_exec,
    rules_without_grant,
)
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.keys import Key
from perstack.core.definitions.models import NAMED, ModelChoice, ModelTier, UnknownName, resolve_models
from perstack.core.definitions.permissions import Permissions, RuleSet, Widening
from perstack.core.definitions.project import Project
from perstack.core.definitions.sandbox import LOCAL, SandboxPolicy, policy_of, runtime_of
from perstack.core.definitions.settings import (
    NO_OVERRIDES,
    Budget,
    Compaction,
    CompactionExpert,
    ContextPolicy,
    Limits,
    Overrides,
    ProviderSetting,
    ReasoningBudget,
    SharedKeys,
    intern_record,
    lower_budget,
)
from perstack.dataclass import dataclass
from perstack.errors import UsageError

if TYPE_CHECKING:
    from perstack.core.runs.start import StartRun


@dataclass(frozen=True, slots=True)
class Candidates:
    """Models from one place, each a fallback for the one before."""

    models: tuple[ModelChoice, ...]
    belongs_to_provider: bool  # True if names without a provider are models of the chosen provider
    allows_other_providers: bool  # True if names of other providers count too; False if the caller named a provider
    tier: ModelTier | None = None  # tier whose model of the provider is used if `models` is empty


@dataclass(frozen=True, slots=True)
class ChosenSettings:
    """Settings of a Run from options and definitions; settings that nobody chose are empty."""

    models: tuple[Candidates, ...] = ()  # the nearest first; empty for the provider's default model
    provider: ProviderSetting | None = None  # setting of the provider; None for the first usable provider
    reasoning_budget: ReasoningBudget | None = None
    limits: Limits = field(default_factory=Limits)


def with_recorded_choices(overrides: Overrides, start: StartRun) -> Overrides:
    """Return the caller's settings, completed by the choices that were recorded when the Run started."""
    limits = start.limits
    from perstack.core.runs.retries_and_fallbacks import models_of

    recorded_settings: dict[str, Any] = {
        **dict(limits),
        **dict(limits.budget or Budget()),
        "model": models_of(start) if start.fallbacks else start.model,
        "provider": start.provider,
        "reasoning_budget": start.reasoning_budget,
        "max_steps": limits.max_steps or 0,
        "strict_skills": True,
        "open": True,
        "compaction": _compaction_of(limits),
    }
    if overrides.provider not in (None, start.provider):
        del recorded_settings["model"]
    chosen_names = map(to_snake, start.overrides)
    return overrides.filled(**{name: recorded_settings[name] for name in chosen_names if name in recorded_settings})


@cache
def _shared_keys() -> Mapping[str, Key]:
    pairs = ((name, part) for name, field in SharedKeys.model_fields.items() for part in field.metadata)
    return {name: part for name, part in pairs if isinstance(part, Key)}


def merge_levels(*levels: SharedKeys | Overrides) -> SharedKeys:
    """Return each shared key's value from the first level that has one, or its default; None for a lifted limit."""
    merged: dict[str, Any] = {}
    for name, key in _shared_keys().items():
        values = (value for level in levels if (value := getattr(level, name, None)) is not None)
        value = next(values, key.default)
        merged[name] = None if key.zero_lifts and value == 0 else value
    return SharedKeys.model_construct(**merged)


def _context_policy(keys: SharedKeys) -> ContextPolicy:
    compaction = keys.compaction
    expert = compaction.expert if isinstance(compaction, CompactionExpert) else None
    is_on = compaction is not None and compaction != "off"
    settings = fields_of(keys, ContextPolicy, window=keys.context_window, is_off=compaction == "off", expert=expert)
    return ContextPolicy(**settings, offers_pin=is_on)


def resolve_settings(
    project: Project, expert: Expert, overrides: Overrides = NO_OVERRIDES, *, steps_before: int = 0
) -> ChosenSettings:
    """Return the settings of a Run of this Expert. Raises UsageError for a name missing in `[models]`.

    The default step limit counts from `steps_before`, the steps that the Job has already.

    A model and a `setting` belong to the provider that they were written for: asking for another provider drops both,
    except for entries of a list that name that provider. A model without a named provider fits any. The nearest
    `[provider]` of the wanted name applies as a whole; tables of two levels are not merged. The Expert's tier comes
    after its own model and before the file's; `[models]` may name a tier's model, before the provider's own.
    """
    provider = resolve_provider(project, expert, overrides)
    provider = None if provider is None else intern_record(provider)
    levels = (overrides, expert, project)
    merged = merge_levels(*levels)
    max_steps = merged.max_steps
    if max_steps is not None and all(level.max_steps is None for level in levels):
        max_steps += steps_before
    budget = overrides.budget_over(lower_budget(expert.budget, project.budget))
    limits = Limits(**fields_of(merged, Limits, max_steps=max_steps, budget=budget, context=_context_policy(merged)))
    return ChosenSettings(
        models=_model_candidates(project, expert, provider, overrides),
        provider=provider,
        reasoning_budget=merged.reasoning_budget,
        limits=intern_record(limits),
    )


def resolve_sandbox(project: Project, expert: Expert, overrides: Overrides = NO_OVERRIDES) -> SandboxPolicy | None:
    """Return the sandbox policy of this Expert's programs; None if nothing sets one."""
    if overrides.runtime is None and expert.runtime is None and project.runtime is None and project.sandbox is None:
        return None
    # a runtime that the caller names must exist; aliases of the original Perstack count only in files
    runtime = overrides.runtime or runtime_of(expert.runtime, project.runtime)
    return policy_of(runtime, project.sandbox)


def rule_sets(project: Project, expert: Expert) -> tuple[RuleSet, ...]:
    """Return the rule sets of the project and of the Expert, if any. Rules of parent Runs are not included."""
    sets: list[RuleSet] = []
    name = basename(project.path) if project.path else "perstack.toml"
    recorded_permissions = project.recorded_permissions
    if recorded_permissions is not None and recorded_permissions != project.permissions:
        sets.append(RuleSet(source=f"{name} [permissions], as recorded", permissions=recorded_permissions))
    if project.permissions is not None:
        sets.append(RuleSet(source=f"{name} [permissions]", permissions=project.permissions))
    if expert.permissions is not None:
        source = f"[experts.{expert.key}.permissions]"
        sets.append(RuleSet(source=source, expert=expert.key, permissions=expert.permissions))
    return tuple(sets)


def exec_grant_of(
    project: Project,
    expert: Expert,
    policy: SandboxPolicy | None,
    widenings: Iterable[Widening] = (),
    *,
    is_open: bool = False,
) -> ExecGrant:
    """Return the grant of `exec` for a Run of the Expert that begins now, with this sandbox."""
    tables = (project.permissions, project.recorded_permissions, expert.permissions, *widenings)
    return exec_grant(expert, tables, policy, is_open=is_open)


def reason_for_open_exec(project: Project, overrides: Overrides) -> str:
    """Return why `exec` runs every program without a question; empty if it does not."""
    if overrides.open:
        return "as an option says"
    table = project.permissions
    narrowing_rules = () if table is None else (*table.ask, *table.deny)
    allows_by_default = (
        table is not None and table.default == "allow" and not names_exec(Permissions(ask=narrowing_rules))
    )
    is_sandboxed = (overrides.runtime or runtime_of(project.runtime)) != LOCAL
    return 'perstack.toml has [permissions] default = "allow"' if allows_by_default and not is_sandboxed else ""


def asking_experts(project: Project) -> tuple[str, ...]:
    """Return the keys of Experts that have `exec`, and whose definition neither names nor denies it."""
    return tuple(
        key
        for key, expert in project.experts.items()
        if offers_exec(expert)
        and exec_grant_of(project, expert, resolve_sandbox(project, expert)) == "asks"
        and not denies_exec(expert, (project.permissions, expert.permissions))
    )


def chain_of(project: Project, expert: Expert, callers: Iterable[Expert] = ()) -> tuple[RuleSet, ...]:
    """Return all rule sets of a Run that begins now, below Runs of `callers`."""
    by_source = {rule_set.source: rule_set for member in (*callers, expert) for rule_set in rule_sets(project, member)}
    asks_exec = exec_grant_of(project, expert, resolve_sandbox(project, expert)) == "asks"
    chain = tuple(by_source.values())
    return (*chain, rules_without_grant(expert, chain)) if asks_exec else chain


def wants_agents_md(project: Project, expert: Expert, *, is_coordinator: bool) -> bool:
    """Return whether a Run of the Expert gets AGENTS.md files; a delegate only if its own definition asks for them."""
    project_setting = project.agents_md if is_coordinator else None
    return bool(project_setting if expert.agents_md is None else expert.agents_md)


def masks_secrets(project: Project, expert: Expert, *starts: StartRun | None) -> bool:
    """Return True if a new Run masks secrets: by its definition, or because its parent or base (in `starts`) does."""
    setting = project.mask_secrets if expert.mask_secrets is None else expert.mask_secrets
    return bool(setting) or any(start is not None and start.mask_secrets for start in starts)


def _compaction_of(limits: Limits) -> Compaction:
    """Return the option `compaction` that led to these limits."""
    context_policy = limits.context
    if context_policy is not None and context_policy.expert is not None:
        return CompactionExpert(expert=context_policy.expert)
    return "off" if context_policy is None or context_policy.is_off else "auto"


def resolve_provider(project: Project, expert: Expert, overrides: Overrides) -> ProviderSetting | None:
    """Return the provider of a Run of this Expert; None if nothing chooses one."""
    if overrides.provider is None:
        return expert.provider or project.provider
    for setting in (expert.provider, project.provider):
        if setting is not None and setting.provider_name == overrides.provider:
            return overrides.playing(setting)
    return overrides.playing(ProviderSetting(provider_name=overrides.provider))


def provider_setting(project: Project, expert: Expert, name: str) -> ProviderSetting:
    """Return the nearest `[provider]` of that name; without one, a setting that only names the provider."""
    return resolve_provider(project, expert, Overrides(provider=name)) or ProviderSetting(provider_name=name)


def _model_candidates(
    project: Project, expert: Expert, provider: ProviderSetting | None, overrides: Overrides
) -> tuple[Candidates, ...]:
    """Return the candidates of each place, the nearest first. Raises UsageError for an unknown name."""
    try:
        if overrides.model:
            allows_other_providers = overrides.provider is None or isinstance(overrides.model, tuple)
            return (Candidates(resolve_models(overrides.model, project.models), True, allows_other_providers),)
        candidates: list[Candidates] = []
        tier = expert.default_model_tier
        tier_name = f"{NAMED}{tier}" if tier in project.models else None
        for models, origin in (
            (expert.model, expert.provider or project.provider),
            (tier_name, project.provider),
            (project.model, project.provider),
        ):
            if models is not None:
                is_same_provider = origin is None or provider is None or origin.provider_name == provider.provider_name
                allows_other_providers = is_same_provider and overrides.provider is None
                candidates.append(
                    Candidates(resolve_models(models, project.models), is_same_provider, allows_other_providers)
                )
        if tier is not None:
            place = (expert.model is not None) + (tier_name is not None)
            candidates.insert(place, Candidates((), True, False, tier))
        return tuple(candidates)
    except UnknownName as error:
        raise UsageError(str(error)) from error


def with_one_model(project: Project, overrides: Overrides, provider: str) -> Overrides:
    """Return the overrides with the first model only, as the provider spells it. Raises UsageError if unknown."""
    candidates = _model_candidates(project, Expert(key="", instruction=""), None, overrides) if overrides.model else ()
    if not candidates or overrides.model == candidates[0].models[0].name:
        return overrides
    return replace(overrides, model=candidates[0].models[0].name.removeprefix(f"{provider}/"))
