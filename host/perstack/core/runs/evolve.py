"""The heart of perstack: fold a Run's events into its state, and say which event may follow in which state.

A Run is event-sourced. Its log is the only truth, and everything else is computed from the log by pure functions,
without I/O, clock or randomness:

- An event (`events.py`, `step_events.py`) records something that happened. It is appended once and never edited.
- The state (`Run` in `state.py`) is the fold of the events: `begin` builds it from `startRun`, and from the state of
  another Run if this one continues it; `evolve` applies each later event. Nothing else changes it.
- A command (`commands.py`) is what to do next. `pending` (`pending.py`) computes it from the state alone; None means
  that the Run has stopped.
- The driver (`engine/runs/loop.py`) performs the command and appends the events that record its outcome, which `evolve`
  folds in turn. It decides nothing: the events of commands without a side effect are built in `decide.py`.

Therefore a crash loses no decision: read the log, fold it, perform what is pending. Resuming, branching, and showing an
old checkpoint are one fold, over a whole log or its beginning. `replay.py` folds a recorded log and compares each event
with what `pending` asks for. Each delegate is a Run with its own log, which its parent awaits.

The state machine has two dimensions. `Phase` is the position within a step; the status says why the Run has stopped, if
it has. A stop changes the status and not the phase, so that `resumeRun` continues where the Run was. `TRANSITIONS`
lists for each event the phases and statuses that it may follow and those that it leads to. `evolve` raises IllegalFact
for any other event: the driver never appends it, and a reader that finds it in a log reports damage.

When an event is added, change together:

- its class, and the union `StoredEvent`;
- its row in `TRANSITIONS`, and its case in `_folded`;
- the code that records it: `decide.py`, or the engine module that has the side effect;
- its case in `replay.py`, in `doors/shared/event_text.py`, and a mark at each of its text fields;
- `docs/events.md` and the table in `docs/architecture.md`, which tests compare with the code.

A new command also needs a branch in `pending.py`, `engine/runs/loop.py` and `replay.py`. Old logs must fold to the same
state in every later version: a new field needs a default, and is left out of the JSON when it has that value.
"""

from __future__ import annotations

from typing import assert_never, get_args

from perstack.core.base.chain import Head
from perstack.core.base.ids import number_of_run
from perstack.core.base.lifecycle import IllegalFact
from perstack.core.base.text import REDACTED
from perstack.core.base.usage import NO_USAGE, Charge, Spending, Usage, unreported
from perstack.core.definitions.permissions import UNATTENDED, Standing, all_laid_over
from perstack.core.definitions.skills import COUNTED_CALLS
from perstack.core.runs import events, step_events
from perstack.core.runs.commands import Call
from perstack.core.runs.context import (
    compacted,
    known_tools,
    measured,
    overflowed,
    requesting,
    shrunk,
)
from perstack.core.runs.facts import ErrorInfo, apply_todo, todos_json
from perstack.core.runs.messages import ExpertMessage, TextPart, ToolMessage, ToolResultPart, UserMessage
from perstack.core.runs.questions import OpenQuestion, approval_question, open_question
from perstack.core.runs.repeats import counted, shown
from perstack.core.runs.retries_and_fallbacks import switched
from perstack.core.runs.state import (
    MOST_REJECTED,
    NO_REPEATS,
    Phase,
    Run,
    RunStatus,
    due_after,
    due_on_resume,
    is_unsettled,
    latest_reply,
    recorded,
    schema_of_run,
)
from perstack.dataclass import dataclass, replace

# The state machine. docs/architecture.md shows this table, and a test compares them.

ACTIVE: frozenset[RunStatus] = frozenset(("running", "stoppedByDelegate"))
"""Statuses of a Run that a driver is working on, itself or by driving the Run's delegates."""
_RUNNING: frozenset[RunStatus] = frozenset(("running",))
_LEFT: frozenset[RunStatus] = frozenset(("running", "stoppedByInterrupt"))
_ALL: frozenset[RunStatus] = frozenset(get_args(RunStatus))
_OPEN = _ALL - {"completed"}
_BY_A_PERSON = frozenset(("startRewind", "finishRewind", "redactEvent"))  # no activity of the Run: also if it is closed
_NO_WORK = _BY_A_PERSON | {"resumeRun", "closeRun"}


