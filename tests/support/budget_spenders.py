"""Many Runs that spend one budget, without a model and without waiting: each turn is chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from perstack.core.base.chain import Head
from perstack.core.base.ids import event_id_of
from perstack.core.base.usage import BudgetRefusal, Charge, Usage, nano
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.models import Price
from perstack.core.definitions.settings import Budget, Limits
from perstack.core.jobs.budget_ledger import MIN_REPLY_TOKENS, Bound, Grant, Ledger, is_reported
from perstack.core.messages.messages import TextPart
from perstack.core.runs.decide import budget_stop_event
from perstack.core.runs.events import StartRun, StoredEvent
from perstack.core.runs.events.generations import FinishGeneration, Retry, StartGeneration
from perstack.core.runs.events.lifecycle import ResumeRun, StopRunByExceededBudget
from perstack.core.runs.evolve import evolve
from perstack.core.runs.facts import DelegatedBy, ErrorInfo
from perstack.core.runs.state import Phase, Run, begin

Choose = Callable[[int], int]
"""Returns a number below its argument."""

PRICE = Price(name="p/m", input=3, output=15, cache_read=0.3, cache_write=3.75)
BUSY = ErrorInfo(name="Overloaded", message="busy", status_code=529, is_retryable=True)
CUT = ErrorInfo(name="CutStream", message="cut", is_retryable=True)


@dataclass
class Truth:
    """The endpoint's real charges, whatever it reports."""

    tokens: int = 0
    dollars: float = 0.0

    def charge(self, usage: Usage) -> Usage:
        usage = usage.model_copy(update={"cost_usd": round(PRICE.cost_of(usage), 9)})
        self.tokens += usage.total_tokens
        self.dollars += usage.cost_usd or 0
        return usage


@dataclass
class Spenders:
    """A Coordinator and its delegates, which have endless work."""

    choose: Choose
    budget: Budget
    delegates: int
    says_all: bool = True
    """Whether every endpoint reports its usage, and no process is killed."""
    truth: Truth = field(default_factory=Truth)
    runs: dict[str, Run] = field(default_factory=dict)
    events: list[StoredEvent] = field(default_factory=list)
    waits: int = 0

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.budget)
        for number in range(1, self.delegates + 2):
            by = None if number == 1 else DelegatedBy(expert_key="e", run_id="job-1", tool_call_id="c", tool_name="t")
            start = StartRun(
                **self._stamp(f"job-{number}", 1),
                query="q",
                model="m",
                provider="p",
                instruction="i",
                expert=Expert(key="e", instruction="i"),
                limits=Limits(budget=self.budget),
                delegated_by=by,
            )
            self._store_run(begin(start, Head(1, "")))

    def play(self, max_turns: int = 100_000) -> None:
        """Play until every delegate is stopped."""
        active = [run.id for run in self.runs.values() if not run.is_coordinator]
        for _ in range(max_turns):
            if not active:
                return
            if not self.says_all and self.choose(150) == 0:
                self._crash()
                continue
            run = self.runs[active[self.choose(len(active))]]
            if run.spending.reserved is None:
                self._begin_generation(run)
            else:
                self._end_generation(run)
            if self.runs[run.id].status != "running":
                active.remove(run.id)
        raise AssertionError("no end")

    def _begin_generation(self, run: Run) -> None:
        """Request a generation, and record its start, the stop of its Run, or the wait."""
        sent = 200 + self.choose(4_000)
        bound = Bound(
            sent,
            1_000 + self.choose(8_000),
            MIN_REPLY_TOKENS,
            nano(sent * PRICE.dearest_input / 1e6),
            nano(PRICE.output / 1e6),
        )
        decision = self.ledger.reserve(run.id, bound)
        if isinstance(decision, Grant):
            self._append_event(
                run,
                StartGeneration,
                step=run.step + 1 if run.phase is Phase.READY else max(1, run.step),  # or another attempt
                max_tokens=decision.max_tokens,
                reserved=decision.amount.as_charge(),
                tools_digest=f"{sent}",
            )
        elif isinstance(decision, BudgetRefusal):
            stop: StopRunByExceededBudget = budget_stop_event(decision, lambda ahead=0: self._next_stamp(run))
            self._store_run(evolve(run, stop, Head(run.head.seq + 1, "")))
        else:
            self.waits += 1

    def _choose_usage(self, run: Run) -> Usage:
        """Return a usage up to the expected maximum."""
        assert run.context.sending is not None
        assert run.reply_token_limit is not None
        sent = int(run.context.sending.tools_digest or 0)
        sent -= self.choose(sent)
        cached = self.choose(sent + 1)
        return Usage.of(
            sent, 1 + self.choose(run.reply_token_limit), cached=cached, cache_writes=self.choose(sent - cached + 1)
        )

    def _end_generation(self, run: Run) -> None:
        """End a generation: with a reply, without charge, cut off, or without usage, by chance."""
        outcome = self.choose(10)
        if outcome == 0:
            self._append_event(run, Retry, error=BUSY, attempt=1, delay_ms=1, uncharged=True)
            return
        usage = self.truth.charge(self._choose_usage(run))
        if outcome == 1 and not self.says_all:
            self._append_event(run, Retry, error=CUT, attempt=1, delay_ms=1)
            return
        if outcome == 2 and not self.says_all:
            usage = Usage()
        reply = (TextPart(text="x"),)
        unreported = not is_reported(usage, run.spending.reserved or Charge(), has_reply=True)
        ended_run = self._append_event(
            run, FinishGeneration, usage=usage, reply=reply, finish_reason="length", unreported=unreported
        )
        # the next generation is requested with the current messages
        self.runs[run.id] = ended_run

    def _crash(self) -> None:
        """Kill the process: some of its pending generations were charged without any record."""
        for run in self.runs.values():
            if run.spending.reserved is not None and self.choose(2):
                self.truth.charge(self._choose_usage(run))
        self.ledger = Ledger(self.budget)
        for run in self.runs.values():
            self.ledger.update(run, at_rest=True)
        for run in list(self.runs.values()):
            if run.status == "running":
                self._append_event(run, ResumeRun, reason="crash", checkpoint_id="x")

    def _append_event(self, run: Run, kind, step: int | None = None, **fields) -> Run:
        event = kind(**{**self._next_stamp(run), **({} if step is None else {"step_number": step})}, **fields)
        return self._store_run(evolve(run, event, Head(run.head.seq + 1, "")))

    def _store_run(self, run: Run) -> Run:
        self.runs[run.id] = run
        self.ledger.update(run)
        return run

    def _next_stamp(self, run: Run) -> dict:
        return self._stamp(run.id, run.head.seq + 1)

    def _stamp(self, run_id: str, seq: int) -> dict:
        return {
            "id": event_id_of(run_id, seq),
            "timestamp": 1000 + seq,
            "job_id": "job",
            "run_id": run_id,
            "expert_key": "e",
            "step_number": 1,
        }
