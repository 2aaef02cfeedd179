"""Provider `mcp-sampling`: the model of the editor that runs the host, with no key.

Source: MCP 2025-11-25, sampling (`sampling/createMessage` with tools). The client that is asked is that of the call
which a Job is driven for. Nothing of the SDK is imported before the first generation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING

from perstack.dataclass import dataclass
from perstack.errors import UsageError
from perstack.ports.hooks import hookimpl
from perstack.ports.provider import Delta, Generation, GenerationRequest, Provider, ProviderConfig, ProviderFactory

if TYPE_CHECKING:
    from perstack.frontends.mcp_server.asking import Context

CALLER: ContextVar[Context | None] = ContextVar("CALLER", default=None)
"""The call that a Job is driven for; a Job's tasks inherit it."""

NAME = "mcp-sampling"

_MAX_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class SamplingProvider:
    """Asks whoever has called."""

    max_tokens: int

    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        """One generation by the client's model, which comes in one piece. Raises ProviderError."""
        from perstack.frontends.mcp_server.sampled import sampled

        generation = await sampled(CALLER.get(), request, self.max_tokens)
        if generation.reply.text:
            on_delta(Delta("text", generation.reply.text))
        return generation

    def takes(self, model: str, mime_type: str) -> bool:
        """Images: sampling has no other content."""
        return mime_type.startswith("image/")

    async def close(self) -> None:
        """The connection is not ours."""


@dataclass(frozen=True, slots=True)
class SamplingFactory:
    """Registered by `perstack mcp` only."""

    name: str = NAME
    priority: int = 1000
    default_model: str | None = "default"
    how_to_configure: str = "run `perstack mcp` from an editor that offers sampling"

    def is_configured(self, env: Mapping[str, str]) -> bool:
        """Never of itself: whose model is used, and paid for, is to be said."""
        return False

    def create(self, config: ProviderConfig) -> Provider:
        """Raises UsageError for a setting that is none."""
        most = config.setting.get("maxTokens", _MAX_TOKENS)
        if isinstance(most, bool) or not isinstance(most, int) or most < 1 or set(config.setting) - {"maxTokens"}:
            raise UsageError(f"provider {NAME} has one setting, `maxTokens`, a whole number from 1")
        return SamplingProvider(most)


class SamplingPlugin:
    """For `Host(plugins=…)`."""

    @hookimpl
    def perstack_providers(self) -> Sequence[ProviderFactory]:
        """Provider `mcp-sampling`."""
        return [SamplingFactory()]