@dataclass(frozen=True, slots=True)
class RunTransition:
    """Phases and statuses that one type of event may follow, and the ones that it leads to."""

    phases: frozenset[Phase]
    statuses: frozenset[RunStatus]
    to_phases: frozenset[Phase] = frozenset()  # empty if unchanged; a `to_status` of None leaves the status
    to_status: RunStatus | None = None


def _transition(
    phases: tuple[Phase, ...],
    statuses: frozenset[RunStatus],
    to: tuple[Phase, ...] = (),
    status: RunStatus | None = None,
) -> RunTransition:
    return RunTransition(frozenset(phases), statuses, frozenset(to), status)


_READY, _GENERATING, _REPLIED, _CALLING, _SETTLED = Phase
_ANY = tuple(Phase)

TRANSITIONS: dict[str, RunTransition] = {  # transitions by event type. `startRun` is missing because it creates the Run
    "resumeRun": _transition(_ANY, _OPEN, status="running"),
    "startGeneration": _transition((_READY, _GENERATING, _SETTLED), _RUNNING, (_GENERATING,)),
    "finishGeneration": _transition((_GENERATING,), _RUNNING, (_GENERATING, _REPLIED, _SETTLED)),
    "retry": _transition((_READY, _GENERATING, _SETTLED), _RUNNING),
    "switchModel": _transition(_ANY, _RUNNING),
    "callTools": _transition((_REPLIED,), _RUNNING, (_CALLING,)),
    "finishToolCall": _transition((_CALLING,), ACTIVE, (_CALLING, _SETTLED), "running"),
    "callDelegate": _transition((_CALLING,), ACTIVE),
    "stopRunByDelegate": _transition((_CALLING,), ACTIVE, status="stoppedByDelegate"),
    "callInteractiveTool": _transition((_CALLING,), ACTIVE),
    "answerQuestion": _transition((_CALLING,), _RUNNING),
    "requestApproval": _transition((_CALLING,), ACTIVE),
    "decideApproval": _transition((_CALLING,), ACTIVE),
    "startToolCall": _transition((_CALLING,), ACTIVE),
    "startSample": _transition((_CALLING,), ACTIVE),
    "widenPermissions": _transition(_ANY, _RUNNING),
    "stopRunByInteractiveTool": _transition((_CALLING,), ACTIVE, status="stoppedByInteractiveTool"),
    "attemptCompletion": _transition((_CALLING,), _RUNNING, (_CALLING, _SETTLED)),
    "shrinkResults": _transition((_READY, _GENERATING, _SETTLED), _RUNNING),
    "startCompaction": _transition((_READY, _GENERATING, _SETTLED), _RUNNING),
    "compactHistory": _transition((_READY, _GENERATING, _SETTLED), _RUNNING),
    "recordSnapshot": _transition((_READY, _CALLING, _SETTLED), _RUNNING),
    "finishStep": _transition((_SETTLED,), _RUNNING, (_READY,)),
    "rejectResult": _transition((_READY,), _RUNNING),
    "finishRun": _transition((_READY,), _RUNNING, status="completed"),
    "errorRun": _transition(_ANY, ACTIVE, status="stoppedByError"),
    "stopRunByExceededMaxSteps": _transition((_READY, _CALLING), ACTIVE, status="stoppedByMaxSteps"),
    "stopRunByExceededBudget": _transition(_ANY, ACTIVE, status="stoppedByBudget"),
    # Earlier versions also recorded an interrupt of a Run that had just stopped for another reason.
    "stopRunByInterrupt": _transition(_ANY, _OPEN, status="stoppedByInterrupt"),
    "queueRun": _transition(_ANY, _LEFT, status="queued"),
    "closeRun": _transition(_ANY, _OPEN),
    "startRewind": _transition(_ANY, _ALL),
    "finishRewind": _transition(_ANY, _ALL),
    "redactEvent": _transition(_ANY, _ALL),
}


