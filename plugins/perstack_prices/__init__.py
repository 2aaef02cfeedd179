"""Published prices of models, for the providers whose vendors publish theirs: as far as `genai-prices` knows them."""

from __future__ import annotations

from perstack.core.usage import Usage
from perstack.dataclass import dataclass
from perstack.ports.provider import PriceList


@dataclass(frozen=True, slots=True)
class PublishedPrices:
    """Those of one vendor, as that library names it."""

    vendor: str

    def load(self) -> PriceList:
        """Imports the library, which takes 0.2 s the first time."""
        import genai_prices

        def look_up(model: str, usage: Usage) -> tuple[float | None, int | None]:
            spent = genai_prices.Usage(
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                cache_read_tokens=usage.cached_input_tokens or None,
                cache_write_tokens=usage.cache_write_tokens or None,
            )
            try:
                found = genai_prices.calc_price(spent, model, provider_id=self.vendor)
            except (LookupError, ValueError, ArithmeticError):
                return None, None  # a model that it does not know, or counts that do not add up
            return float(found.total_price), found.model.context_window

        return look_up
