"""What a worker's Jobs did since it began, counted from their events, each once."""

from __future__ import annotations

from collections import Counter

from perstack.core.context_events import CompactHistory
from perstack.core.events import (
    CallInteractiveTool,
    Event,
    FinishGeneration,
    FinishStep,
    FinishToolCall,
    InitializeRuntime,
    ResumeRun,
    Retry,
    StartRun,
)
from perstack.core.job import JobSummary
from perstack.core.model_events import SwitchModel
from perstack.core.models import full_name
from perstack.core.serving import Served
from perstack.core.usage import Usage

MOST_MODELS = 50
"""Models that are counted apart: their names come from definitions, which anybody may have written."""
OTHERS = "other"
UNKNOWN = "unknown"


class Tally:
    """Sums over all Jobs of one worker."""

    def __init__(self) -> None:
        self.running = 0
        """Jobs that are driven now."""
        self.steps = 0
        self.retries = 0
        self.takeovers = 0
        self.tokens: Counter[tuple[str, str]] = Counter()
        """By kind (`input`, `cached`, `output`, `reasoning`) and model, each token once."""
        self.cost_usd: dict[str, float] = {}
        """By model, as far as prices are known."""
        self._models: set[str] = set()

    def of(self, served: Served) -> JobTally:
        """Counts the events of one Job from now on, or of the Jobs of iterations."""
        runs = served.runs if isinstance(served, JobSummary) else ()
        return JobTally(self, {run.id: run.model for run in runs if run.model})

    def add(self, usage: Usage, model: str) -> None:
        """One generation's tokens."""
        name = model if model in self._models or len(self._models) < MOST_MODELS else OTHERS
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


class JobTally:
    """Hands what happens in one Job to the tally. It is an `on_event`."""

    def __init__(self, tally: Tally, models: dict[str, str]) -> None:
        self._tally = tally
        self._models = models
        """The model in force, by Run."""
        self.steps = 0

    def __call__(self, event: Event, line: bytes) -> None:
        match event:
            case InitializeRuntime():  # the start of a delegate that was left to workers is another's to count
                self._models.setdefault(event.run_id, full_name(event.provider, event.model))
            case StartRun():
                self._models[event.run_id] = full_name(event.provider, event.model)
            case ResumeRun(definition=definition) if definition is not None:
                self._models[event.run_id] = full_name(definition.provider, definition.model)
            case SwitchModel():
                self._models[event.run_id] = event.to
            case FinishStep():
                self.steps += 1
                self._tally.steps += 1
            case Retry():
                self._tally.retries += 1
                self._count(event.run_id, event.usage)
            case CompactHistory():
                self._count(event.run_id, event.usage, event.model)
            case FinishGeneration() | FinishToolCall() | CallInteractiveTool():
                self._count(event.run_id, event.usage)
            case _:
                return

    def _count(self, run_id: str, usage: Usage | None, model: str = "") -> None:
        if usage is not None:
            self._tally.add(usage, model or self._models.get(run_id, UNKNOWN))
