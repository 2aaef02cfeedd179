"""Registration with the host. The recording is read when a Run first wants it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perstack.dataclass import dataclass
from perstack.ports.hooks import hookimpl
from perstack.ports.provider import Provider, ProviderConfig, ProviderFactory


@dataclass(frozen=True, slots=True)
class RecordedProviderFactory:
    """Makes a provider from a recording's file."""

    name: str = "recorded"
    priority: int = 1000
    default_model: str | None = "recorded"
    how_to_configure: str = "give --recording FILE, or set `recording` in [provider.setting]"
    reports_cost: bool = True

    def is_configured(self, env: Mapping[str, str]) -> bool:
        """Never of itself: what is played is always asked for by name."""
        return False

    def create(self, config: ProviderConfig) -> Provider:
        """Settings `recording`, a path from the working directory, `tools` and `definition`.

        Raises MissingCredential without a recording, and UsageError for one that does not read, or a wrong setting.
        """
        from perstack_recorded.provider import recorded_provider

        return recorded_provider(config.setting, self.how_to_configure)


@hookimpl
def perstack_providers() -> Sequence[ProviderFactory]:
    """Provider `recorded`."""
    return [RecordedProviderFactory()]
