"""A Run: its state, how an event changes it, and what is left to do.

Everything that decides what a Run does next is in this module and is pure. The life of one step:

    READY ──startGeneration──▶ GENERATING ──finishGeneration──▶ REPLIED ──callTools──▶ CALLING ─┐
      ▲                             ▲                              │ no calls                   │ every call
      │                             └── accepted, no text yet ─────┤                            │ has its result
      └───────────finishStep────────────────────────────────── SETTLED ◀────────────────────────┘

A stop (a question, an interrupt, the step limit, an error) changes `status`, not `phase`: `resumeRun` goes on from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal, TypedDict, assert_never

from pydantic import JsonValue

from perstack.core.base import JsonObject
from perstack.core.chain import EMPTY_LOG, Head
from perstack.core.commands import (
    Ask,
    AwaitDelegates,
    Call,
    Command,
    Complete,
    DecideCalls,
    EndRun,
    EndStep,
    Fail,
    Generate,
    RecordResult,
    RunTools,
    StartDelegates,
)
from perstack.core.definitions import Limits
from perstack.core.events import (
    AnswerQuestion,
    AttemptCompletion,
    CallDelegate,
    CallInteractiveTool,
    CallTools,
    ErrorInfo,
    ErrorRun,
    FinishGeneration,
    FinishReason,
    FinishRun,
    FinishStep,
    FinishToolCall,
    RedactEvent,
    ResumeRun,
    Retry,
    Settlement,
    StartGeneration,
    StartRun,
    StopRunByDelegate,
    StopRunByExceededMaxSteps,
    StopRunByInteractiveTool,
    StopRunByInterrupt,
    StoredEvent,
    started_as,
)
from perstack.core.instruction import whole_instruction
from perstack.core.messages import (
    ExpertMessage,
    History,
    TextPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from perstack.core.todos import Todo, apply_todo, remaining, todos_json
from perstack.core.usage import NO_USAGE, Usage

RunStatus = Literal[
    "running",
    "completed",
    "stoppedByDelegate",
    "stoppedByInteractiveTool",
    "stoppedByMaxSteps",
    "stoppedByInterrupt",
    "stoppedByError",
]


class Phase(Enum):
    """Where in a step a Run is."""

    READY = "ready"
    GENERATING = "generating"
    REPLIED = "replied"
    CALLING = "calling"
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
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

    @property
    def may_be_redefined(self) -> bool:
        """Whether it failed before the model replied, so that a definition put right since can take the place of its
        own."""
        return self.status == "stoppedByError" and not self.has_generated

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


_SETTLED_TEXT: dict[Settlement, str] = {
    "ask": "This call was interrupted before its result was recorded. It may have had its effect, in whole or in part: "
    "find out before you repeat it.",
    "done": "This call was interrupted before its result was recorded; a person has confirmed that it had its effect.",
    "retry": "",
}


def pending(run: Run) -> Command | None:
    """What to do next; None when the Run has stopped. Read from the state alone."""
    if run.status not in ("running", "stoppedByDelegate"):
        return None
    match run.phase:
        case Phase.READY:
            return EndRun(run.result) if run.result is not None else Generate(run.step + 1)
        case Phase.GENERATING:
            return Fail(run.unusable) if run.unusable is not None else Generate(run.step, run.final)
        case Phase.REPLIED:
            return DecideCalls(_reply(run).tool_calls)
        case Phase.CALLING:
            return _pending_call(run)
        case Phase.SETTLED:
            if run.accepted and run.result is None:
                return Generate(run.step, final=True)
            return EndStep()
        case _:
            assert_never(run.phase)


def _pending_call(run: Run) -> Command:
    """Ordinary calls first, then delegates, then questions one at a time, completion last."""
    open_calls = run.open_calls
    recordable = next((record for call in open_calls if (record := _recordable(run, call))), None)
    if recordable is not None:
        return recordable
    tools = tuple(call for call in open_calls if call.decided.kind == "tool" and call.question is None)
    if tools:
        return RunTools(tools)
    asking = next((call for call in open_calls if call.question is not None), None)
    if asking is not None:
        return Ask(asking)
    delegates = tuple(call for call in open_calls if call.decided.kind == "delegate")
    undecided = tuple(call for call in delegates if call.delegation is None)
    if undecided:
        return StartDelegates(undecided)
    if delegates:
        return AwaitDelegates(tuple(call.delegation for call in delegates if call.delegation is not None))
    question = next((call for call in open_calls if call.decided.kind == "interactive"), None)
    if question is not None:
        return Ask(question)
    return _completion(run, open_calls[0])


def _recordable(run: Run, call: Call) -> RecordResult | None:
    if call.settlement is not None and call.settlement != "retry":
        return RecordResult(call, _SETTLED_TEXT[call.settlement], is_error=call.settlement == "ask")
    match call.decided.kind:
        case "todo":
            return RecordResult(call, todos_json(apply_todo(run.todos, call.part.args)))
        case "clearTodo":
            return RecordResult(call, todos_json(()))
        case "refused":
            return RecordResult(call, call.decided.problem or "This call is not possible.", is_error=True)
        case "tool" | "delegate" | "interactive" | "attemptCompletion":
            return None
        case _:
            assert_never(call.decided.kind)


def _completion(run: Run, call: Call) -> Complete:
    left = remaining(run.todos)
    given = call.part.args.get("result")
    text = given if isinstance(given, str) and given.strip() else _reply(run).text
    return Complete(call, left, None if left or not text.strip() else text)


# --- evolve -------------------------------------------------------------------------------------------------------


def begin(start: StartRun, head: Head, base: Run | None = None) -> Run:
    """The state after `startRun`; `base` is the Run that it continues from, as it was at that place."""
    if base is not None and start.continued_from is not None and start.continued_from.answers:
        return _asked_again(start, head, base)
    query = UserMessage(contents=(TextPart(text=start.query),))
    earlier = History() if base is None else inheritable(base)
    return Run(start=start, head=head, limits=start.limits, messages=earlier.append(query))


def _asked_again(start: StartRun, head: Head, base: Run) -> Run:
    """Where `base` was asked, as a Run of its own: its calls are open still, and what it spent is not spent again."""
    return Run(
        start=start,
        head=head,
        limits=start.limits,
        messages=base.messages,
        phase=base.phase,
        calls=base.calls,
        todos=base.todos,
        context_tokens=base.context_tokens,
        context_window=base.context_window,
        asked=base.asked,
    )


def evolve(run: Run, event: StoredEvent, head: Head) -> Run:
    """The state after one event more. The only way that state changes."""
    return replace(run, head=head, **_changes(run, event))


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


def _changes(run: Run, event: StoredEvent) -> Changes:  # noqa: C901 - one case for each kind of event
    match event:
        case StartRun():
            raise ValueError(f"a second startRun in the log of {run.id}")
        case ResumeRun():
            return _resumed(run, event)
        case StartGeneration():
            again = event.final or run.phase is Phase.GENERATING
            return Changes(
                phase=Phase.GENERATING,
                status="running",
                step=event.step_number,
                final=event.final,
                guidance=run.guidance if event.guidance is None else event.guidance,
                provider_settings=(
                    run.provider_settings if event.provider_settings is None else event.provider_settings
                ),
                step_usage=run.step_usage if again else NO_USAGE,
            )
        case FinishGeneration():
            return _replied(run, event)
        case Retry():
            usage = event.usage or NO_USAGE
            return Changes(usage=run.usage + usage, step_usage=run.step_usage + usage)
        case CallTools():
            parts = {part.tool_call_id: part for part in _reply(run).tool_calls}
            calls = {decided.id: Call(parts[decided.id], decided) for decided in event.calls}
            return Changes(phase=Phase.CALLING, calls=calls)
        case FinishToolCall():
            return _finished_call(run, event)
        case CallDelegate():
            calls = dict(run.calls)
            for delegation in event.delegates:
                calls[delegation.tool_call_id] = replace(calls[delegation.tool_call_id], delegation=delegation)
            return Changes(calls=calls)
        case StopRunByDelegate():
            return Changes(status="stoppedByDelegate")
        case CallInteractiveTool():
            return _asked(run, event)
        case AnswerQuestion():
            return _answered(run, event)
        case StopRunByInteractiveTool():
            return Changes(status="stoppedByInteractiveTool")
        case AttemptCompletion():
            return _attempted(run, event)
        case FinishStep():
            return Changes(phase=Phase.READY, calls={}, step_usage=NO_USAGE)
        case FinishRun():
            return Changes(status="completed", result=event.text)
        case ErrorRun():
            return Changes(status="stoppedByError", error=event.error)
        case StopRunByExceededMaxSteps():
            return Changes(status="stoppedByMaxSteps")
        case StopRunByInterrupt():
            return Changes(status="stoppedByInterrupt", resume_at=event.resume_at)
        case RedactEvent():
            return Changes()  # what it stands for was folded in its place
        case _:
            assert_never(event)


def _resumed(run: Run, event: ResumeRun) -> Changes:
    """Calls with a side effect that began and have no result are settled by hand, or the model is told."""
    calls = {
        call_id: replace(call, settlement=event.settled.get(call_id, "ask")) if is_unsettled(call) else call
        for call_id, call in run.calls.items()
    }
    return Changes(
        start=started_as(run.start, event),
        status="running",
        error=None,
        unusable=None,
        resume_at=None,
        calls=calls,
        limits=event.limits or run.limits,
    )


def is_unsettled(call: Call) -> bool:
    """Whether this call, found open after its process ended, may have had an effect that a repetition would double."""
    is_begun = call.result is None and call.question is None
    return is_begun and call.decided.kind == "tool" and call.decided.effect == "sideEffect"


def _asked(run: Run, event: CallInteractiveTool) -> Changes:
    """Of several questions at once the latest event says which one is asked; the others wait."""
    if event.question is None:
        return Changes(asked=event.tool_call_id)
    spent = event.usage or NO_USAGE
    call = replace(run.calls[event.tool_call_id], question=event.question)
    return Changes(
        asked=event.tool_call_id,
        calls={**run.calls, event.tool_call_id: call},
        usage=run.usage + spent,
        step_usage=run.step_usage + spent,
    )


def _answered(run: Run, event: AnswerQuestion) -> Changes:
    call = run.calls[event.tool_call_id]
    calls = {
        **run.calls,
        event.tool_call_id: replace(call, question=None, answers=(*call.answers, event.answer)),
    }
    return Changes(calls=calls, asked=None)


def _replied(run: Run, event: FinishGeneration) -> Changes:
    reply = event.message
    changes = Changes(
        usage=run.usage + event.usage,
        step_usage=run.step_usage + event.usage,
        context_tokens=event.usage.total_tokens,
        context_window=event.context_window or run.context_window,
        has_generated=True,
    )
    problem = _UNUSABLE.get(event.finish_reason)
    if problem is not None and not reply.tool_calls:
        # it stands in the log, but not among the messages: the next try begins where this one did
        changes["unusable"] = _problem_of(reply, problem)
        return changes
    changes.update({"phase": Phase.REPLIED, "messages": run.messages.append(reply)})
    if run.final or not reply.tool_calls:
        changes.update({"phase": Phase.SETTLED, "accepted": True, "result": reply.text})
    return changes


_UNUSABLE: dict[FinishReason, ErrorInfo] = {
    "length": ErrorInfo(
        name="OutputLimit",
        message="the reply was cut off at the most tokens that one reply may have: allow more with `maxTokens` in"
        " [provider.setting], or ask for less at once",
    ),
    "refusal": ErrorInfo(name="Refusal", message="the model declined to answer"),
}


def _problem_of(reply: ExpertMessage, problem: ErrorInfo) -> ErrorInfo:
    said = " ".join(reply.text.split())[:500]
    if problem.name != "Refusal" or not said:
        return problem
    return problem.model_copy(update={"message": f"{problem.message}: {said}"})


def _finished_call(run: Run, event: FinishToolCall) -> Changes:
    call = run.calls[event.tool_call_id]
    result = ToolResultPart(
        tool_call_id=event.tool_call_id,
        tool_name=event.tool_name,
        contents=event.contents,
        is_error=event.is_error,
    )
    changes = _with_result(run, call, result)
    changes["status"] = "running"
    if event.usage is not None:
        changes.update({"usage": run.usage + event.usage, "step_usage": run.step_usage + event.usage})
    if call.decided.kind == "todo":
        changes["todos"] = apply_todo(run.todos, call.part.args)
    elif call.decided.kind == "clearTodo":
        changes["todos"] = ()
    if run.asked == event.tool_call_id:
        changes["asked"] = None
    return changes


def _attempted(run: Run, event: AttemptCompletion) -> Changes:
    call = run.calls[event.tool_call_id]
    left = event.remaining_todos
    text = todos_json(left, "remainingTodos") if left else "{}"
    result = ToolResultPart(
        tool_call_id=event.tool_call_id, tool_name=call.decided.tool_name, contents=(TextPart(text=text),)
    )
    changes = _with_result(run, call, result)
    if not left:
        changes.update({"accepted": True, "result": event.result if run.result is None else run.result})
    return changes


def _with_result(run: Run, call: Call, result: ToolResultPart) -> Changes:
    """The last result settles the step: all of them become one message."""
    calls = {**run.calls, call.decided.id: replace(call, result=result)}
    results = tuple(one.result for one in calls.values() if one.result is not None)
    if len(results) < len(calls):
        return Changes(calls=calls)
    return Changes(calls=calls, phase=Phase.SETTLED, messages=run.messages.append(ToolMessage(contents=results)))


def _reply(run: Run) -> ExpertMessage:
    """The latest reply."""
    last = run.messages[-1]
    if not isinstance(last, ExpertMessage):
        raise ValueError(f"{run.id}: no reply where one must be")
    return last


def inheritable(run: Run) -> History:
    """The messages that a Run which continues from here begins with: whole, every call with its result."""
    if run.phase not in (Phase.REPLIED, Phase.CALLING):
        return run.messages
    results = tuple(
        call.result if (call := run.calls.get(part.tool_call_id)) and call.result else _no_result(part)
        for part in _reply(run).tool_calls
    )
    return run.messages.append(ToolMessage(contents=results))


def _no_result(part: ToolCallPart) -> ToolResultPart:
    return ToolResultPart(
        tool_call_id=part.tool_call_id,
        tool_name=part.tool_name,
        contents=(TextPart(text="No result: the run was stopped before this call was answered."),),
        is_error=True,
    )
