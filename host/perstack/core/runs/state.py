"""The state of a Run: the value that `evolve` folds its log into.

`evolve.py` has the transitions. A new field needs a row in `INHERITANCE`: what a Run that takes over from another one
has of it. `begin` decides what a Run with a new query inherits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import Enum
from typing import Literal

from pydantic import JsonValue

from perstack.core.base.chain import EMPTY_LOG, Head
from perstack.core.base.records import JsonObject
from perstack.core.base.usage import NO_SPENDING, BudgetRefusal, Spending
from perstack.core.definitions.exec_grant import is_exec, names_exec, rules_without_grant
from perstack.core.definitions.expert_changes import ExpertChange, with_changes
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.instruction import whole_instruction
from perstack.core.definitions.job_status import RunStatus
from perstack.core.definitions.models import full_name, split_full_name
from perstack.core.definitions.permissions import RuleSet, StandingApproval, Widening
from perstack.core.definitions.settings import Limits
from perstack.core.definitions.skills import DecidedCall
from perstack.core.definitions.tool_definitions import Definitions
from perstack.core.messages.adaptations import Adaptations
from perstack.core.messages.messages import (
    ExpertMessage,
    History,
    ResultContent,
    TextPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from perstack.core.messages.standing import Saying, with_place
from perstack.core.runs.commands import Call
from perstack.core.runs.facts import Closed, ErrorInfo, Queued, Todo, remaining_todos
from perstack.core.runs.open_questions import OpenQuestion
from perstack.core.runs.start import StartRun
from perstack.dataclass import dataclass, replace


def schema_of_run(start: StartRun) -> JsonObject | None:
    """Return the schema that a Run's result must fit; None if any text is a result."""
    return result_schema(start.expert, start.output, is_coordinator=start.delegated_by is None)


def result_schema(expert: Expert, output: JsonObject | None, *, is_coordinator: bool) -> JsonObject | None:
    """Return a delegate's `returns`; for a Coordinator the caller's schema, or else the Expert's `output`."""
    if not is_coordinator:
        return expert.returns
    return expert.output if output is None else output


# The context of a Run: how full it is, and what has been left out.


@dataclass(frozen=True)
class RequestSize:
    """The size of one generation's request, and the tokens that its endpoint counted."""

    messages: int
    tools_digest: str | None
    tokens: int = 0  # 0 if unknown


@dataclass(frozen=True)
class ContextState:
    """The part of a Run's state about its context; messages are named by their event ids."""

    window: int | None = None  # tokens that the model's context can hold, by its provider; None if unknown
    tokens: int = 0  # tokens of the last generation, sent and generated: how full the context is
    sending: RequestSize | None = None  # the current or latest request
    counted: RequestSize | None = None  # the latest request that the endpoint counted
    learned: int | None = None  # tokens that the context can hold, by an endpoint's refusal; None without one
    overhead: int = 0  # estimated tokens of a request apart from its messages; 0 if unknown
    freed: int = 0  # estimated tokens left out since the endpoint last counted
    fitted: int = 0  # estimated tokens of the messages in the largest request that was answered
    overflow: ErrorInfo | None = None
    is_relieved: bool = False  # True if content was left out because the generation did not fit: once only
    summarising: str = ""  # id of a `startCompaction` without its summary; empty if there is none
    has_dropped: bool = False
    summaries: frozenset[str] = frozenset()  # event ids of messages that replace others
    read_only: frozenset[str] = frozenset()  # names of called tools that only read
    pinned: frozenset[str] = frozenset()  # names of called tools whose results are never left out
    revealed: tuple[str, ...] = ()  # names of tools found by searches in messages that are left out


EMPTY_CONTEXT = ContextState()


SnapshotDue = Literal["no", "before", "after"]  # "before" any call runs, or "after" all running calls


