"""Reports of a worker, for people and programs, and counters of its Jobs. They contain no secrets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Literal

from pydantic import JsonValue

from perstack.core.base.text import one_line
from perstack.core.base.usage import Usage
from perstack.core.definitions.models import full_name
from perstack.core.jobs.summary import JobSummary, RunSummary
from perstack.core.runs.events import Event, StartRun
from perstack.core.runs.events.context import CompactHistory
from perstack.core.runs.events.generations import FinishGeneration, FinishStep, Retry, SwitchModel
from perstack.core.runs.events.lifecycle import ResumeRun
from perstack.core.runs.events.questions import CallInteractiveTool
from perstack.core.runs.events.tool_calls import FinishToolCall
from perstack.core.runs.runtime_start import InitializeRuntime
from perstack.core.secrets.masking import masked_error
from perstack.dataclass import dataclass
from perstack.iterations.state import SeriesState
from perstack.ports.dispatcher import Claim, Order
from perstack.workers.orders import Done, DriveOutcome, OrderTarget, Requeue

# Outcomes.


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of driving a Job or a series, and its state afterwards."""

    kind: DriveOutcome
    target: OrderTarget | None = None  # the state; None if it is unknown, or there is no such Job
    error: BaseException | None = None
    seconds: float | None = None  # seconds for which it was driven; None if it was not
    is_poison: bool = False  # True if it was stopped because it ends every worker


_MAX_ERROR_CHARACTERS = 500

Level = Literal["info", "warning", "error"]
Kind = Literal[
    "ready",
    "taken",
    "ended",
    "again",
    "refused",
    "lost",
    "poison",
    "failed",
    "looked-after",
    "unreachable",
    "reachable",
    "draining",
    "stopped",
    "strange",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """One event of a worker, for its output."""

    event: Kind
    text: str  # a line for a person, without the Job's id
    level: Level = "info"
    job: str | None = None
    facts: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])


_REQUEUE_REPORTS: dict[DriveOutcome, tuple[Kind, Level, str]] = {
    "stopped": ("again", "info", "waits, and is queued for later"),
    "left": ("again", "info", "left for another worker"),
    "busy": ("again", "info", "queued again"),
    "unreachable": ("again", "warning", "queued again"),
    "missing": ("refused", "warning", "waits for another worker"),
    "newer": ("refused", "warning", "waits for a worker of a newer version"),
    "unable": ("refused", "warning", "cannot be driven here, and waits for another worker"),
}

Report = Callable[[WorkerReport], None]


def error_text(error: BaseException | str) -> str:
    """Return an error as one line, without secrets."""
    text = one_line(masked_error(str(error))) or type(error).__name__
    return text if len(text) <= _MAX_ERROR_CHARACTERS else f"{text[: _MAX_ERROR_CHARACTERS - 1]}…"


def report_of_claim(claim: Claim, target: OrderTarget) -> WorkerReport:
    """Return the report that a Job or series is being driven."""
    takeover = " over from a worker that fell silent" if claim.is_taken_over else ""
    run_summary = _delegate_run(claim.order, target)
    expert = target.expert_key if run_summary is None else run_summary.expert_key
    facts: dict[str, JsonValue] = {"expert": expert}
    prefix = _delegate_prefix(claim.order, facts)
    if claim.is_taken_over:
        facts["takeovers"] = claim.order.takeovers
    kind = "iterations of " if isinstance(target, SeriesState) else ""
    return WorkerReport(event="taken", job=target.id, text=f"{prefix}taken{takeover} ({kind}{expert})", facts=facts)


def report_of_outcome(order: Order, outcome: Outcome, decision: Done | Requeue) -> WorkerReport:
    event, level, text = _describe_outcome(order, outcome, isinstance(decision, Requeue))
    facts: dict[str, JsonValue] = {"came": outcome.kind}
    text = _delegate_prefix(order, facts) + text
    target, run_summary = outcome.target, _delegate_run(order, outcome.target)
    if target is not None:
        facts |= {"status": target.status, "expert": target.expert_key}
        if not isinstance(target, SeriesState):
            facts["steps"] = target.total_steps
    if run_summary is not None:
        facts |= {"status": run_summary.status, "expert": run_summary.expert_key, "steps": run_summary.steps}
    if outcome.seconds is not None:
        facts["seconds"] = round(outcome.seconds, 3)
        text = f"{text} after {outcome.seconds:.1f} s"
    error = _failure_of(target) or outcome.error
    if error is not None:
        facts["error"] = error_text(error)
        text = f"{text}: {facts['error']}"
    return WorkerReport(event=event, job=order.job_id, text=text, level=level, facts=facts)