def _checked(run: Run, event: events.StoredEvent) -> RunTransition:
    """Return the event's row of the table. Raises IllegalFact if it cannot follow in this state."""
    known = TRANSITIONS.get(event.type)
    if known is None:
        raise IllegalFact(f"a second {event.type}")
    if run.closed is not None and event.type not in _BY_A_PERSON:
        raise IllegalFact(f"{event.type} cannot follow where the Run was closed for good")
    if run.phase not in known.phases or run.status not in known.statuses:
        raise IllegalFact(f"{event.type} cannot follow where the Run is {run.status} in phase {run.phase.name}")
    if event.type == "retry" and run.phase is not Phase.GENERATING and not run.context.summarising:
        raise IllegalFact("retry cannot follow where nothing is generated")
    return known


def evolve(run: Run, event: events.StoredEvent, head: Head) -> Run:
    """Return the state after one more event; nothing else changes state. Raises IllegalFact if it cannot follow."""
    status = _checked(run, event).to_status or run.status
    at = run.updated_at if event.type in _BY_A_PERSON else max(run.updated_at, event.timestamp)
    # Do not count the time before a resume or a close as work: nobody knows how long the ended process was working.
    was_at_work = run.status in ACTIVE and event.type not in _NO_WORK
    worked = run.worked_ms + (at - run.updated_at if was_at_work else 0)
    return replace(_folded(run, event), head=head, status=status, updated_at=at, worked_ms=worked)


def _folded(run: Run, event: events.StoredEvent) -> Run:  # noqa: C901 - one case for each kind of event
    # This narrows `event` too, as `match event` would, but by comparing models that is slow.
    match event.type:
        case "startRun":
            raise IllegalFact("a second startRun")
        case "resumeRun":
            return _resumed(run, event)
        case "startGeneration":
            return _started_generation(run, event)
        case "finishGeneration":
            return _replied(run, event)
        case "retry":
            spending = _spent(run, event.usage).settle(is_charged=not event.uncharged)
            return replace(run, spending=spending, context=overflowed(run, event))
        case "switchModel":
            return switched(_settled(run, is_charged=not event.uncharged), event)
        case "callTools":
            return _called(run, event)
        case "finishToolCall":
            return _finished_call(run, event)
        case "callDelegate":
            return _delegated(run, event)
        case "callInteractiveTool":
            return _asked(run, event)
        case "answerQuestion":
            return _answered(run, event)
        case "requestApproval":
            return _requested(run, event)
        case "decideApproval":
            return _decided(run, event)
        case "startToolCall":
            return _started_call(run, event)
        case "startSample":
            _open_call(run, event.tool_call_id)
            return replace(run, spending=run.spending.reserve_sample(event.tool_call_id, event.reserved))
        case "widenPermissions":
            permissions = all_laid_over(run.permissions, event.widening)
            return replace(run, permissions=permissions, widenings=(*run.widenings, event.widening))
        case "attemptCompletion":
            return _attempted(run, event)
        case "shrinkResults":
            return shrunk(run, event)
        case "startCompaction":
            context = replace(run.context, summarising=event.id)
            return replace(run, spending=run.spending.reserve(event.reserved), context=context)
        case "compactHistory":
            spending = replace(_spent(run, event.usage, event.assumed), reserved=None)
            return replace(compacted(run, event), spending=spending)
        case "recordSnapshot":
            return recorded(run, event)
        case "finishStep":
            return replace(run, phase=Phase.READY, calls={}, spending=replace(run.spending, step_usage=NO_USAGE))
        case "rejectResult":
            return _rejected(run, event)
        case "finishRun":
            return replace(run, result=event.text, value=event.result, without_effect=event.without_effect)
        case "errorRun":
            return replace(_settled(run, is_charged=not event.uncharged), error=event.error)
        case "stopRunByExceededBudget":
            return replace(_settled(run, is_charged=True), exceeded=event)
        case "stopRunByInterrupt":
            run = _settled(run, is_charged=True)
            return replace(run, resume_at=event.resume_at, waits_for_limit=event.reason == "rateLimit")
        case "queueRun":
            return replace(run, queued=event)
        case "closeRun":
            return replace(run, closed=event, asked=None, questions={})
        case "startRewind" | "finishRewind":
            return replace(run, snapshot=event.tree or run.snapshot)
        case "stopRunByDelegate" | "stopRunByInteractiveTool" | "stopRunByExceededMaxSteps" | "redactEvent":
            return run  # redacted content was folded at the position of its event
        case _:
            assert_never(event)


