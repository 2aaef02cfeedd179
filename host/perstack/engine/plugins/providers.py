"""Which endpoint and model a Run uses, and the endpoints that are open."""

from __future__ import annotations

from collections.abc import Mapping

from perstack.config.settings import Candidates, Overrides, provider_named, resolve_provider, resolve_settings
from perstack.core.base import JsonObject
from perstack.core.definitions import Expert, Limits, Project, ProviderSetting, ReasoningBudget
from perstack.core.events import UNKNOWN
from perstack.core.models import ProviderLimits, full_name, parts_of, split
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass
from perstack.engine.gates import OnWait, Place, place_at
from perstack.engine.notices import notice
from perstack.engine.plugins import Plugins
from perstack.errors import MissingCredential, UsageError
from perstack.next_steps import Continue, Give, Look
from perstack.ports.provider import Provider, ProviderConfig, ProviderFactory, reply_settings

_NAMED = 3
"""Of the ways to set a provider up, those that are said where there is none."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A provider as a Run uses it, with what `[limits]` of its project allows."""

    provider: Provider
    name: str
    limits: ProviderLimits | None = None

    @property
    def reply_settings(self) -> JsonObject:
        """As the provider tells them."""
        return reply_settings(self.provider)

    def place(self, on_wait: OnWait = lambda waiting: None) -> Place:
        """A place in the line of all that use the same endpoint."""
        return place_at(self.provider, self.name, self.limits, on_wait)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What a Run is started with, every choice made."""

    model: str
    provider: ProviderSetting
    fallbacks: tuple[str, ...]
    """`provider/model` of each that stands in for the one before it."""
    reasoning_budget: ReasoningBudget | None
    limits: Limits


class ProviderPool:
    """Opens each endpoint once, and closes them all."""

    def __init__(self, plugins: Plugins, env: Mapping[str, str]) -> None:
        self._plugins = plugins
        self._env = env
        self._open: dict[bytes, Provider] = {}
        self._missing: set[str] = set()

    @property
    def factories(self) -> Mapping[str, ProviderFactory]:
        """The kinds of endpoint there are, by name."""
        return self._plugins.providers

    def settings(self, project: Project, expert: Expert, overrides: Overrides, *, steps_before: int = 0) -> RunSettings:
        """Fill in what nobody chose. Raises UsageError or MissingCredential that lists the ways."""
        chosen = resolve_settings(project, expert, overrides, steps_before=steps_before)
        found = next((kept for one in chosen.models if (kept := self._kept(one, chosen.provider))), ())
        own = chosen.provider
        if own is None and not (found and all(name is not None for name, _ in found)):
            own = ProviderSetting(provider_name=self._first_configured().name)
        provider, model = (None, None) if not found else found[0]
        setting = own if provider is None and own is not None else provider_named(project, expert, provider or "")
        factory = self._plugins.provider(setting.provider_name)
        model = model or factory.default_model
        if model is None:
            words = f"no model is named for provider {factory.name}: set `model` in perstack.toml"
            raise UsageError(words, next_steps=(Give("model"),))
        first = full_name(setting.provider_name, model)
        names = [full_name(name or (own.provider_name if own else ""), one) for name, one in found]
        fallbacks = tuple(name for name in dict.fromkeys(names) if name != first)
        return RunSettings(model, setting, fallbacks, chosen.reasoning_budget, chosen.limits)

    def _kept(self, written: Candidates, provider: ProviderSetting | None) -> tuple[tuple[str | None, str], ...]:
        """The models that count, each with the provider that it names, of those that are written in one place."""
        kept: list[tuple[str | None, str]] = []
        for one in written.models:
            name, model = split(one.name, self.factories) if one.may_name_provider else (None, one.name)
            is_chosen = provider is not None and name == provider.provider_name
            if written.is_of_provider if name is None else written.takes_others or is_chosen:
                kept.append((name, model))
        return tuple(kept)

    def check(self, settings: RunSettings, project: Project, expert: Expert) -> None:
        """Raises as `get` for the model that a Run begins with.

        One that stands in and has no key is said to be missing, once, and passed over; one whose settings are wrong
        raises.
        """
        self.get(settings.provider)
        for name in settings.fallbacks:
            try:
                self.get(provider_named(project, expert, parts_of(name)[0]))
            except MissingCredential as error:
                if name not in self._missing:
                    self._missing.add(name)
                    notice(f"{name} cannot stand in for {settings.model}: {error}")

    def get(self, setting: ProviderSetting) -> Provider:
        """The endpoint. Raises MissingCredential before anything is sent."""
        key = setting.to_json()
        if key not in self._open:
            factory = self._plugins.provider(setting.provider_name)
            self._open[key] = factory.create(ProviderConfig(setting.setting, self._env))
        return self._open[key]

    def endpoint(self, setting: ProviderSetting, project: Project) -> Endpoint:
        """The endpoint with the project's limits for it. Raises as `get`."""
        name = setting.provider_name
        limits = next((one for one in project.limits if one.name == name), None)
        return Endpoint(self.get(setting), name, limits)

    def for_run(self, run: Run, project: Project, overrides: Overrides) -> Endpoint:
        """The endpoint of the model that generates now, with its settings of today.

        Raises UsageError if it is not known, and as `get`.
        """
        if run.start.provider == UNKNOWN:
            step = Continue(run.start.job_id, run.start.expert_key)
            raise UsageError(f"{run.id} does not say which provider it ran on", next_steps=(step,))
        expert = project.experts.get(run.start.expert_key, run.start.expert)
        chosen = resolve_provider(project, expert, overrides)
        if overrides.recording is not None and run.provider != overrides.provider:
            raise UsageError(f"{run.id} is on {run.provider}: a recording is played from the beginning of a Job alone")
        if chosen is None or chosen.provider_name != run.provider:
            chosen = provider_named(project, expert, run.provider)
        return self.endpoint(chosen, project)

    async def close(self) -> None:
        """Close every endpoint."""
        providers, self._open = list(self._open.values()), {}
        for provider in providers:
            await provider.close()

    def _first_configured(self) -> ProviderFactory:
        factories = sorted(self._plugins.providers.values(), key=lambda factory: factory.priority)
        for factory in factories:
            if factory.is_configured(self._env):
                return factory
        ways = ", or ".join(factory.how_to_configure for factory in factories[:_NAMED])
        raise MissingCredential(f"no model provider is set up: {ways}", next_steps=(Look("providers"),))
