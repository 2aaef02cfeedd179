"""Provider `mcp-sampling`: the calling editor's model. Source: MCP 2025-11-25, `sampling/createMessage` with tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING

from perstack.dataclass import dataclass
from perstack.errors import UsageError
from perstack.ports.hooks import hookimpl
from perstack.ports.provider import Delta, Generation, GenerationRequest, Provider, ProviderConfig, ProviderFactory

if TYPE_CHECKING:
    from perstack.doors.mcp.elicitation import Context

CALLER: ContextVar[Context | None] = ContextVar("CALLER", default=None)
"""The call for which a Job is driven; the Job's tasks inherit it."""

NAME = "mcp-sampling"

_MAX_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class _SamplingProvider(Provider):
    """A provider that asks the calling client."""

    max_tokens: int

    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        from perstack.doors.mcp.sampled import sampled

        generation = await sampled(CALLER.get(), request, self.max_tokens)
        if generation.reply.text:
            on_delta(Delta("text", generation.reply.text))
        return generation

    def takes(self, model: str, mime_type: str) -> bool:
        """Return True for images: sampling has no other attachments."""
        return mime_type.startswith("image/")

    async def close(self) -> None:
        """Do nothing: the connection belongs to the server."""


@dataclass(frozen=True, slots=True)
class _SamplingFactory(ProviderFactory):
    """The provider's factory, registered only by `perstack mcp`."""

    name: str = NAME
    priority: int = 1000
    default_model: str | None = "default"
    how_to_configure: str = "run `perstack mcp` from an editor that offers sampling"

    def is_configured(self, env: Mapping[str, str]) -> bool:
        """Return False: the user must choose explicitly whose model is used and paid for."""
        return False

    def create(self, config: ProviderConfig) -> Provider:
        most = config.setting.get("maxTokens", _MAX_TOKENS)
        if isinstance(most, bool) or not isinstance(most, int) or most < 1 or set(config.setting) - {"maxTokens"}:
            raise UsageError(f"provider {NAME} has one setting, `maxTokens`, a whole number from 1")
        return _SamplingProvider(most)


class SamplingPlugin:
    """The plugin for `Host(plugins=…)`."""

    @hookimpl
    def perstack_providers(self) -> Sequence[ProviderFactory]:
        """Return the factory of `mcp-sampling`."""
        return [_SamplingFactory()]