def _resumed(run: Run, event: events.ResumeRun) -> Run:
    """Mark interrupted calls that may have had a side effect with the person's decision, by default `ask`."""
    calls = {
        call_id: replace(call, settlement=event.settled.get(call_id, "ask")) if is_unsettled(call) else call
        for call_id, call in run.calls.items()
    }
    start = events.started_as(run.start, event)
    return replace(
        run,
        start=start,
        schema=schema_of_run(start),
        rejections=min(run.rejections, MOST_REJECTED - 1),
        error=None,
        unusable=None,
        resume_at=None,
        waits_for_limit=False,
        touched=event.timestamp,
        signals=run.signals if event.signal is None else run.signals | {event.signal},
        calls=calls,
        limits=event.limits or run.limits,
        permissions=(*run.permissions, *event.permissions),
        is_tightened=run.is_tightened or bool(event.permissions),
        repeats=NO_REPEATS,
        exceeded=None,
        spending=run.spending.settle(is_charged=True),
        # A person who resumes a failed Run may have made the request fit, or have repaired the first model: try both.
        context=replace(run.context, overflow=None, is_relieved=False) if event.reason == "error" else run.context,
        back_at=0 if event.reason == "error" else run.back_at,
        stand_in=run.stand_in if event.definition is None else "",
        snapshot_due=due_on_resume(run),
        queued=None if run.status == "stoppedByError" and not run.has_generated else run.queued,
    )


def _asked(run: Run, event: step_events.CallInteractiveTool) -> Run:
    """Record the question of a call. With several open questions the latest one is asked; the others wait."""
    call = _open_call(run, event.tool_call_id)
    questions = {**_without(run.questions, event.tool_call_id), event.tool_call_id: open_question(event)}
    run = replace(run, asked=event.tool_call_id, questions=questions)
    if event.question is None:
        return run
    return replace(
        run,
        spending=_spent(run, event.usage, event.assumed).end_call(event.tool_call_id),
        calls={**run.calls, event.tool_call_id: replace(call, question=event.question)},
    )


def _started_generation(run: Run, event: step_events.StartGeneration) -> Run:
    return replace(
        run,
        spending=run.spending.reserve(event.reserved),
        phase=Phase.GENERATING,
        step=event.step_number,
        final=event.final,
        guidance=run.guidance if event.guidance is None else event.guidance,
        provider_settings=run.provider_settings if event.provider_settings is None else event.provider_settings,
        max_tokens=event.max_tokens,
        context=requesting(run, event),
        is_switched=False,
    )


def _called(run: Run, event: step_events.CallTools) -> Run:
    parts = {part.tool_call_id: part for part in latest_reply(run).tool_calls}
    if sorted(decided.id for decided in event.calls) != sorted(parts):
        raise IllegalFact("callTools is not about the calls of the reply")
    made = sum(decided.kind in COUNTED_CALLS for decided in event.calls)
    return replace(
        run,
        phase=Phase.CALLING,
        spending=replace(run.spending, tool_calls=run.spending.tool_calls + made),
        calls={decided.id: Call(parts[decided.id], decided) for decided in event.calls},
        is_tightened=False,
        context=known_tools(run, event),
    )


