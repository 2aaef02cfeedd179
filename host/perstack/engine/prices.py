"""What a generation cost, and how much its model can hold: as far as the provider's plugin knows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from perstack.core.definitions import Price
from perstack.core.policy.budget import nano
from perstack.core.usage import NO_USAGE, Usage
from perstack.engine.notices import notice
from perstack.ports.provider import Generation, PriceList, ProviderFactory, price_source, reports_cost

_MANY = 1_000_000
"""Tokens, to see what one of them costs."""


class Prices:
    """Adds cost and context size to what a provider reported. A price of perstack.toml goes before a published one."""

    def __init__(self, providers: Mapping[str, ProviderFactory], own: Iterable[Price] = ()) -> None:
        self._providers = providers
        self._own = {price.name: price for price in own}
        self._loading: dict[str, asyncio.Future[PriceList]] = {}
        self._failed: set[str] = set()

    def prepare(self, provider: str) -> None:
        """Begin to load the prices, if those of this provider's models are known: they are needed soon."""
        factory = self._providers.get(provider)
        source = None if factory is None else price_source(factory)
        if source is not None and provider not in self._loading:
            # an import may take long, and is best done while the model works
            self._loading[provider] = asyncio.get_running_loop().run_in_executor(None, source.load)

    async def known(self, provider: str, model: str, generation: Generation) -> tuple[Usage, int | None]:
        """The usage with its cost, and how many tokens the model's context holds; None where unknown."""
        self.prepare(provider)
        usage = generation.usage.plausible()
        loading, own = self._loading.get(provider), self._own.get(f"{provider}/{model}")
        cost: float | None = usage.cost_usd if self._is_reported(provider) else None
        window: int | None = None
        if loading is not None:
            cost, window = await self._looked_up(provider, loading, model, usage)
        if own is not None:
            cost = own.cost_of(usage)
        cost = None if cost is None else round(cost, 9)
        priced = usage if cost == usage.cost_usd else usage.model_copy(update={"cost_usd": cost})
        return priced, generation.context_window or window

    async def window(self, provider: str, model: str) -> int | None:
        """How many tokens the model's context holds; None where unknown."""
        self.prepare(provider)
        loading = self._loading.get(provider)
        return None if loading is None else (await self._looked_up(provider, loading, model, NO_USAGE))[1]

    async def dearest(self, provider: str, model: str, sent: int) -> tuple[int, int] | None:
        """What so many tokens sent cost at most, and each token generated after them, in billionths of a dollar.

        Cached or not, whichever is dearer. None if the price is not known.
        """
        own = self._own.get(f"{provider}/{model}")
        if own is not None:
            return nano(sent * own.dearest_input / 1_000_000), nano(own.output / 1_000_000)
        if self._is_reported(provider):
            return 0, 0
        self.prepare(provider)
        loading = self._loading.get(provider)
        if loading is None:
            return None
        costs: list[float] = []
        kinds = (Usage.of(sent, 0), Usage.of(sent, 0, cached=sent), Usage.of(sent, 0, cache_writes=sent))
        for usage in (*kinds, Usage.of(sent, _MANY)):
            cost, _ = await self._looked_up(provider, loading, model, usage)
            if cost is None:
                return None
            costs.append(cost)
        return nano(max(costs[:3])), nano(max(0.0, costs[3] - costs[0]) / _MANY)

    def _is_reported(self, provider: str) -> bool:
        factory = self._providers.get(provider)
        return factory is not None and reports_cost(factory)

    async def _looked_up(
        self, provider: str, loading: asyncio.Future[PriceList], model: str, usage: Usage
    ) -> tuple[float | None, int | None]:
        try:
            return (await asyncio.shield(loading))(model, usage)
        except Exception as error:  # noqa: BLE001 - whatever a plugin raises, the reply is there and is paid for
            if provider not in self._failed:
                self._failed.add(provider)
                notice(f"what models of {provider} cost is not known: {type(error).__name__}: {error}")
            return None, None
