"""The state of a Run, which its log is folded into.

The life of one step:

    READY ──startGeneration──▶ GENERATING ──finishGeneration──▶ REPLIED ──callTools──▶ CALLING ─┐
      ▲                             ▲                              │ no calls                   │ every call
      │                             └── accepted, no text yet ─────┤                            │ has its result
      └───────────finishStep────────────────────────────────── SETTLED ◀────────────────────────┘

A stop (a question, an interrupt, the step limit, an error) changes `status`, not `phase`: `resumeRun` continues there.
"""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from functools import reduce
from typing import Literal

from pydantic import JsonValue

from perstack.core.base import JsonObject
from perstack.core.chain import EMPTY_LOG, Head
from perstack.core.closing import CloseRun
from perstack.core.commands import Call
from perstack.core.definitions import Limits
from perstack.core.events import StartRun, StopRunByExceededBudget
from perstack.core.instruction import whole_instruction
from perstack.core.messages import ExpertMessage, History, ResultContent
from perstack.core.models import full_name, parts_of
from perstack.core.policy.approvals import Standing
from perstack.core.policy.permissions import RuleSet
from perstack.core.policy.widening import Widening
from perstack.core.queueing import QueueRun
from perstack.core.run_facts import ErrorInfo
from perstack.core.runs.asking import OpenQuestion
from perstack.core.runs.context_state import EMPTY_CONTEXT, ContextState
from perstack.core.todos import Todo
from perstack.core.usage import Charge, ModelShare, Usage, together
from perstack.dataclass import dataclass

RunStatus = Literal[
    "running",
    "completed",
    "stoppedByDelegate",
    "stoppedByInteractiveTool",
    "stoppedByMaxSteps",
    "stoppedByBudget",
    "stoppedByInterrupt",
    "stoppedByError",
    "queued",
]

SnapshotDue = Literal["no", "before", "after"]
"""Whether the workspace is to be recorded: as it is before anything is called, or after calls, when all have ended."""


class Phase(Enum):
    """Where in a step a Run is."""

    READY = "ready"
    GENERATING = "generating"
    REPLIED = "replied"
    CALLING = "calling"
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class SameCall:
    """What is the same of two calls, if one repeats the other."""

    tool_name: str
    args: JsonObject
    raw_args: str | None
    contents: tuple[ResultContent, ...]
    is_error: bool


@dataclass(frozen=True, slots=True)
class Repeats:
    """The calls of the latest step with their results, and how often in a row there were just these."""

    calls: tuple[SameCall, ...] = ()
    times: int = 0


NO_REPEATS = Repeats()


@dataclass(frozen=True, slots=True)
class Sent:
    """What one generation was sent, and how many tokens its endpoint counted."""

    messages: int
    tools_digest: str | None
    tokens: int = 0
    """0: not known yet."""


