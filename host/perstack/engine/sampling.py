"""Generations that a tool asks the Run's own model for."""

from __future__ import annotations

import asyncio

from perstack.core.runs.state import Run
from perstack.core.usage import NO_USAGE, Usage
from perstack.engine.prices import Prices
from perstack.errors import ProviderError
from perstack.ports.provider import BlobReader, GenerationRequest, Provider
from perstack.ports.skill import Sample, SampleRequest


class Sampling:
    """The Run's model for one call of one tool, and what it has cost."""

    def __init__(self, run: Run, provider: Provider, blobs: BlobReader, prices: Prices) -> None:
        self._run = run
        self._provider = provider
        self._blobs = blobs
        self._prices = prices
        self.usage: Usage | None = None

    async def __call__(self, request: SampleRequest) -> Sample:
        """One generation, without tools and without retries. Raises ProviderError."""
        start = self._run.start
        generation = GenerationRequest(
            model=start.model,
            instruction=request.instruction,
            messages=request.messages,
            tools=(),
            blobs=self._blobs,
            allow_tools=False,
            max_tokens=request.max_tokens,
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
        return Sample(reply.reply, start.model, reply.finish_reason)
