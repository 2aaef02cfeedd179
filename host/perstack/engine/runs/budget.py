"""A Job's budget while it is driven: what a generation may cost at most, and waiting for room."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable

from perstack.core.base import JsonObject
from perstack.core.definitions import Budget
from perstack.core.digests import KeptTools
from perstack.core.ids import number_of_run
from perstack.core.models import parts_of
from perstack.core.policy.budget import (
    LEAST,
    LEAST_THINKING,
    NOTHING,
    OF_ENDPOINT,
    WANTED,
    Amount,
    Bound,
    Exceeded,
    Grant,
    Ledger,
    Wait,
)
from perstack.core.runs.state import Run
from perstack.core.runs.switching import models_of
from perstack.core.usage import Charge, Usage
from perstack.engine.prices import Prices
from perstack.errors import ProviderError


class UnknownPrice(ProviderError):
    """A budget in dollars, and a model that nobody knows the price of."""

    exit_code = 2

    def __init__(self, provider: str, model: str) -> None:
        name = f"{provider}/{model}"
        super().__init__(
            f"what {name} costs is not known, and there is a maxCost: give its price in perstack.toml,"
            f' [prices."{name}"] with `input` and `output`',
            name="UnknownPrice",
        )


class Spending:
    """The ledger of one Job, for all its Runs that are driven in this process."""

    def __init__(self, limit: Budget | None, prices: Prices, runs: Iterable[Run], root: str = "") -> None:
        """`root` is the Run that is driven apart from its Job, if that is so: `limit` holds for it and all below it."""
        self.ledger = Ledger(limit, root)
        self._prices = prices
        self._has_room = asyncio.Event()
        """Set, and replaced, when less is promised than before."""
        self._writers: dict[str, Callable[[], Awaitable[None]]] = {}
        self._unwritten: set[str] = set()
        """The Runs whose promises have changed and may not be on disk yet."""
        for run in sorted(runs, key=lambda run: number_of_run(run.id)):
            self.ledger.take(run, at_rest=True)

    def watch(self, run: Run) -> None:
        """Take in the state of a Run."""
        if self.ledger.take(run):
            self._unwritten.add(run.id)
            self._tell()

    def writes(self, run_id: str, flush: Callable[[], Awaitable[None]]) -> None:
        """How what is noted of a Run gets on disk: before another spends what it has given back."""
        self._writers[run_id] = flush

    async def known_price(self, run: Run) -> None:
        """Raises UnknownPrice if a budget of this Run is in dollars, and one of its models has no price."""
        if self.ledger.wants_prices(run.id):
            for name in models_of(run.start):
                await self._cost(*parts_of(name), 1)

    async def reserve(self, run: Run, tools: KeptTools, instruction: str, settings: JsonObject) -> Grant | Exceeded:
        """What the next generation of a Run may have; waits while parallel ones could leave it some. Reserves nothing:
        whoever is granted something records it before anything else happens. Raises UnknownPrice."""
        given = settings.get("maxTokens")
        most = given if isinstance(given, int) and given > 0 else None
        thinks = run.start.reasoning_budget not in (None, "none", 0)
        wanted = _wanted(run, thinks=thinks) if most is None else most
        least = max(LEAST_THINKING if thinks else LEAST, 2 * (run.cut_at or 0))
        sent = _most_sent(run, tools, instruction)
        return await self._room(run, await self._bound(run, sent, max(wanted, 2 * (run.cut_at or 0)), least))

    async def reserve_summary(self, run: Run, provider: str, model: str, sent: int, wanted: int) -> Grant | Exceeded:
        """The same for a summary of a Run's history, of at most `wanted` tokens. Raises UnknownPrice."""
        return await self._room(run, await self._bound_of(run, provider, model, sent + OF_ENDPOINT, wanted, wanted))

    async def reserve_sample(
        self, run: Run, sent: int, wanted: int | None, before: tuple[Usage, Charge | None]
    ) -> Grant | Exceeded:
        """The same for a generation that a tool asks for.

        What its call has used `before` does not come back while it waits.
        """
        bound = await self._bound(run, sent + OF_ENDPOINT, wanted or WANTED, LEAST)
        mine = Amount.of_usage(before[0]) + Amount.of_charge(before[1])
        return await self._room(run, bound, mine)

    def settle_sample(self, run: Run, key: str, used: Usage, granted: Amount) -> None:
        """What it has used: until the call has its result, its Run's state has what was granted."""
        self.ledger.hold(key, run.id, Amount.of_usage(used) - granted)
        self._tell()

    def recorded_sample(self, key: str) -> None:
        """What the call has used is in its Run's log."""
        if self.ledger.drop(key):
            self._tell()

    async def _room(self, run: Run, bound: Bound, mine: Amount = NOTHING) -> Grant | Exceeded:
        while True:
            await self._write_all_but(run.id)
            decision = self.ledger.reserve(run.id, bound, mine=mine)
            if not isinstance(decision, Wait):
                return decision
            await self._has_room.wait()

    async def _write_all_but(self, run_id: str) -> None:
        """Else a crash would undo what a Run has given back, and not what another has taken of it."""
        while others := self._unwritten - {run_id}:
            for other in others:
                self._unwritten.discard(other)
                if other in self._writers:
                    await self._writers[other]()

    async def _bound(self, run: Run, sent: int, wanted: int, least: int) -> Bound:
        return await self._bound_of(run, run.provider, run.model, sent, wanted, least)

    async def _bound_of(self, run: Run, provider: str, model: str, sent: int, wanted: int, least: int) -> Bound:
        if not self.ledger.wants_prices(run.id):
            return Bound(sent, wanted, least)
        input_nano, output_nano = await self._cost(provider, model, sent)
        return Bound(sent, wanted, least, input_nano, output_nano)

    async def _cost(self, provider: str, model: str, sent: int) -> tuple[int, int]:
        cost = await self._prices.dearest(provider, model, sent)
        if cost is None:
            raise UnknownPrice(provider, model)
        return cost

    def _tell(self) -> None:
        has_room, self._has_room = self._has_room, asyncio.Event()
        has_room.set()


def _wanted(run: Run, *, thinks: bool) -> int:
    if not thinks:
        return WANTED
    budget = run.start.reasoning_budget
    return WANTED + (budget if isinstance(budget, int) else 3 * WANTED)


def _most_sent(run: Run, tools: KeptTools, instruction: str) -> int:
    """Tokens that a request has at most: one for each byte. What an endpoint has counted before is known better."""
    size = run.messages.size(len(run.messages))
    # beside the instruction, which has it too, a schema may be sent in the format's own way
    shape = 0 if run.schema is None else len(json.dumps(run.schema))
    whole = size + len(instruction.encode("utf-8", "surrogatepass")) + len(tools.blob) + shape + OF_ENDPOINT
    before = run.counted
    if before is None or before.tools_digest != tools.digest or before.messages > len(run.messages):
        return whole
    return min(whole, before.tokens + size - run.messages.size(before.messages) + OF_ENDPOINT // 10)
