"""Settings of provider `anthropic`, apart from the codec: a Run is shown as started before the codec is imported."""

from __future__ import annotations

from typing import ClassVar, Literal

from perstack.http_providers.endpoint import EndpointSettings

REQUIRED = frozenset({"max_tokens"})  # reserved fields of a request, in addition to those of every format


class AnthropicSettings(EndpointSettings):
    """Settings of provider `anthropic`, in addition to `EndpointSettings`."""

    CHANGE_REPLIES: ClassVar[frozenset[str]] = EndpointSettings.CHANGE_REPLIES | {"thinking"}

    thinking: Literal["budget", "adaptive"] | None = None
    """Form of the model's reasoning budget: a number of tokens, or an effort. None: decided by the model's name."""
