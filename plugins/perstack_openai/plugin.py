"""Registration with the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perstack.ports.hooks import hookimpl
from perstack.ports.provider import Provider, ProviderConfig, ProviderFactory


@dataclass(frozen=True, slots=True)
class OpenAIProviderFactory:
    """What the plugin registers."""

    name: str = "openai"
    priority: int = 20
    default_model: str | None = "gpt-5-mini"
    how_to_configure: str = "set OPENAI_API_KEY"

    def is_configured(self, env: Mapping[str, str]) -> bool:
        """Whether there is a key."""
        return bool(env.get("OPENAI_API_KEY", "").strip())

    def create(self, config: ProviderConfig) -> Provider:
        """Opens no connection yet.

        Raises MissingCredential without a key, DefinitionError if a setting is wrong, UsageError if
        OPENAI_BASE_URL is.
        """
        from perstack_openai.provider import create

        return create(config)


@hookimpl
def perstack_providers() -> Sequence[ProviderFactory]:
    """Provider `openai`."""
    return [OpenAIProviderFactory()]
