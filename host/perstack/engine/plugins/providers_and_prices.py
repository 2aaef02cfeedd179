"""Resolve the endpoint and model of a Run, open each endpoint once per process, and look up prices."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Literal, Protocol

from perstack.config.resolved_settings import (
    Candidates,
    ChosenSettings,
    provider_setting,
    resolve_provider,
    resolve_settings,
)
from perstack.core.base.records import JsonObject
from perstack.core.base.usage import NO_USAGE, Usage, nano
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.models import ModelTier, Price, ProviderLimits, full_name, split_full_name, split_name
from perstack.core.definitions.project import Project
from perstack.core.definitions.settings import Limits, Overrides, ProviderSetting, ReasoningBudget
from perstack.core.runs.start import UNKNOWN
from perstack.dataclass import dataclass
from perstack.engine.plugins.provider_tools import check_provider_tools
from perstack.engine.plugins.registry import Plugins
from perstack.errors import MissingCredential, PerstackError, UsageError
from perstack.next_steps import Continue, Inspect, SetOption
from perstack.ports.parts import Part, Parts
from perstack.ports.provider import (
    Generation,
    OfferedProviderTool,
    PriceList,
    Provider,
    ProviderConfig,
    ProviderFactory,
)
from perstack.system.user import notice

if TYPE_CHECKING:
    from perstack.core.runs.display_events import WaitReason
    from perstack.core.runs.state import Run
    from perstack.engine.plugins.trust_checks import TrustCheck

# Cost of a generation and context size of its model, as far as the provider's plugin knows.

_SAMPLE_TOKENS = 1_000_000  # output tokens whose price is looked up to derive the price of one


class Prices:
    """Cost and context size of generations. A price in perstack.toml takes precedence over a published one."""

    def __init__(self, providers: Mapping[str, ProviderFactory], own_prices: Iterable[Price] = ()) -> None:
        """Create the lookup; `own_prices` are the prices of perstack.toml."""
        self._providers = providers
        self._own_prices = {price.name: price for price in own_prices}
        self._price_lists: dict[str, asyncio.Future[PriceList]] = {}
        self._failed: set[str] = set()

    def prepare(self, provider: str) -> None:
        """Start loading a provider's published prices, if it has any, because they are needed soon."""
        factory = self._providers.get(provider)
        source = None if factory is None else factory.prices
        if source is not None and provider not in self._price_lists:
            # an import may be slow: do it in a thread while the model generates
            self._price_lists[provider] = asyncio.get_running_loop().run_in_executor(None, source.load)

    async def cost_and_window(self, provider: str, model: str, generation: Generation) -> tuple[Usage, int | None]:
        """Return the usage with its cost, and the model's context size in tokens; None where unknown."""
        self.prepare(provider)
        usage = generation.usage.plausible()
        price_list, own_price = self._price_lists.get(provider), self._own_prices.get(f"{provider}/{model}")
        cost: float | None = usage.cost_usd if self._is_reported(provider) else None
        window: int | None = None
        if price_list is not None:
            cost, window = await self._look_up(provider, price_list, model, usage)
        if own_price is not None:
            fee = await self._fee(provider, model, usage.provider_tools)
            cost = None if fee is None else own_price.cost_of(usage) + fee
        cost = None if cost is None else round(cost, 9)
        priced_usage = usage if cost == usage.cost_usd else usage.model_copy(update={"cost_usd": cost})
        return priced_usage, generation.context_window or window

    async def window(self, provider: str, model: str) -> int | None:
        """Return the model's context size in tokens; None if unknown."""
        self.prepare(provider)
        price_list = self._price_lists.get(provider)
        return None if price_list is None else (await self._look_up(provider, price_list, model, NO_USAGE))[1]

    async def highest_cost(self, provider: str, model: str, input_tokens: int) -> tuple[int, int] | None:
        """Return the highest cost of the input and of one output token, in billionths of a dollar; None if unknown."""
        own_price = self._own_prices.get(f"{provider}/{model}")
        if own_price is not None:
            return nano(input_tokens * own_price.dearest_input / 1_000_000), nano(own_price.output / 1_000_000)
        if self._is_reported(provider):
            return 0, 0
        self.prepare(provider)
        price_list = self._price_lists.get(provider)
        if price_list is None:
            return None
        costs: list[float] = []
        inputs = (
            Usage.of(input_tokens, 0),
            Usage.of(input_tokens, 0, cached=input_tokens),
            Usage.of(input_tokens, 0, cache_writes=input_tokens),
        )
        for usage in (*inputs, Usage.of(input_tokens, _SAMPLE_TOKENS)):
            cost, _ = await self._look_up(provider, price_list, model, usage)
            if cost is None:
                return None
            costs.append(cost)
        return nano(max(costs[:3])), nano(max(0.0, costs[3] - costs[0]) / _SAMPLE_TOKENS)

    async def highest_fee(self, provider: str, model: str, tools: Iterable[OfferedProviderTool]) -> int:
        """Return the highest price of uses of these tools, without their tokens, in billionths of a dollar.

        Tools whose uses have no limit are not counted.
        """
        limits = ((tool.name, getattr(tool.options, "max_uses", None)) for tool in tools)
        uses = {name: limit for name, limit in limits if limit}
        return nano(await self._fee(provider, model, uses) or 0)

    async def _fee(self, provider: str, model: str, uses: Mapping[str, int]) -> float | None:
        """Return the price of uses of provider tools, without their tokens, in dollars; None if one is unknown."""
        if not uses:
            return 0.0
        self.prepare(provider)
        price_list, own_price = self._price_lists.get(provider), self._own_prices.get(f"{provider}/{model}")
        prices = {} if own_price is None else own_price.uses
        own_cost = sum(count * prices[name] / 1_000 for name, count in uses.items() if name in prices)
        other_uses = {name: count for name, count in uses.items() if name not in prices}
        if not other_uses:
            return own_cost
        if price_list is None:
            return None
        cost, _ = await self._look_up(provider, price_list, model, Usage(provider_tools=other_uses))
        return None if cost is None else own_cost + cost

    def _is_reported(self, provider: str) -> bool:
        factory = self._providers.get(provider)
        return factory is not None and factory.reports_cost

    async def _look_up(
        self, provider: str, price_list: asyncio.Future[PriceList], model: str, usage: Usage
    ) -> tuple[float | None, int | None]:
        """Return the cost in dollars and the context size in tokens; None for both without a usable price list."""
        try:
            return (await asyncio.shield(price_list))(model, usage)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything; the reply is already paid for
            if provider not in self._failed:
                self._failed.add(provider)
                notice(f"the prices of models of {provider} are unknown: {type(error).__name__}: {error}")
            return None, None