@dataclass(frozen=True)
class Run:
    """The state of one Run; a pure function of its log (and of the log it continues from)."""

    start: StartRun
    head: Head = EMPTY_LOG
    """How much of the log this is the state after."""
    limits: Limits = field(default_factory=Limits)
    messages: History = field(default_factory=History)
    phase: Phase = Phase.READY
    status: RunStatus = "running"
    step: int = 0
    """The step in hand or, in phase READY, the last finished one."""
    calls: dict[str, Call] = field(default_factory=dict[str, Call])
    todos: tuple[Todo, ...] = ()
    usage: Usage = field(default_factory=Usage)
    step_usage: Usage = field(default_factory=Usage)
    unpriced_tokens: int = 0
    """Of `usage`, the tokens whose price was not known."""
    context_tokens: int = 0
    """What the last generation was sent, which is how full the context is."""
    guidance: str = ""
    """What the skills say of their tools, which the model is given after the instruction."""
    provider_settings: JsonObject = field(default_factory=dict[str, JsonValue])
    """The provider's settings that change replies."""
    accepted: bool = False
    """The Run has said it is done, and may be."""
    final: bool = False
    """The generation in hand only writes the result."""
    result: str | None = None
    asked: str | None = None
    """The call that a person is being asked about."""
    unusable: ErrorInfo | None = None
    """Why the latest reply, though whole, is neither a result nor asks for tools."""
    error: ErrorInfo | None = None
    context_window: int | None = None
    """How many tokens the model's context can hold, where that is known."""
    resume_at: int | None = None
    """When a Run that pauses may go on, in milliseconds since 1970."""
    has_generated: bool = False
    """Whether the model has ever replied."""
    touched: int = 0
    """When it was started, or resumed last, in milliseconds since 1970."""
    updated_at: int = 0
    """When anything of it happened last. A redaction is nothing that it did."""
    questions: dict[str, OpenQuestion] = field(default_factory=dict[str, OpenQuestion])
    """What is asked and not answered yet, by call; the latest is put to a person."""
    waits_for_limit: bool = False
    """Whether it was stopped last by a limit of its provider's rate."""
    signals: frozenset[str] = frozenset()
    """The events from outside that it has taken."""
    last_number: int = 0
    """The highest number of a Run that it decided on."""
    permissions: tuple[RuleSet, ...] = ()
    """The rules in force."""
    widenings: tuple[Widening, ...] = ()
    """What was laid over them."""
    is_tightened: bool = False
    """Whether rules have been added to those in force since the calls in hand were decided."""
    standing: tuple[Standing, ...] = ()
    """The approvals for the whole Job that were given here."""
    repeats: Repeats = NO_REPEATS
    reserved: Charge | None = None
    """With a budget: the most that the generation in hand can cost."""
    sampled: dict[str, Charge] = field(default_factory=dict[str, Charge])
    """With a budget: the same of generations that tools ask for, by the call."""
    assumed: Charge | None = None
    """With a budget: what counts against it because nobody said what was used."""
    max_tokens: int | None = None
    """The most tokens that the reply in hand may have by the budget."""
    cut_at: int | None = None
    """How long the latest reply was, if the budget alone cut it short: it is made again with more, or not at all."""
    sending: Sent | None = None
    counted: Sent | None = None
    """The latest generation whose tokens were counted."""
    context: ContextState = EMPTY_CONTEXT
    """How full the model's context is, and what is left out of it."""
    tool_calls: int = 0
    """Calls of tools and delegates that were decided on."""
    worked_ms: int = 0
    """Milliseconds that it was at work, what it waited for delegates included."""
    exceeded: StopRunByExceededBudget | None = None
    """Which budget stopped it."""
    schema: JsonObject | None = None
    """What its result has to fit; None: any text is a result."""
    value: JsonObject | None = None
    """The result as JSON, where there is a schema."""
    effects: int = 0
    """Calls that had an effect, those of its delegates among them."""
    without_effect: bool = False
    """It was completed, and its Expert declares that its work has an effect: there was none."""
    closed: CloseRun | None = None
    """It was closed for good: nothing of it continues."""
    queued: QueueRun | None = None
    """How it was queued last, whether it waits still or not; its definition holds from then on."""
    rejections: int = 0
    """How many results did not fit it. A Run that is resumed after the second may try once more."""
    rejected_for: str = ""
    """What was wrong with the latest of them."""
    stand_in: str = ""
    """The model that generates in place of the first, as `provider/model`; empty: the first does."""
    left_for: ErrorInfo | None = None
    """What the model failed with that another stands in for."""
    back_at: int = 0
    """From when on the first is tried again, in milliseconds since 1970."""
    is_switched: bool = False
    """Whether the generation in hand was begun for another model, whose context may have held more."""
    snapshot: str | None = None
    """The tree of the workspace's latest snapshot."""
    snapshot_due: SnapshotDue = "no"
    by_model: dict[str, ModelShare] = field(default_factory=dict[str, ModelShare])
    """What each of several models has used, by `provider/model`."""

    @property
    def on(self) -> str:
        """The model that generates now, as `provider/model`."""
        return self.stand_in or full_name(self.start.provider, self.start.model)

    @property
    def stands_in(self) -> bool:
        """Whether another model than the first generates now."""
        return bool(self.stand_in)

    @property
    def provider(self) -> str:
        """The provider of the model that generates now."""
        return parts_of(self.stand_in)[0] if self.stand_in else self.start.provider

    @property
    def model(self) -> str:
        """That model, as its provider spells it."""
        return parts_of(self.stand_in)[1] if self.stand_in else self.start.model

    @property
    def may_be_redefined(self) -> bool:
        """Whether it failed before the model replied, so that a definition put right since can take the place of its
        own; or waits for a worker, which has a folder of its own."""
        return self.status in ("stoppedByError", "queued") and not self.has_generated

    @property
    def definition(self) -> str | None:
        """The blob with the Experts and settings that it was queued with, and continues with."""
        is_put_right = self.status == "stoppedByError" and not self.has_generated
        return None if self.queued is None or is_put_right else self.queued.definition

    @property
    def may_delegate(self) -> bool:
        """Whether a delegate of it would not be one too far below the Coordinator."""
        most = self.limits.max_depth
        return most is None or self.start.depth < most

    @property
    def id(self) -> str:
        return self.start.run_id

    @property
    def is_coordinator(self) -> bool:
        return self.start.delegated_by is None

    @property
    def instruction(self) -> str:
        """All that the model is told it is."""
        return whole_instruction(self.start.instruction, self.guidance)

    @property
    def open_calls(self) -> tuple[Call, ...]:
        """The calls that have no result yet, in the reply's order."""
        return tuple(call for call in self.calls.values() if call.result is None)


def promised(run: Run) -> Charge | None:
    """With a budget: what counts until it is known what was used."""
    return reduce(together, run.sampled.values(), run.reserved)


def call_key(run: Run, call: Call) -> str:
    """The name of a call that stays the same after a resume."""
    return f"{run.id}-{run.step}-{call.decided.id}"


def is_unsettled(call: Call) -> bool:
    """Whether this call, found open after its process ended, may have had an effect that a repetition would double."""
    is_begun = call.result is None and call.question is None and (call.began or not call.decided.asks)
    return is_begun and call.decided.kind == "tool" and call.decided.effect == "sideEffect"


def latest_reply(run: Run) -> ExpertMessage:
    """The latest reply. Raises ValueError if there is none."""
    last = run.messages[-1]
    if not isinstance(last, ExpertMessage):
        raise ValueError(f"{run.id}: no reply where one must be")
    return last