def _delegated(run: Run, event: step_events.CallDelegate) -> Run:
    calls = dict(run.calls)
    for delegation in event.delegates:
        call = _open_call(run, delegation.tool_call_id)
        calls[delegation.tool_call_id] = replace(call, delegation=delegation)
    numbers = (number_of_run(delegation.run_id) for delegation in event.delegates)
    return replace(run, calls=calls, last_number=max(run.last_number, *numbers))


def _settled(run: Run, *, is_charged: bool) -> Run:
    return replace(run, spending=run.spending.settle(is_charged=is_charged))


def _spent(run: Run, usage: Usage | None, charge: Charge | None = None) -> Spending:
    return run.spending.add(usage, charge, model=run.on if run.start.fallbacks else "")


def _answered(run: Run, event: step_events.AnswerQuestion) -> Run:
    call = _open_call(run, event.tool_call_id)
    calls = {
        **run.calls,
        event.tool_call_id: replace(call, question=None, answers=(*call.answers, event.answer)),
    }
    return replace(run, calls=calls, asked=None, questions=_without(run.questions, event.tool_call_id))


def _requested(run: Run, event: step_events.RequestApproval) -> Run:
    call = _open_call(run, event.tool_call_id)
    if not call.waits_for_approval:
        raise IllegalFact(f"call {event.tool_call_id!r} waits for no approval")
    call = replace(call, requested=event.call_digest, leads_to=event.leads_to, offers=event.offers)
    return replace(
        run,
        asked=event.tool_call_id,
        questions={**_without(run.questions, event.tool_call_id), event.tool_call_id: approval_question(event)},
        calls={**run.calls, event.tool_call_id: call},
    )


def _decided(run: Run, event: step_events.DecideApproval) -> Run:
    """Apply a decision. It must match the request exactly: an equal digest, and a rule that was offered."""
    call = _open_call(run, event.tool_call_id)
    if not call.waits_for_approval or call.requested is None:
        raise IllegalFact(f"nobody was asked to approve call {event.tool_call_id!r}")
    if event.call_digest != call.requested:
        raise IllegalFact(f"the approval is not of call {event.tool_call_id!r} as it was asked")
    # The offers of a redacted request are unknown, so any rule is accepted.
    if event.rule and (event.decision != "job" or not {event.rule, REDACTED} & set(call.offers)):
        raise IllegalFact(f"the rule {event.rule!r} was not offered with call {event.tool_call_id!r}")
    call = replace(call, approval=event.approval, is_unattended=event.by.door == UNATTENDED)
    standing = Standing(id=event.id, call_digest=event.call_digest, leads_to=call.leads_to, rule=event.rule)
    return replace(
        run,
        asked=None,
        questions=_without(run.questions, event.tool_call_id),
        calls={**run.calls, event.tool_call_id: call},
        standing=(*run.standing, standing) if event.decision == "job" else run.standing,
    )


def _started_call(run: Run, event: step_events.StartToolCall) -> Run:
    call = _open_call(run, event.tool_call_id)
    if call.approval is None or call.approval.denies or event.call_digest != call.requested:
        raise IllegalFact(f"nobody has approved call {event.tool_call_id!r} as it begins")
    return replace(run, calls={**run.calls, event.tool_call_id: replace(call, began=True)})


def _replied(run: Run, event: step_events.FinishGeneration) -> Run:
    reply = event.message
    reserved = run.spending.reserved
    spending = _spent(run, event.usage, unreported(reserved, event.usage) if reserved and event.unreported else None)
    run = replace(
        run,
        spending=spending if reserved is None else replace(spending, reserved=None),
        has_generated=True,
        cut_at=None,
        context=measured(run, event),
    )
    if event.finish_reason == "length" and run.max_tokens is not None and not reply.tool_calls:
        return replace(run, cut_at=run.max_tokens)
    problem = _problem_of(reply, event.finish_reason)
    if problem is not None:
        # The reply stays in the log but not in the messages, so the next attempt starts from unchanged messages.
        return replace(run, unusable=problem)
    messages = run.messages.append(reply, event.id)
    if run.final or not reply.tool_calls:
        return replace(run, messages=messages, phase=Phase.SETTLED, accepted=True, result=reply.text)
    return replace(run, messages=messages, phase=Phase.REPLIED)


