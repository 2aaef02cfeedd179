"""Budgets of a driven Job: each generation reserves the most that it may cost, or waits until others release some."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from perstack.core.base.ids import number_of_run
from perstack.core.base.records import JsonObject
from perstack.core.base.usage import NO_AMOUNT, Amount, BudgetRefusal, Charge, Usage
from perstack.core.definitions.models import split_full_name
from perstack.core.definitions.settings import Budget
from perstack.core.jobs.budget_ledger import (
    ENDPOINT_OVERHEAD_TOKENS,
    FIRST_REPLY_TOKENS,
    MIN_REPLY_TOKENS,
    MIN_THINKING_REPLY_TOKENS,
    Bound,
    Grant,
    Ledger,
    WaitForRoom,
)
from perstack.core.jobs.job import Job
from perstack.core.messages.messages import Message, blobs_of
from perstack.core.runs.context_window import window_of
from perstack.core.runs.request_digest import StoredTools
from perstack.core.runs.retries_and_fallbacks import models_of
from perstack.core.runs.state import Run
from perstack.engine.log.run_session import RunSession
from perstack.engine.plugins.providers_and_prices import Prices
from perstack.engine.runs.input_protocols import MEDIA, MediaTokens
from perstack.errors import ProviderError
from perstack.ports.parts import Parts
from perstack.ports.provider import BlobReader, OfferedProviderTool
from perstack.system.user import notice

MAX_WINDOW_TOKENS = 10_000_000  # tokens of the largest context window of any known model


class UnknownPrice(ProviderError):
    """A model without a known price, in a Job with a budget in dollars."""

    exit_code = 2

    def __init__(self, provider: str, model: str) -> None:
        name = f"{provider}/{model}"
        super().__init__(
            f"the price of {name} is not known, and there is a maxCost: set it in perstack.toml,"
            f' [prices."{name}"] with `input` and `output`',
            name="UnknownPrice",
        )


class JobBudget:
    """The ledger and the time limits of one Job, for all its Runs that are driven in this process."""

    def __init__(
        self,
        job: Job,
        limit: Budget | None,
        prices: Prices,
        runs: Iterable[Run],
        parts: Parts,
        read: BlobReader,
        sessions: Mapping[str, RunSession],
        root: str = "",
    ) -> None:
        """Create the ledger from the states of `runs`.

        `root` is the Run that is driven apart from its Job, with `limit` for it and its descendants; "" for a whole
        Job. `read` returns the Job's media, and `parts` the function that bounds their tokens. `sessions` are the
        writers of the Runs that are driven now.
        """
        self._job = job
        self.ledger = Ledger(limit, root)
        self._prices = prices
        self._parts = parts
        self._read = read
        self._media_tokens: MediaTokens = {}
        self._unbounded: set[str] = set()  # Runs whose next request has a document without a bound on its tokens
        self._has_room = asyncio.Event()  # set and replaced when reserved amounts shrink
        self._sessions = sessions
        self._unwritten: set[str] = set()  # Runs whose reservations have shrunk, perhaps not on disk yet
        self._deadlines: dict[str, tuple[asyncio.Timeout, str | None]] = {}
        """The deadline of each Run, by Run id, with the key of the Expert whose budget sets it; None for the Job's."""
        for run in sorted(runs, key=lambda run: number_of_run(run.id)):
            self.ledger.update(run, at_rest=True)

    def watch(self, run: Run) -> None:
        """Update the ledger from a Run's new state, and wake waiting reservations if amounts were released."""
        if self.ledger.update(run):
            self._unwritten.add(run.id)
            self._notify()

    async def check_prices(self, run: Run) -> None:
        """Raise UnknownPrice if a budget of this Run is in dollars and one of its models has no price."""
        if self.ledger.needs_prices(run.id):
            for name in models_of(run.start):
                await self._highest_cost(*split_full_name(name), 1)

    async def reserve(
        self,
        run: Run,
        tools: StoredTools,
        instruction: str,
        settings: JsonObject,
        provider_tools: Sequence[OfferedProviderTool] = (),
    ) -> Grant | BudgetRefusal:
        """Return the grant for the next generation; wait while others may release amounts. Raises UnknownPrice.

        Nothing is reserved yet: the caller must record the grant before anything else happens.
        """
        max_tokens_setting = settings.get("maxTokens")
        max_tokens = max_tokens_setting if isinstance(max_tokens_setting, int) and max_tokens_setting > 0 else None
        uses_reasoning = run.start.reasoning_budget not in (None, "none", 0)
        wanted_tokens = _wanted_tokens(run, uses_reasoning=uses_reasoning) if max_tokens is None else max_tokens
        min_tokens = max(
            MIN_THINKING_REPLY_TOKENS if uses_reasoning else MIN_REPLY_TOKENS, 2 * (run.budget_cut_tokens or 0)
        )
        input_tokens = await self._max_sent_tokens(run, tools, instruction)
        bound = await self._bound(run, input_tokens, max(wanted_tokens, 2 * (run.budget_cut_tokens or 0)), min_tokens)
        if provider_tools and self.ledger.needs_prices(run.id):
            fee = await self._prices.highest_fee(run.provider, run.model, provider_tools)
            bound = replace(bound, input_nano=bound.input_nano + fee)
        decision = await self._reserve_when_possible(run, bound)
        if isinstance(decision, BudgetRefusal) and run.id in self._unbounded:
            notice(
                f"{run.id}: the tokens of a document are not known before a model has read it, so the budget must have"
                f" room for {input_tokens:,} tokens, the whole context"
            )
        return decision

    async def reserve_summary(
        self, run: Run, provider: str, model: str, sent_tokens: int, summary_tokens: int
    ) -> Grant | BudgetRefusal:
        """Reserve, as `reserve` does, a summary of a Run's history. Raises UnknownPrice."""
        input_tokens = sent_tokens + ENDPOINT_OVERHEAD_TOKENS
        bound = await self._bound_for_model(run, provider, model, input_tokens, summary_tokens, summary_tokens)
        return await self._reserve_when_possible(run, bound)

    async def reserve_sample(
        self,
        run: Run,
        input_bytes: int,
        messages: Sequence[Message],
        wanted_tokens: int | None,
        earlier_usage: tuple[Usage, Charge | None],
    ) -> Grant | BudgetRefusal:
        """Reserve, as `reserve` does, a generation that a tool asks for. Raises UnknownPrice.

        `earlier_usage`: usage of earlier generations of the call, which is not released while it waits.
        """
        input_tokens = await self._add_media_tokens(run, input_bytes, messages) + ENDPOINT_OVERHEAD_TOKENS
        bound = await self._bound(run, input_tokens, wanted_tokens or FIRST_REPLY_TOKENS, MIN_REPLY_TOKENS)
        earlier_amount = Amount.of_usage(earlier_usage[0]) + Amount.of_charge(earlier_usage[1])
        return await self._reserve_when_possible(run, bound, earlier_amount)

    def settle_sample(self, run: Run, key: str, used_usage: Usage, granted_amount: Amount) -> None:
        """Count the actual usage of a sample in place of the granted amount, until its call has a result."""
        self.ledger.hold(key, run.id, Amount.of_usage(used_usage) - granted_amount)
        self._notify()

    def confirm_sample(self, key: str) -> None:
        """Stop counting a sample separately: its Run's log contains its usage."""
        if self.ledger.release(key):
            self._notify()

    async def _reserve_when_possible(
        self, run: Run, bound: Bound, used_amount: Amount = NO_AMOUNT
    ) -> Grant | BudgetRefusal:
        while True:
            await self._flush_releases_of_others(run.id)
            decision = self.ledger.reserve(run.id, bound, own=used_amount)
            if not isinstance(decision, WaitForRoom):
                return decision
            await self._has_room.wait()

    async def _flush_releases_of_others(self, run_id: str) -> None:
        """Flush the releases of other Runs, so that a crash cannot undo a release that this Run has used."""
        while run_ids := self._unwritten - {run_id}:
            for other_id in run_ids:
                self._unwritten.discard(other_id)
                session = self._sessions.get(other_id)
                if session is not None:
                    await session.flush()

    async def _max_sent_tokens(self, run: Run, tools: StoredTools, instruction: str) -> int:
        """Return the maximum tokens of a request: one per byte, or as the endpoint counted, plus media beyond that."""
        messages, counted, message_count = run.messages, run.context.counted, len(run.messages)
        size = messages.size(message_count)
        # an endpoint may get the schema in a separate field, in addition to the copy in the instruction
        schema_size = 0 if run.result_schema is None else len(json.dumps(run.result_schema))
        estimate = (
            size
            + len(instruction.encode("utf-8", "surrogatepass"))
            + len(tools.blob)
            + schema_size
            + ENDPOINT_OVERHEAD_TOKENS
        )
        if counted is None or counted.tools_digest != tools.digest or counted.messages > message_count:
            return (
                estimate if not messages.blobs(message_count) else await self._add_media_tokens(run, estimate, messages)
            )
        counted_estimate = counted.tokens + size - messages.size(counted.messages) + ENDPOINT_OVERHEAD_TOKENS // 10
        if messages.blobs(message_count) == messages.blobs(counted.messages):
            return min(estimate, counted_estimate) if not messages.blobs(message_count) else counted_estimate
        return await self._add_media_tokens(run, counted_estimate, messages[counted.messages :])

    async def _add_media_tokens(self, run: Run, input_tokens: int, messages: Sequence[Message]) -> int:
        """Return `input_tokens` plus those of media beyond their bytes; without a bound, at least the whole window."""
        self._unbounded.discard(run.id)
        if not any(map(blobs_of, messages)):
            return input_tokens
        bound = self._parts.get(MEDIA).max_tokens_beyond_bytes
        tokens = await bound(messages, run.adaptations, self._read, self._media_tokens)
        if tokens is None:
            self._unbounded.add(run.id)
            return max(input_tokens, await self._max_window(run))
        return input_tokens + tokens

    async def _max_window(self, run: Run) -> int:
        """Return the maximum tokens that the model takes; for an unknown model, more than for any known one."""
        windows = (await self._prices.window(run.provider, run.model), run.context.window)
        return max((window for window in windows if window is not None), default=window_of(run) or MAX_WINDOW_TOKENS)

    async def _bound(self, run: Run, input_tokens: int, wanted_tokens: int, min_tokens: int) -> Bound:
        return await self._bound_for_model(run, run.provider, run.model, input_tokens, wanted_tokens, min_tokens)

    async def _bound_for_model(
        self, run: Run, provider: str, model: str, input_tokens: int, wanted_tokens: int, min_tokens: int
    ) -> Bound:
        if not self.ledger.needs_prices(run.id):
            return Bound(input_tokens, wanted_tokens, min_tokens)
        input_nano, output_nano = await self._highest_cost(provider, model, input_tokens)
        return Bound(input_tokens, wanted_tokens, min_tokens, input_nano, output_nano)

    async def _highest_cost(self, provider: str, model: str, input_tokens: int) -> tuple[int, int]:
        cost = await self._prices.highest_cost(provider, model, input_tokens)
        if cost is None:
            raise UnknownPrice(provider, model)
        return cost

    # --- time limits, each for a Run and all its descendants ------------------------------------------------------

    @asynccontextmanager
    async def time_limit(self, run_id: str, expert_key: str | None) -> AsyncGenerator[None]:
        """Cancel the block when a time limit of the Job or of an Expert expires; `expired_time_limit` returns which."""
        remaining_ms = self.ledger.time_left(expert_key)
        if remaining_ms is None:
            yield
            return
        deadline = asyncio.timeout(remaining_ms / 1000)
        self._deadlines[run_id] = deadline, expert_key
        try:
            async with deadline:
                yield
        except TimeoutError:
            if not deadline.expired():
                raise
        finally:
            del self._deadlines[run_id]

    def expired_time_limit(self, run: Run) -> BudgetRefusal | None:
        """Return the time limit that has expired for a cancelled Run; None if it is cancelled for another reason."""
        run_id: str | None = run.id
        while run_id is not None:
            deadline, expert_key = self._deadlines.get(run_id, (None, None))
            if deadline is not None and deadline.expired():
                return self.ledger.out_of_time(expert_key)
            by = self._job.runs[run_id].start.delegated_by
            run_id = None if by is None else by.run_id
        return None

    def _notify(self) -> None:
        has_room, self._has_room = self._has_room, asyncio.Event()
        has_room.set()


def _wanted_tokens(run: Run, *, uses_reasoning: bool) -> int:
    if not uses_reasoning:
        return FIRST_REPLY_TOKENS
    budget = run.start.reasoning_budget
    return FIRST_REPLY_TOKENS + (budget if isinstance(budget, int) else 3 * FIRST_REPLY_TOKENS)
