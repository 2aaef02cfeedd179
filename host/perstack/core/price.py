"""What a model's tokens cost, as perstack.toml says it."""

from typing import Annotated

from perstack.core.base import Fact
from perstack.core.keys import Key, Rule
from perstack.core.rules import wrong_price
from perstack.core.usage import Usage


class Price(Fact):
    """`[prices."provider/model"]`: what a model's tokens cost, in US dollars for a million."""

    name: str
    input: Annotated[float, Rule(wrong_price), Key("what is sent", is_required=True)] = 0.0
    output: Annotated[float, Rule(wrong_price), Key("what is generated, reasoning included", is_required=True)] = 0.0
    cache_read: Annotated[
        float | None, Rule(wrong_price), Key("what the provider had cached; the price of `input` if not given")
    ] = None
    cache_write: Annotated[
        float | None, Rule(wrong_price), Key("what the provider caches; the price of `input` if not given")
    ] = None

    @property
    def dearest_input(self) -> float:
        """What a token that is sent costs at most."""
        return max(self.input, self.cache_read or 0.0, self.cache_write or 0.0)

    def cost_of(self, usage: Usage) -> float:
        """What that much costs, in US dollars."""
        plain = max(0, usage.input_tokens - usage.cached_input_tokens - usage.cache_write_tokens)
        read = self.input if self.cache_read is None else self.cache_read
        written = self.input if self.cache_write is None else self.cache_write
        sent = plain * self.input + usage.cached_input_tokens * read + usage.cache_write_tokens * written
        return (sent + usage.output_tokens * self.output) / 1_000_000