_Kind = Literal["provider", "model"]

_MAX_LISTED = 3  # ways to configure a provider that an error message lists at most


OnWait = Callable[["WaitReason", int, float | None], None]
"""Called with the reason why a generation waits, how many are ahead of it, and the seconds until that may change."""


class Turns(AbstractContextManager["Turns"], Protocol):
    """Turns of one generation's attempts in the queue of its endpoint. The context manager encloses all attempts."""

    async def take(self, tokens: int, generate: Callable[[], Awaitable[Generation]]) -> Generation:
        """Run an attempt of `generate` that sends about `tokens` tokens when it is its turn. Raises ProviderError."""
        ...


PACING: Part[Callable[[Provider, str, ProviderLimits | None, OnWait], Turns]] = Part("queue of requests")
"""Returns the turns of a generation at a provider, whose name is for messages."""


@dataclass(frozen=True, slots=True)
class OpenProvider:
    """An open provider, with the `[limits]` that the project sets for it."""

    provider: Provider
    name: str
    provider_limits: ProviderLimits | None
    parts: Parts

    @property
    def reply_settings(self) -> JsonObject:
        return self.provider.reply_settings

    def turns(self, on_wait: OnWait = lambda reason, ahead, seconds: None) -> Turns:
        """Return the turns of one generation among those of all Runs that use this endpoint."""
        return self.parts.get(PACING)(self.provider, self.name, self.provider_limits, on_wait)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings that a Run starts with, fully resolved."""

    model: str
    provider: ProviderSetting
    fallbacks: tuple[str, ...]  # `provider/model` of the fallback models, in the order in which they are tried
    default_kinds: tuple[_Kind, ...]  # kinds that were chosen by default among several
    reasoning_budget: ReasoningBudget | None
    limits: Limits
    missing_tier: ModelTier | None = None  # the Expert's tier, if the provider has no model for it


class ProviderPool:
    """The open endpoints of a process, each opened once."""

    def __init__(self, plugins: Plugins, env: Mapping[str, str], agreement: TrustCheck, parts: Parts) -> None:
        """Create an empty pool; `agreement` is checked before an endpoint is opened."""
        self._parts = parts
        self._plugins = plugins
        self._env = env
        self._agreement = agreement
        self._open: dict[bytes, Provider] = {}
        self._reported_names: set[str] = set()

    @property
    def factories(self) -> Mapping[str, ProviderFactory]:
        return self._plugins.providers

    def settings(self, project: Project, expert: Expert, overrides: Overrides, *, steps_before: int = 0) -> RunSettings:
        """Resolve a Run's settings. Raises UsageError, or MissingCredential that lists how to configure a provider."""
        chosen = resolve_settings(project, expert, overrides, steps_before=steps_before)
        candidates, missing_tier = self._first_usable_models(chosen)
        named_setting = chosen.provider
        if named_setting is None and not (candidates and all(name is not None for name, _ in candidates)):
            named_setting = ProviderSetting(provider_name=self._default_factory().name)
        provider, model = (None, None) if not candidates else candidates[0]
        setting = (
            named_setting
            if provider is None and named_setting is not None
            else provider_setting(project, expert, provider or "")
        )
        factory = self._plugins.provider(setting.provider_name)
        is_default: dict[_Kind, bool] = {
            "provider": provider is None and chosen.provider is None,
            "model": model is None,
        }
        model = model or factory.default_model
        if model is None:
            message = f"no model is named for provider {factory.name}: set `model` in perstack.toml"
            raise UsageError(message, next_steps=(SetOption("model"),))
        first_model = full_name(setting.provider_name, model)
        names = [
            full_name(name or (named_setting.provider_name if named_setting else ""), model)
            for name, model in candidates
        ]
        fallbacks = tuple(name for name in dict.fromkeys(names) if name != first_model)
        default_kinds: tuple[_Kind, ...] = tuple(
            kind for kind, is_chosen_by_default in is_default.items() if is_chosen_by_default
        )
        if factory.has_one_model:
            default_kinds = ()
        return RunSettings(
            model, setting, fallbacks, default_kinds, chosen.reasoning_budget, chosen.limits, missing_tier
        )

    def _first_usable_models(
        self, chosen: ChosenSettings
    ) -> tuple[tuple[tuple[str | None, str], ...], ModelTier | None]:
        """Return the usable models of the nearest level, and a nearer level's tier without a model at the provider."""
        missing_tier: ModelTier | None = None
        for group in chosen.models:
            usable = self._keep_usable(group, chosen.provider)
            if usable:
                return usable, missing_tier
            missing_tier = group.tier or missing_tier
        return (), missing_tier

    def _keep_usable(
        self, candidates: Candidates, provider: ProviderSetting | None
    ) -> tuple[tuple[str | None, str], ...]:
        if candidates.tier is not None:
            factory = self._default_factory() if provider is None else self._plugins.provider(provider.provider_name)
            model = factory.model_of(candidates.tier)
            return () if model is None else ((None, model),)
        usable: list[tuple[str | None, str]] = []
        for candidate in candidates.models:
            name, model = (
                split_name(candidate.name, self.factories) if candidate.may_name_provider else (None, candidate.name)
            )
            is_chosen = provider is not None and name == provider.provider_name
            if candidates.belongs_to_provider if name is None else candidates.allows_other_providers or is_chosen:
                usable.append((name, model))
        return tuple(usable)

    def check(self, settings: RunSettings, project: Project, expert: Expert) -> None:
        """Check that the endpoint of a Run's first model can be opened, and has the tools that the Expert wants of it.

        Print, once per process, a notice about a model that nobody named, and about a fallback model that is skipped
        because its key is missing. Raises the errors of `get`, and UsageError.
        """
        endpoint = self.get(settings.provider)
        name = full_name(settings.provider.provider_name, settings.model)
        if settings.default_kinds and name not in self._reported_names:
            self._reported_names.add(name)
            kinds = " or ".join(settings.default_kinds)
            notice(f"no {kinds} is named, so {name} is used; to choose, name one in perstack.toml or for this run")
        tier = settings.missing_tier
        if tier is not None and (missing := f"{tier} of {name}") not in self._reported_names:
            self._reported_names.add(missing)
            provider_name = settings.provider.provider_name
            notice(f"{provider_name} has no model of tier {tier}, so {name} is used; name one as `{tier}` in [models]")
        if endpoint.player is None:
            check_provider_tools(expert, settings.provider.provider_name, endpoint.tools)
        for name in settings.fallbacks:
            try:
                self.get(provider_setting(project, expert, split_full_name(name)[0]))
            except MissingCredential as error:
                if name not in self._reported_names:
                    self._reported_names.add(name)
                    notice(f"{name} cannot replace {settings.model}: {error}")

    def check_tools(self, project: Project, expert: Expert, overrides: Overrides) -> None:
        """Raise UsageError if the provider of this delegate's first model lacks a tool that the delegate wants."""
        if not expert.provider_tools:
            return
        try:
            settings = self.settings(project, expert, overrides)
            endpoint = self.get(settings.provider)
        except PerstackError:
            return  # the delegate fails, and its caller learns why, once it is called
        check_provider_tools(expert, settings.provider.provider_name, endpoint.tools)

    def get(self, setting: ProviderSetting, *, is_agreed: bool = False) -> Provider:
        """Return the open endpoint of a setting. Raises MissingCredential before anything is sent, and NotAgreed.

        `is_agreed`: the caller has checked the agreement.
        """
        key = setting.to_json()
        if key not in self._open:
            if not is_agreed:
                self._agreement.check_provider(setting)
            factory = self._plugins.provider(setting.provider_name)
            self._open[key] = factory.create(ProviderConfig(setting.setting, self._env))
        return self._open[key]

    def endpoint(self, setting: ProviderSetting, project: Project, *, is_agreed: bool = False) -> OpenProvider:
        """Return the endpoint with the project's limits for it. Raises the errors of `get`."""
        name = setting.provider_name
        provider_limits = next((entry for entry in project.limits if entry.name == name), None)
        return OpenProvider(self.get(setting, is_agreed=is_agreed), name, provider_limits, self._parts)

    def for_run(self, run: Run, project: Project, overrides: Overrides) -> OpenProvider:
        """Return the endpoint of the Run's current model, with today's settings.

        Raises the errors of `get`, and UsageError if the provider is unknown or a recording would start in the middle.
        """
        if run.start.provider == UNKNOWN:
            step = Continue(run.start.job_id, run.start.expert_key)
            raise UsageError(f"{run.id} does not say which provider it ran on", next_steps=(step,))
        expert = project.experts.get(run.start.expert_key, run.start.expert)
        chosen = resolve_provider(project, expert, overrides)
        if overrides.recording is not None and run.provider != overrides.provider:
            raise UsageError(f"{run.id} is on {run.provider}: a recording is played only from the beginning of a Job")
        if chosen is None or chosen.provider_name != run.provider:
            chosen = provider_setting(project, expert, run.provider)
        if chosen.setting:  # a provider without settings needs no agreement: the Run began on it
            self._agreement.check_provider(chosen)
        return self.endpoint(overrides.without_live_tools(chosen), project, is_agreed=True)

    async def close(self) -> None:
        providers, self._open = list(self._open.values()), {}
        for provider in providers:
            await provider.close()

    def _default_factory(self) -> ProviderFactory:
        factory = self._plugins.default_provider(self._env)
        if factory is not None:
            return factory
        factories = sorted(self._plugins.providers.values(), key=lambda factory: factory.priority)
        remedies = [factory.how_to_configure for factory in factories if not factory.needs_name][:_MAX_LISTED]
        raise MissingCredential(
            f"no model provider is set up: {', or '.join(remedies)}", next_steps=(Inspect("providers"),)
        )
