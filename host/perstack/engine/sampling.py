"""Generations that a tool asks the Run's own model for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count

from perstack.core.messages import History, estimated_tokens
from perstack.core.policy.budget import Exceeded, Grant, is_reported, is_uncharged
from perstack.core.run_place import RunPlace
from perstack.core.runs.state import Run
from perstack.core.usage import NO_USAGE, Charge, Usage
from perstack.engine.gates import through
from perstack.engine.prices import Prices
from perstack.engine.providers import Endpoint
from perstack.engine.spending import Spending
from perstack.engine.tries import error_info
from perstack.errors import ProviderError
from perstack.ports.provider import BlobReader, Generation, GenerationRequest
from perstack.ports.skill import Sample, SampleRequest


class Sampling:
    """The Run's model for one call of one tool, and what it has cost."""

    def __init__(
        self,
        run: Run,
        endpoint: Endpoint,
        blobs: BlobReader,
        prices: Prices,
        spending: Spending | None,
        key: str,
        begin: Callable[[Charge], Awaitable[None]],
        place: RunPlace | None = None,
    ) -> None:
        """`begin` records what a generation may cost, before it is asked for; `place` is the Run's, of a recording."""
        self._begin = begin
        self._place = place
        self._run = run
        self._endpoint = endpoint
        self._blobs = blobs
        self._prices = prices
        self._spending = spending
        self._key = key
        self.usage: Usage | None = None
        self.assumed: Charge | None = None
        """What counts besides, because nobody said what was used."""
        self._numbers = count(1)

    async def __call__(self, request: SampleRequest) -> Sample:
        """One generation, without tools and without retries. Raises ProviderError, also where no budget allows it."""
        start = self._run.start
        key = f"{self._key}/{next(self._numbers)}"
        messages = History(request.messages)
        sent = messages.size(len(messages)) + len(request.instruction.encode("utf-8", "surrogatepass"))
        granted = await self._reserved(request, sent)
        if granted is not None:
            await self._begin(granted.amount.as_charge())
        generation = GenerationRequest(
            model=self._run.model,
            instruction=request.instruction,
            messages=request.messages,
            tools=(),
            blobs=self._blobs,
            allow_tools=False,
            max_tokens=request.max_tokens if granted is None else granted.max_tokens,
            temperature=request.temperature,
            expert_key=start.expert_key,
            place=self._place,
            purpose="sample",
            step=self._run.step,
        )
        try:
            with self._endpoint.place() as place:
                reply = await through(place, estimated_tokens(sent), lambda: self._tried(generation))
        except ProviderError as error:
            if is_uncharged(error_info(error)):
                self._settle(key, NO_USAGE, granted)
            else:
                self._assume(granted)
            raise
        usage, _ = await self._prices.known(self._run.provider, self._run.model, reply)
        self.usage = (self.usage or NO_USAGE) + usage
        has_reply = bool(reply.reply.contents)
        if granted is not None and not is_reported(usage, granted.amount.as_charge(), has_reply=has_reply):
            self._assume(granted)
        else:
            self._settle(key, usage, granted)
        return Sample(reply.reply, self._run.model, reply.finish_reason)

    async def _tried(self, request: GenerationRequest) -> Generation:
        limit = self._run.limits.timeout
        try:
            async with asyncio.timeout(limit / 1000):
                return await self._endpoint.provider.generate(request, lambda delta: None)
        except TimeoutError as error:
            raise ProviderError(f"no whole reply within {limit} ms", name="Timeout", is_retryable=True) from error

    def recorded(self) -> None:
        """What it has used is in the Run's log."""
        if self._spending is not None:
            for number in range(1, next(self._numbers)):
                self._spending.recorded_sample(f"{self._key}/{number}")

    def _settle(self, key: str, usage: Usage, granted: Grant | None) -> None:
        if self._spending is not None and granted is not None:
            self._spending.settle_sample(self._run, key, usage, granted.amount)

    def _assume(self, granted: Grant | None) -> None:
        if granted is not None:
            self.assumed = granted.amount.as_charge() + self.assumed

    async def _reserved(self, request: SampleRequest, sent: int) -> Grant | None:
        """What it may cost; None where there is no budget."""
        if self._spending is None:
            return None
        mine = (self.usage or NO_USAGE, self.assumed)
        granted = await self._spending.reserve_sample(self._run, sent, request.max_tokens, mine)
        if isinstance(granted, Exceeded):
            raise ProviderError("no generation: the budget leaves no room for it", name="ExceededBudget")
        return granted
