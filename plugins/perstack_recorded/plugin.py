"""Registration of the plugin with the host. The recording is read when a Run first needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perstack.dataclass import dataclass
from perstack.ports.hooks import hookimpl
from perstack.ports.provider import Provider, ProviderConfig, ProviderFactory

PLUGIN_API = 1


@dataclass(frozen=True, slots=True)
class RecordedProviderFactory(ProviderFactory):
    """Factory for providers that play a recording's file."""

    name: str = "recorded"
    priority: int = 1000
    default_model: str | None = "recorded"
    needs_name: bool = True
    has_one_model: bool = True
    how_to_configure: str = "give --recording FILE, or set `recording` in [provider.setting]"
    reports_cost: bool = True

    def is_configured(self, env: Mapping[str, str]) -> bool:
        """Return True: the recording is named in the settings."""
        return True

    def create(self, config: ProviderConfig) -> Provider:
        """Open the recording at the path `recording`. Raises UsageError if it is unreadable or a setting is invalid."""
        from perstack_recorded.provider import recorded_provider

        return recorded_provider(config.setting, self.how_to_configure)


@hookimpl
def perstack_providers() -> Sequence[ProviderFactory]:
    return [RecordedProviderFactory()]
