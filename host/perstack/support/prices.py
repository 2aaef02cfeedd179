"""Published prices of models, as `genai-prices` knows them, for the providers of vendors that publish prices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perstack.core.base.usage import Usage
from perstack.dataclass import dataclass
from perstack.ports.provider import OfferedModel, PriceList, PriceSource

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo

_QUERY_TOKENS = 1_000  # tokens per price query: few enough to stay in every vendor's first price tier


@dataclass(frozen=True, slots=True)
class PublishedPrices(PriceSource):
    """Published prices of one vendor, by the vendor's id in that library."""

    vendor: str

    def load(self) -> PriceList:
        """Load the library, which takes 0.2 s the first time, and return its price list."""
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
                return None, None  # an unknown model, or inconsistent token counts
            return float(found.total_price), found.model.context_window

        return look_up

    def models(self) -> Sequence[OfferedModel]:
        """Return the vendor's models with a published price that are not deprecated, by name."""
        from genai_prices.data_snapshot import get_snapshot

        found = next((one for one in get_snapshot().providers if one.id == self.vendor), None)
        known = () if found is None else (one for one in found.models if not one.deprecated)
        return sorted((self._offered(one) for one in known), key=lambda one: one.name)

    def _offered(self, model: ModelInfo) -> OfferedModel:
        price = self.load()
        each = (Usage(input_tokens=_QUERY_TOKENS), Usage(output_tokens=_QUERY_TOKENS))
        into, out = (price(model.id, usage)[0] for usage in each)
        return OfferedModel(model.id, model.context_window, _of_million(into), _of_million(out))


def _of_million(price: float | None) -> float | None:
    return None if price is None else round(price * 1_000_000 / _QUERY_TOKENS, 6)