class Phase(Enum):
    """The position of a Run within a step."""

    READY = "ready"
    GENERATING = "generating"
    REPLIED = "replied"
    CALLING = "calling"
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class SameCall:
    """The parts of a call that are compared to find out whether another repeats it."""

    tool_name: str
    args: JsonObject
    raw_args: str | None
    contents: tuple[ResultContent, ...]
    is_error: bool


@dataclass(frozen=True, slots=True)
class Repeats:
    """The calls of the latest step with their results, and how many steps in a row had just these."""

    calls: tuple[SameCall, ...] = ()
    times: int = 0
    before: tuple[SameCall, ...] = ()  # the calls of the step before
    alternating: int = 0  # steps in a row, of which each had just the calls of the one before the last

    @property
    def rounds(self) -> int:
        """Repetitions in a row of one step, or of two that alternate."""
        return max(self.times, self.alternating // 2)


NO_REPEATS = Repeats()


MAX_REJECTIONS = 2  # the model sees the problem of the first rejected result; at the second the Run fails


@dataclass(frozen=True)
class Run:
    """The state of one Run; a pure function of its log, and of the log that it continues from."""

    start: StartRun
    head: Head = EMPTY_LOG  # end of the log that this state was folded from
    limits: Limits = field(default_factory=Limits)
    messages: History = field(default_factory=History)
    phase: Phase = Phase.READY
    status: RunStatus = "running"
    step: int = 0  # the current step; in phase READY the last finished one
    calls: dict[str, Call] = field(default_factory=dict[str, Call])
    todos: tuple[Todo, ...] = ()
    spending: Spending = NO_SPENDING
    guidance: str = ""  # texts of skills about their tools; they follow the instruction
    provider_settings: JsonObject = field(default_factory=dict[str, JsonValue])
    is_declared_done: bool = False  # True if the Run has declared itself done, and no todo remained
    is_final_generation: bool = False  # True if the current generation only writes the result
    result: str | None = None
    asked_call_id: str | None = None  # id of the call that a person is being asked about
    unfinished_text: str = ""  # text of the latest replies, if they were cut and the model is asked to continue them
    unusable_reply: ErrorInfo | None = None  # why the latest complete reply is unusable: neither a result nor calls
    error: ErrorInfo | None = None
    resume_at: int | None = None  # time at which a paused Run may continue, in milliseconds since 1970
    has_generated: bool = False
    continued_at_ms: int = 0  # time of the last start or resumption, in milliseconds since 1970
    updated_at: int = 0  # last own event, in milliseconds since 1970; redactions and rewinds do not count
    questions: dict[str, OpenQuestion] = field(default_factory=dict[str, OpenQuestion])  # unanswered, by call id
    waits_for_limit: bool = False  # True if the provider's rate limit caused the last interrupt
    signals: frozenset[str] = frozenset()  # events from outside that the Run has accepted
    last_number: int = 0  # highest number of a delegate Run that it has assigned
    permissions: tuple[RuleSet, ...] = ()
    widenings: tuple[Widening, ...] = ()
    is_tightened: bool = False  # True if rules were added since the current calls were decided
    standing_approvals: tuple[StandingApproval, ...] = ()  # approvals for the whole Job that were given in this Run
    repeats: Repeats = NO_REPEATS
    reply_token_limit: int | None = None  # maximum of the current reply by the budget; None if that sets none
    budget_cut_tokens: int | None = None  # tokens of the latest reply, if only the budget cut it
    context: ContextState = EMPTY_CONTEXT
    worked_ms: int = 0  # milliseconds of work, including time spent waiting for delegates
    exceeded: BudgetRefusal | None = None
    result_schema: JsonObject | None = None  # JSON schema that the result must fit; None if any text is a result
    result_value: JsonObject | None = None
    last_secret_number: int = 0  # highest N of an assigned `[secret:N]`, if tool results are masked
    effect_count: int = 0  # number of calls that had an effect, including calls of delegates
    without_effect: bool = False  # True if the Run completed without an effect although its Expert declares one
    closed: Closed | None = None
    queued: Queued | None = None  # latest queueing, also after a claim
    queued_definition: str | None = None  # blob of Experts and settings that holds from then on
    rejections: int = 0  # results that did not fit the schema; after the second a resumed Run has one more try
    rejected_for: str = ""
    fallback_model: str = ""  # active fallback model, as `provider/model`; empty if the primary model is active
    fallback_cause: ErrorInfo | None = None  # failure of the model that the fallback replaces
    primary_retry_at_ms: int = 0  # time at which the primary model is tried again, in milliseconds since 1970
    is_switched: bool = False  # True if the current generation began on a model whose context may be larger
    snapshot: str | None = None
    snapshot_due: SnapshotDue = "no"
    # definitions of the tools that were offered, as digests
    definitions: Definitions = field(default_factory=dict[str, Mapping[str, str]])
    sayings: tuple[Saying, ...] = ()  # texts of people, oldest first
    taken_posts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Ids of the posted texts that it has taken, each with the id of the event that took it."""
    adaptations_by_model: Mapping[str, Adaptations] = field(default_factory=dict[str, Adaptations])
    """Changes of requests that the endpoint of each model, as `provider/model`, needs."""
    expert_changes: tuple[ExpertChange, ...] = ()  # changes of its own skills and delegates, oldest first

    @property
    def expert(self) -> Expert:
        """The Expert with the skills and delegates that the Run has now."""
        return with_changes(self.start.expert, self.expert_changes) if self.expert_changes else self.start.expert

    @property
    def added_experts(self) -> Mapping[str, Expert]:
        """Delegates that the Run has added and the project does not declare, by their keys."""
        return {change.name: change.expert for change in self.expert_changes if change.expert is not None}

    @property
    def active_model(self) -> str:
        """The active model, as `provider/model`."""
        return self.fallback_model or full_name(self.start.provider, self.start.model)

    @property
    def uses_fallback(self) -> bool:
        """True if a fallback model is active."""
        return bool(self.fallback_model)

    @property
    def provider(self) -> str:
        return split_full_name(self.fallback_model)[0] if self.fallback_model else self.start.provider

    @property
    def model(self) -> str:
        """The active model, as its provider spells it."""
        return split_full_name(self.fallback_model)[1] if self.fallback_model else self.start.model

    @property
    def adaptations(self) -> Adaptations:
        """Changes of requests that the endpoint of the active model needs."""
        # most Runs have none, and this is read several times in each step
        return self.adaptations_by_model.get(self.active_model, ()) if self.adaptations_by_model else ()

    @property
    def asks_exec(self) -> bool:
        """True if a person is asked about each program: neither the definition nor a widening names `exec`."""
        return self.start.exec_grant == "asks" and not any(map(names_exec, self.widenings))

    @property
    def rules(self) -> tuple[RuleSet, ...]:
        """The rule sets that decide its calls, in which `exec` is asked about unless it is granted."""
        if not self.asks_exec:
            return self.permissions
        return (*self.permissions, rules_without_grant(self.start.expert, self.permissions))

    def rules_for(self, calls: Iterable[DecidedCall]) -> tuple[RuleSet, ...]:
        """Return the rule sets that may decide these calls; those about `exec`, which cost time, only for `exec`."""
        needs_all = self.asks_exec and any(is_exec(decided, self.start.expert) for decided in calls)
        return self.rules if needs_all else self.permissions

    @property
    def may_be_redefined(self) -> bool:
        """True if today's definition may replace the Run's: it is queued or failed, and the model never replied."""
        return self.status in ("stoppedByError", "queued") and not self.has_generated

    @property
    def definition(self) -> str | None:
        """The blob of Experts and settings that the Run was queued with and continues with; None if there is none."""
        may_be_corrected = self.status == "stoppedByError" and not self.has_generated
        return None if self.queued is None or may_be_corrected else self.queued_definition

    @property
    def may_delegate(self) -> bool:
        """True if a delegate would not be too deep below the Coordinator."""
        max_depth = self.limits.max_depth
        return max_depth is None or self.start.depth < max_depth

    @property
    def id(self) -> str:
        return self.start.run_id

    @property
    def is_coordinator(self) -> bool:
        """True if no other Run called this one."""
        return self.start.delegated_by is None

    @property
    def instruction(self) -> str:
        """The instruction with the skills' guidance."""
        return whole_instruction(self.start.instruction, self.guidance)

    @property
    def lacks_effect(self) -> bool:
        """True if the Run has not had the effect that its Expert declares."""
        return self.start.expert.effects and not self.effect_count

    @property
    def open_calls(self) -> tuple[Call, ...]:
        """The calls without a result, in the reply's order."""
        return tuple(call for call in self.calls.values() if call.result is None)


INHERITANCE = {
    "kept": "messages sayings taken_posts unfinished_text calls todos asked_call_id adaptations_by_model "
    "expert_changes",
    "adjusted": "phase is_declared_done context is_tightened",
    "started": "start head limits result_schema continued_at_ms updated_at permissions snapshot_due",
    "reset": "status step spending guidance provider_settings is_final_generation result unusable_reply error "
    "resume_at has_generated questions waits_for_limit signals last_number widenings standing_approvals repeats "
    "reply_token_limit budget_cut_tokens worked_ms exceeded result_value last_secret_number effect_count "
    "without_effect closed queued queued_definition rejections rejected_for fallback_model fallback_cause "
    "primary_retry_at_ms is_switched snapshot definitions",
}
"""The fields of a Run that takes over from another. `kept`: as they were. `adjusted`: as `_take_over` computes them.
`started`: by its own `startRun`. `reset`: the default."""
_KEPT_FIELDS = INHERITANCE["kept"].split()


def call_key(run: Run, call: Call) -> str:
    """Return a name for the call that stays the same when the Run is resumed."""
    return f"{run.id}-{run.step}-{call.decided.id}"


def is_unsettled(call: Call) -> bool:
    """Return True if repeating this open call after its process ended might repeat a side effect."""
    is_begun = call.result is None and call.tool_question is None and (call.began or not call.decided.asks)
    is_begun = is_begun and call.settlement != "ask"  # a person decides
    return is_begun and call.decided.kind == "tool" and call.decided.effect == "sideEffect"


def completion_result(run: Run, call: Call) -> str | None:
    """Return the result that a model's statement that it is done gives; None while todos remain or without a text."""
    result = call.part.args.get("result")
    text = result if isinstance(result, str) and result.strip() else latest_reply(run).text
    return None if remaining_todos(run.todos) or not text.strip() else text


def latest_reply(run: Run) -> ExpertMessage:
    """Return the latest reply. Raises ValueError if the last message is not a reply."""
    last = run.messages[-1]
    if not isinstance(last, ExpertMessage):
        raise ValueError(f"{run.id}: no reply where one must be")
    return last


def continues_reply(run: Run) -> bool:
    """Return True if the next generation continues the latest reply, which was paused or cut."""
    return run.result is None and isinstance(run.messages[-1], ExpertMessage)


def forget_measurements(context: ContextState, window: int | None, learned: int | None = None) -> ContextState:
    """Return the context without the values that hold only for requests of one Run and model."""
    context = replace(context, window=window, learned=learned, sending=None, counted=None, freed=0, fitted=0)
    return replace(context, overflow=None, is_relieved=False, summarising="")


def inherit_context(base_run: Run, start: StartRun) -> ContextState:
    """Return what a Run inherits of the context of the Run that it continues."""
    is_same = base_run.active_model == full_name(start.provider, start.model)
    window = base_run.context.window if is_same and start.limits.context else None
    context = forget_measurements(base_run.context, window, base_run.context.learned if is_same else None)
    return replace(context, tokens=0, overhead=0)


def inheritable_messages(run: Run, event_id: str = "") -> History:
    """Return the messages for a Run that continues this one: each call gets a result, at `event_id` if it had none."""
    if run.phase not in (Phase.REPLIED, Phase.CALLING):
        return run.messages
    results = tuple(
        call.result if (call := run.calls.get(part.tool_call_id)) and call.result else _no_result(part)
        for part in latest_reply(run).tool_calls
    )
    return run.messages.append(ToolMessage(contents=results), event_id)


def _no_result(part: ToolCallPart) -> ToolResultPart:
    return ToolResultPart(
        tool_call_id=part.tool_call_id,
        tool_name=part.tool_name,
        contents=(TextPart(text="No result: the run was stopped before this call was answered."),),
        is_error=True,
    )


def begin(start: StartRun, head: Head, base_run: Run | None = None) -> Run:
    """Return the state after `startRun`; `base_run`: state of the continued Run at the checkpoint it continues from."""
    origin = start.continued_from
    if base_run is not None and origin is not None and (origin.answers or origin.as_it_was):
        return _take_over(start, head, base_run)
    query = UserMessage(contents=(TextPart(text=start.query), *start.attachments))
    earlier = History() if base_run is None else inheritable_messages(base_run, f"{start.id}-open")
    sayings = () if base_run is None else with_place(base_run.sayings, f"{start.id}-open")
    if start.delegated_by is None:  # the query of a delegate is a model's
        sayings = (*sayings, Saying(start.id, start.query, start.id))
    return replace(
        _started_run(start, head),
        messages=earlier.append(query, start.id),
        sayings=sayings,
        taken_posts={} if base_run is None else base_run.taken_posts,
        context=EMPTY_CONTEXT if base_run is None else inherit_context(base_run, start),
        adaptations_by_model={} if base_run is None else base_run.adaptations_by_model,
    )


def _take_over(start: StartRun, head: Head, base_run: Run) -> Run:
    """Return a Run in the state of `base_run`: its calls stay open, and its spending is not counted again."""
    is_begun = base_run.phase is Phase.GENERATING
    asks_exec_now = start.exec_grant == "asks" and not base_run.asks_exec
    return replace(
        _started_run(start, head),
        **{name: getattr(base_run, name) for name in _KEPT_FIELDS},
        phase=Phase.READY if is_begun else base_run.phase,
        is_declared_done=base_run.is_declared_done and not is_begun,
        context=replace(base_run.context, sending=None, counted=None, overflow=None, is_relieved=False),
        is_tightened=start.permissions != base_run.permissions or asks_exec_now,
    )


def _started_run(start: StartRun, head: Head) -> Run:
    return Run(
        start=start,
        head=head,
        limits=start.limits,
        result_schema=schema_of_run(start),
        continued_at_ms=start.timestamp,
        updated_at=start.timestamp,
        permissions=start.permissions,
        snapshot_due="no" if start.snapshots is None else "before",
    )


# When to record the workspace.


def due_on_resume(run: Run) -> SnapshotDue:
    """Return the snapshot that is due after a resume: changes made during the stop are not the Run's work."""
    return run.snapshot_due if run.start.snapshots is None or run.snapshot_due != "no" else "before"


def snapshot_due_after(run: Run, call: Call) -> SnapshotDue:
    """Return the snapshot that is due once the call has its result; a call that only reads makes none due."""
    return "after" if _may_change_files(call) and run.start.snapshots is not None else run.snapshot_due


def may_have_unrecorded_changes(run: Run) -> bool:
    """Return True if a Run that stops among its calls may leave changed files that no snapshot has."""
    if run.start.snapshots is None or run.status != "running" or run.phase is not Phase.CALLING:
        return False
    return run.snapshot_due != "no" or any(map(_may_change_files, run.open_calls))


def _may_change_files(call: Call) -> bool:
    decided = call.decided
    return decided.kind == "delegate" or (decided.kind == "tool" and decided.effect != "readOnly")
