"""The plugin of provider `scripted` on the command line: `PERSTACK_PLUGINS=perstack.testing.plugin perstack run …`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from typing_extensions import override

from perstack.dataclass import dataclass
from perstack.errors import MissingCredential, UsageError
from perstack.ports.hooks import hookimpl
from perstack.ports.provider import ANY_TOOL, Provider, ProviderConfig, ProviderFactory, ProviderTool
from perstack.testing.scripted import ScriptedProvider, load_script

SCRIPT_VARIABLE = "PERSTACK_SCRIPT"
REQUEST_LOG_VARIABLE = "PERSTACK_SCRIPT_REQUEST_LOG"


@dataclass(frozen=True, slots=True)
class ScriptedProviderFactory(ProviderFactory):
    """Factory of providers that play a script file."""

    name: str = "scripted"
    priority: int = 0
    default_model: str | None = "scripted"
    has_one_model: bool = True
    tools: tuple[ProviderTool, ...] = (ANY_TOOL,)
    is_vendor: bool = True  # without a setting it plays the script that the environment variable names
    how_to_configure: str = f"set {SCRIPT_VARIABLE}, or `script` in [provider.setting], to a script's path"

    @override
    def is_configured(self, env: Mapping[str, str]) -> bool:
        return bool(env.get(SCRIPT_VARIABLE))

    def create(self, config: ProviderConfig) -> Provider:
        """Create a provider. Settings `script` and `requestLog` are paths relative to the working directory.

        Raises MissingCredential without a script and UsageError for an invalid one.
        """
        script = _path(config, "script", SCRIPT_VARIABLE)
        if script is None:
            raise MissingCredential(f"provider scripted has no script: {self.how_to_configure}")
        return ScriptedProvider(load_script(script), request_log=_path(config, "requestLog", REQUEST_LOG_VARIABLE))


def _path(config: ProviderConfig, key: str, variable: str) -> Path | None:
    value = config.setting.get(key)
    if value is None:
        value = config.env.get(variable)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"[provider.setting] {key} of provider scripted must be a path")
    return Path(value) if value else None


@hookimpl
def perstack_providers() -> Sequence[ProviderFactory]:
    """Return provider `scripted`."""
    return [ScriptedProviderFactory()]
