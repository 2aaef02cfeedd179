"""What generations cost."""

from __future__ import annotations

from pydantic import Field

from perstack.core.base import Fact, falsy


class Usage(Fact):
    """Tokens of one generation, or a sum of several.

    `input_tokens` counts everything that was sent, cached tokens included; `output_tokens` everything that was
    generated, reasoning included. `total_tokens` is their sum unless the provider says otherwise.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = Field(default=0, exclude_if=falsy)
    total_tokens: int = 0
    cached_input_tokens: int = Field(default=0, exclude_if=falsy)

    @classmethod
    def of(cls, input_tokens: int, output_tokens: int, *, reasoning: int = 0, cached: int = 0) -> Usage:
        """A Usage whose total is input plus output."""
        return cls(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            reasoning_tokens=reasoning,
            total_tokens=input_tokens + output_tokens,
            cached_input_tokens=cached,
        )

    def __add__(self, other: Usage) -> Usage:
        return Usage.model_construct(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            total_tokens=self.total_tokens + other.total_tokens,
            cached_input_tokens=self.cached_input_tokens + other.cached_input_tokens,
        )


NO_USAGE = Usage()
