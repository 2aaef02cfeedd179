"""Generations that a tool asks the Run's own model for."""

from __future__ import annotations

import asyncio

from perstack.core.messages import History
from perstack.core.policy.budget import Exceeded
from perstack.core.runs.state import Run
from perstack.core.usage import NO_USAGE, Usage
from perstack.engine.prices import Prices
from perstack.engine.spending import Spending
from perstack.errors import ProviderError
from perstack.ports.provider import BlobReader, GenerationRequest, Provider
from perstack.ports.skill import Sample, SampleRequest


class Sampling:
    """The Run's model for one call of one tool, and what it has cost."""

    def __init__(
        self, run: Run, provider: Provider, blobs: BlobReader, prices: Prices, spending: Spending | None, key: str
    ) -> None:
        self._run = run
        self._provider = provider
        self._blobs = blobs
        self._prices = prices
        self._spending = spending
        self._key = key
        self.usage: Usage | None = None

    async def __call__(self, request: SampleRequest) -> Sample:
        """One generation, without tools and without retries. Raises ProviderError, also where no budget allows it."""
        start = self._run.start
        most = await self._reserved(request)
        generation = GenerationRequest(
            model=start.model,
            instruction=request.instruction,
            messages=request.messages,
            tools=(),
            blobs=self._blobs,
            allow_tools=False,
            max_tokens=most,
            temperature=request.temperature,
            expert_key=start.expert_key,
            step=self._run.step,
        )
        limit = self._run.limits.timeout
        try:
            async with asyncio.timeout(limit / 1000):
                reply = await self._provider.generate(generation, lambda delta: None)
        except TimeoutError as error:
            raise ProviderError(f"no whole reply within {limit} ms", name="Timeout", is_retryable=True) from error
        usage, _ = await self._prices.known(start.provider, start.model, reply)
        self.usage = (self.usage or NO_USAGE) + usage
        if self._spending is not None:
            self._spending.settle_sample(self._run, self._key, self.usage)
        return Sample(reply.reply, start.model, reply.finish_reason)

    async def _reserved(self, request: SampleRequest) -> int | None:
        """How many tokens the reply may have."""
        if self._spending is None:
            return request.max_tokens
        messages = History(request.messages)
        sent = messages.size(len(messages)) + len(request.instruction.encode("utf-8", "surrogatepass"))
        granted = await self._spending.reserve_sample(
            self._run, self._key, sent, request.max_tokens, self.usage or NO_USAGE
        )
        if isinstance(granted, Exceeded):
            raise ProviderError("no generation: the budget leaves no room for it", name="ExceededBudget")
        return granted.max_tokens
