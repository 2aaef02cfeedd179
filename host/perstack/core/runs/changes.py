"""What one event changes of a Run."""

from typing import TypedDict

from perstack.core.base import JsonObject
from perstack.core.closing import CloseRun
from perstack.core.commands import Call
from perstack.core.definitions import Limits
from perstack.core.events import StartRun, StopRunByExceededBudget
from perstack.core.messages import History
from perstack.core.policy.approvals import Standing
from perstack.core.policy.permissions import RuleSet
from perstack.core.policy.widening import Widening
from perstack.core.queueing import QueueRun
from perstack.core.run_facts import ErrorInfo
from perstack.core.runs.asking import OpenQuestion
from perstack.core.runs.context_state import ContextState
from perstack.core.runs.state import Phase, Repeats, RunStatus, Sent, SnapshotDue
from perstack.core.todos import Todo
from perstack.core.usage import Charge, ModelShare, Usage


class Changes(TypedDict, total=False):
    """The fields of a Run that one event changes."""

    start: StartRun
    limits: Limits
    messages: History
    phase: Phase
    status: RunStatus
    step: int
    calls: dict[str, Call]
    todos: tuple[Todo, ...]
    usage: Usage
    step_usage: Usage
    unpriced_tokens: int
    context_tokens: int
    guidance: str
    provider_settings: JsonObject
    accepted: bool
    final: bool
    result: str | None
    asked: str | None
    unusable: ErrorInfo | None
    error: ErrorInfo | None
    context_window: int | None
    resume_at: int | None
    has_generated: bool
    touched: int
    questions: dict[str, OpenQuestion]
    waits_for_limit: bool
    signals: frozenset[str]
    last_number: int
    permissions: tuple[RuleSet, ...]
    widenings: tuple[Widening, ...]
    is_tightened: bool
    standing: tuple[Standing, ...]
    closed: CloseRun | None
    queued: QueueRun | None
    repeats: Repeats
    reserved: Charge | None
    sampled: dict[str, Charge]
    assumed: Charge | None
    max_tokens: int | None
    cut_at: int | None
    sending: Sent | None
    counted: Sent | None
    context: ContextState
    tool_calls: int
    exceeded: StopRunByExceededBudget | None
    schema: JsonObject | None
    value: JsonObject | None
    rejections: int
    effects: int
    without_effect: bool
    rejected_for: str
    stand_in: str
    left_for: ErrorInfo | None
    back_at: int
    is_switched: bool
    by_model: dict[str, ModelShare]
    snapshot: str | None
    snapshot_due: SnapshotDue