def _delegate_run(order: Order, target: OrderTarget | None) -> RunSummary | None:
    runs = target.runs if isinstance(target, JobSummary) else ()
    return next((run_summary for run_summary in runs if run_summary.id == order.run_id), None)


def _delegate_prefix(order: Order, facts: dict[str, JsonValue]) -> str:
    """Return the prefix of a text about a delegate that has an order; also add it to `facts`."""
    if order.run_id is None:
        return ""
    facts["run"] = order.run_id
    return f"delegate {order.run_id} "


def _failure_of(target: OrderTarget | None) -> str | None:
    if isinstance(target, SeriesState):
        return target.message if target.status == "failed" else None
    return None if target is None else target.error


def _describe_outcome(order: Order, outcome: Outcome, is_requeued: bool) -> tuple[Kind, Level, str]:
    target = outcome.target
    if outcome.is_poison:
        return "poison", "error", f"stopped: {order.takeovers} workers in a row ended or fell silent"
    if outcome.kind == "lost":
        return "lost", "warning", "another worker has taken it over"
    if is_requeued and outcome.kind in _REQUEUE_REPORTS:
        return _REQUEUE_REPORTS[outcome.kind]
    if outcome.kind == "deleted":
        return "ended", "warning", "its order is removed" if outcome.seconds is None else "stopped"
    if target is None:
        return "ended", "error", "cannot be driven by anybody"
    run_summary = _delegate_run(order, target)
    if run_summary is not None:
        return "ended", "warning" if run_summary.status == "stoppedByError" else "info", run_summary.status
    status = "cancelled" if outcome.kind == "cancelled" else f"{target.status}"
    return "ended", "warning" if _failure_of(target) else "info", status


# Counters since the worker began, from the Jobs' events, each counted once.

MAX_MODELS = 50
"""Models that are counted separately; further ones count as `other`, because anybody may write names in definitions."""
OTHERS = "other"
UNKNOWN = "unknown"


class WorkerCounters:
    """Counters over all Jobs of one worker."""

    def __init__(self) -> None:
        self.running = 0
        self.steps = 0
        self.retries = 0
        self.takeovers = 0
        self.tokens: Counter[tuple[str, str]] = Counter()
        """Tokens by kind (`input`, `cached`, `output`, `reasoning`) and model; each token is counted once."""
        self.cost_usd: dict[str, float] = {}  # cost by model, as far as prices are known
        self._models: set[str] = set()

    def of(self, target: OrderTarget) -> JobCounters:
        """Return an `on_event` that counts the events of one Job, or of the Jobs of a series."""
        runs = target.runs if isinstance(target, JobSummary) else ()
        return JobCounters(self, {run_summary.id: run_summary.model for run_summary in runs if run_summary.model})

    def add(self, usage: Usage, model: str) -> None:
        """Count the tokens of one generation."""
        name = model if model in self._models or len(self._models) < MAX_MODELS else OTHERS
        self._models.add(name)
        cached, reasoning = usage.cached_input_tokens, usage.reasoning_tokens
        kinds = {
            "input": usage.input_tokens - cached,
            "cached": cached,
            "output": usage.output_tokens - reasoning,
            "reasoning": reasoning,
        }
        for kind, tokens in kinds.items():
            if tokens > 0:
                self.tokens[kind, name] += tokens
        if usage.cost_usd is not None:
            self.cost_usd[name] = self.cost_usd.get(name, 0.0) + usage.cost_usd


class JobCounters:
    """Counts the events of one Job; an `on_event`."""

    def __init__(self, counters: WorkerCounters, models: dict[str, str]) -> None:
        """Create; `models` are the current models of Runs that have begun."""
        self._counters = counters
        self._models = models
        self.steps = 0

    def __call__(self, event: Event, line: bytes) -> None:
        match event:
            case InitializeRuntime():  # the driver of a queued delegate counts its startRun
                self._models.setdefault(event.run_id, full_name(event.provider, event.model))
            case StartRun():
                self._models[event.run_id] = full_name(event.provider, event.model)
            case ResumeRun(definition=definition) if definition is not None:
                self._models[event.run_id] = full_name(definition.provider, definition.model)
            case SwitchModel():
                self._models[event.run_id] = event.to
            case FinishStep():
                self.steps += 1
                self._counters.steps += 1
            case Retry():
                self._counters.retries += 1
                self._count(event.run_id, event.usage)
            case CompactHistory():
                self._count(event.run_id, event.usage, event.model)
            case FinishGeneration() | FinishToolCall() | CallInteractiveTool():
                self._count(event.run_id, event.usage)
            case _:
                return

    def _count(self, run_id: str, usage: Usage | None, model: str = "") -> None:
        if usage is not None:
            self._counters.add(usage, model or self._models.get(run_id, UNKNOWN))
