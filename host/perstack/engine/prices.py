"""What a generation cost, and how much its model can hold: as far as `genai-prices` knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from perstack.core.usage import Usage
from perstack.ports.provider import Generation

_VENDORS = {
    "anthropic": "anthropic",
    "openai": "openai",
    "google": "google",
    "azure-openai": "azure",
    "deepseek": "deepseek",
    "amazon-bedrock": "aws",
    "google-vertex": "google",
}
"""Our providers whose prices are published, as the library names them."""

Lookup = Callable[[str, str, Usage], tuple[float | None, int | None]]


class Prices:
    """Adds cost and context size to what a provider reported."""

    def __init__(self) -> None:
        self._loading: asyncio.Future[Lookup] | None = None

    def prepare(self, provider: str) -> None:
        """Begin to load the prices, if those of this provider's models are published: they are needed soon."""
        if self._loading is None and provider in _VENDORS:
            # their import takes 0.2 s, which is best spent while the model works
            self._loading = asyncio.get_running_loop().run_in_executor(None, _load)

    async def known(self, provider: str, model: str, generation: Generation) -> tuple[Usage, int | None]:
        """The usage with its cost, and how many tokens the model's context holds; None where unknown."""
        self.prepare(provider)
        usage = generation.usage.plausible()
        vendor = _VENDORS.get(provider)
        if vendor is None or self._loading is None:
            return usage, generation.context_window
        look_up = await asyncio.shield(self._loading)
        cost, window = look_up(vendor, model, usage)
        return usage.model_copy(update={"cost_usd": cost}), generation.context_window or window


def _load() -> Lookup:
    import genai_prices

    def look_up(vendor: str, model: str, usage: Usage) -> tuple[float | None, int | None]:
        spent = genai_prices.Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cached_input_tokens or None,
            cache_write_tokens=usage.cache_write_tokens or None,
        )
        try:
            found = genai_prices.calc_price(spent, model, provider_id=vendor)
        except (LookupError, ValueError, ArithmeticError):
            return None, None  # a model that it does not know, or counts that do not add up
        return round(float(found.total_price), 9), found.model.context_window

    return look_up