def _problem_of(reply: ExpertMessage, reason: step_events.FinishReason) -> ErrorInfo | None:
    if reply.tool_calls:
        return None
    if reason == "length":
        return ErrorInfo(
            name="OutputLimit",
            message="the reply was cut off at the most tokens that one reply may have: allow more with `maxTokens` in"
            " [provider.setting], or ask for less at once",
        )
    if reason == "refusal":
        said = " ".join(reply.text.split())[:500]
        return ErrorInfo(name="Refusal", message="the model declined to answer" + (f": {said}" if said else ""))
    return None


def _finished_call(run: Run, event: step_events.FinishToolCall) -> Run:
    call = _open_call(run, event.tool_call_id)
    if event.warning is not None or event.report is not None:
        call = replace(call, warning=event.warning, has_report=event.report is not None)
    result = ToolResultPart(
        tool_call_id=event.tool_call_id,
        tool_name=event.tool_name,
        contents=shown(event),
        is_error=event.is_error,
    )
    todos = run.todos
    if call.decided.kind == "todo":
        todos = apply_todo(run.todos, call.part.args)
    elif call.decided.kind == "clearTodo":
        todos = ()
    return replace(
        _with_result(run, call, result, event.id),
        spending=_spent(run, event.usage, event.assumed).end_call(event.tool_call_id),
        todos=todos,
        snapshot_due=due_after(run, call),
        secrets=max(run.secrets, event.secrets),
        effects=run.effects + _effects_of(call, event),
        asked=None if run.asked == event.tool_call_id else run.asked,
        questions=_without(run.questions, event.tool_call_id),
    )


def _without(questions: dict[str, OpenQuestion], call_id: str) -> dict[str, OpenQuestion]:
    return {asked: question for asked, question in questions.items() if asked != call_id}


def _attempted(run: Run, event: step_events.AttemptCompletion) -> Run:
    call = _open_call(run, event.tool_call_id)
    left = event.remaining_todos
    text = todos_json(left, "remainingTodos") if left else "{}"
    result = ToolResultPart(
        tool_call_id=event.tool_call_id, tool_name=call.decided.tool_name, contents=(TextPart(text=text),)
    )
    run = _with_result(run, call, result, event.id)
    return run if left else replace(run, accepted=True, result=event.result if run.result is None else run.result)


def _open_call(run: Run, call_id: str) -> Call:
    """Return the call. Raises IllegalFact if it does not exist or already has its one result."""
    call = run.calls.get(call_id)
    if call is None or call.result is not None:
        raise IllegalFact(f"the Run has no open call {call_id!r}")
    return call


def _with_result(run: Run, call: Call, result: ToolResultPart, place: str) -> Run:
    """Add a call's result. The last one settles the step: all results become one message."""
    calls = {**run.calls, call.decided.id: replace(call, result=result)}
    results = tuple(one.result for one in calls.values() if one.result is not None)
    if len(results) < len(calls):
        return replace(run, calls=calls)
    return replace(
        run,
        calls=calls,
        phase=Phase.SETTLED,
        messages=run.messages.append(ToolMessage(contents=results), place),
        repeats=counted(run, calls.values()),
    )


def _effects_of(call: Call, event: step_events.FinishToolCall) -> int:
    """Count the calls with an effect that this result stands for: one, or those of a delegate."""
    is_own = call.decided.kind == "tool" and call.decided.effect != "readOnly" and not event.is_error
    return int(is_own) + (0 if event.report is None else event.report.effects)


def _rejected(run: Run, event: events.RejectResult) -> Run:
    return replace(
        run,
        messages=run.messages.append(UserMessage(contents=(TextPart(text=event.text),)), event.id),
        result=None,
        accepted=False,
        final=False,
        rejections=run.rejections + 1,
        rejected_for=event.problem,
    )
