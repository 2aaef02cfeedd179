"""What generations cost."""

from __future__ import annotations

from pydantic import Field

from perstack.core.base import Fact, falsy

_MOST = 10**12
"""Tokens of one generation."""


class Usage(Fact):
    """Tokens of one generation, or a sum of several.

    `input_tokens` counts everything that was sent, cached tokens included; `output_tokens` everything that was
    generated, reasoning included. `total_tokens` is their sum unless the provider says more.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = Field(default=0, exclude_if=falsy)
    total_tokens: int = 0
    cached_input_tokens: int = Field(default=0, exclude_if=falsy)
    cache_write_tokens: int = Field(default=0, exclude_if=falsy)
    """Of what was sent, what the provider stored for later and charges more for."""
    cost_usd: float | None = Field(default=None, exclude_if=lambda value: value is None)
    """What it cost, where the price is known, to nine decimals."""

    @classmethod
    def of(
        cls, input_tokens: int, output_tokens: int, *, reasoning: int = 0, cached: int = 0, cache_writes: int = 0
    ) -> Usage:
        """A Usage whose total is input plus output."""
        return cls(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            reasoning_tokens=reasoning,
            total_tokens=input_tokens + output_tokens,
            cached_input_tokens=cached,
            cache_write_tokens=cache_writes,
        )

    @property
    def unpriced_tokens(self) -> int:
        """All of them, if what they cost is not known."""
        return self.total_tokens if self.cost_usd is None else 0

    def plausible(self) -> Usage:
        """The same, or with counts that a provider can mean: none is below zero or beyond all reason, and the total is
        no less than its parts."""
        counts = {name: count for name, count in self if isinstance(count, int)}
        wrong = {name: min(max(count, 0), _MOST) for name, count in counts.items() if not 0 <= count <= _MOST}
        least = sum((counts | wrong)[name] for name in ("input_tokens", "output_tokens"))
        if (counts | wrong)["total_tokens"] < least:
            wrong["total_tokens"] = least
        return self.model_copy(update=wrong) if wrong else self

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            total_tokens=self.total_tokens + other.total_tokens,
            cached_input_tokens=self.cached_input_tokens + other.cached_input_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            cost_usd=_sum(self.cost_usd, other.cost_usd),
        )


def _sum(one: float | None, other: float | None) -> float | None:
    """Rounded, so that a sum is the same in whatever order it is made."""
    return other if one is None else one if other is None else round(one + other, 9)


NO_USAGE = Usage()


class ModelShare(Fact):
    """What one of several models has used."""

    usage: Usage = NO_USAGE
    unpriced_tokens: int = Field(default=0, exclude_if=falsy)
    """Of its tokens, those whose price was not known."""


class Charge(Fact):
    """What counts against a budget where it is not what was reported."""

    tokens: int = 0
    cost_usd: float | None = None
    """None where no price is known, or none was asked for."""

    def __add__(self, other: Charge | None) -> Charge:
        if other is None:
            return self
        return Charge(tokens=self.tokens + other.tokens, cost_usd=_sum(self.cost_usd, other.cost_usd))


def together(one: Charge | None, other: Charge | None) -> Charge | None:
    """Both, where there is something."""
    return other if one is None else one + other
