"""Which endpoint and model a Run uses, and the endpoints that are open."""

from __future__ import annotations

from collections.abc import Mapping

from perstack.config.settings import Overrides, resolve_provider, resolve_settings
from perstack.core.definitions import Expert, Limits, Project, ProviderSetting, ReasoningBudget
from perstack.core.events import UNKNOWN
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass
from perstack.engine.plugins import Plugins
from perstack.errors import MissingCredential, UsageError
from perstack.next_steps import Continue, Give
from perstack.ports.provider import Provider, ProviderConfig, ProviderFactory


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What a Run is started with, every choice made."""

    model: str
    provider: ProviderSetting
    reasoning_budget: ReasoningBudget | None
    limits: Limits


class ProviderPool:
    """Opens each endpoint once, and closes them all."""

    def __init__(self, plugins: Plugins, env: Mapping[str, str]) -> None:
        self._plugins = plugins
        self._env = env
        self._open: dict[bytes, Provider] = {}

    @property
    def factories(self) -> Mapping[str, ProviderFactory]:
        """The kinds of endpoint there are, by name."""
        return self._plugins.providers

    def settings(self, project: Project, expert: Expert, overrides: Overrides, *, steps_before: int = 0) -> RunSettings:
        """Fill in what nobody chose. Raises UsageError or MissingCredential that lists the ways."""
        chosen = resolve_settings(project, expert, overrides, steps_before=steps_before)
        if chosen.provider is None:
            factory = self._first_configured()
            provider = ProviderSetting(provider_name=factory.name)
        else:
            factory = self._plugins.provider(chosen.provider.provider_name)
            provider = chosen.provider
        model = chosen.model or factory.default_model
        if model is None:
            words = f"no model is named for provider {factory.name}: set `model` in perstack.toml"
            raise UsageError(words, next_steps=(Give("model"),))
        return RunSettings(model, provider, chosen.reasoning_budget, chosen.limits)

    def get(self, setting: ProviderSetting) -> Provider:
        """The endpoint. Raises MissingCredential before anything is sent."""
        key = setting.to_json()
        if key not in self._open:
            factory = self._plugins.provider(setting.provider_name)
            self._open[key] = factory.create(ProviderConfig(setting.setting, self._env))
        return self._open[key]

    def for_run(self, run: Run, project: Project, overrides: Overrides) -> Provider:
        """The endpoint that a Run was started on, with its settings of today. Raises UsageError if it is not known."""
        if run.start.provider == UNKNOWN:
            step = Continue(run.start.job_id, run.start.expert_key)
            raise UsageError(f"{run.id} does not say which provider it ran on", next_steps=(step,))
        expert = project.experts.get(run.start.expert_key, run.start.expert)
        chosen = resolve_provider(project, expert, overrides)
        if chosen is None or chosen.provider_name != run.start.provider:
            chosen = ProviderSetting(provider_name=run.start.provider)
        return self.get(chosen)

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
        ways = "; ".join(f"{factory.name}: {factory.how_to_configure}" for factory in factories)
        raise MissingCredential(f"no model provider is set up. One of these will do: {ways}")
