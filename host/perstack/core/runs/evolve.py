"""How a fact changes a Run's state, and which one may follow which."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from perstack.core.chain import Head
from perstack.core.commands import (
    Call,
)
from perstack.core.events import (
    AnswerQuestion,
    AttemptCompletion,
    CallDelegate,
    CallInteractiveTool,
    CallTools,
    CloseRun,
    CompactHistory,
    DecideApproval,
    ErrorRun,
    FinishGeneration,
    FinishReason,
    FinishRewind,
    FinishRun,
    FinishStep,
    FinishToolCall,
    QueueRun,
    RecordSnapshot,
    RedactEvent,
    RejectResult,
    RequestApproval,
    ResumeRun,
    Retry,
    ShrinkResults,
    StartCompaction,
    StartGeneration,
    StartRewind,
    StartRun,
    StartSample,
    StartToolCall,
    StopRunByDelegate,
    StopRunByExceededBudget,
    StopRunByExceededMaxSteps,
    StopRunByInteractiveTool,
    StopRunByInterrupt,
    StoredEvent,
    SwitchModel,
    WidenPermissions,
    started_as,
)
from perstack.core.ids import number_of_run
from perstack.core.messages import (
    REDACTED,
    ExpertMessage,
    TextPart,
    ToolMessage,
    ToolResultPart,
)
from perstack.core.policy.approvals import UNATTENDED, Standing
from perstack.core.policy.widening import all_laid_over
from perstack.core.run_facts import ErrorInfo
from perstack.core.runs.asking import OpenQuestion, approval_question, open_question
from perstack.core.runs.changes import Changes
from perstack.core.runs.context_fold import (
    compacted,
    known_tools,
    measured,
    overflowed,
    resumed_context,
    shrunk,
    summarising,
)
from perstack.core.runs.repeats import counted, shown
from perstack.core.runs.reports import effects_of
from perstack.core.runs.results import MOST_REJECTED, rejected, schema_of_run
from perstack.core.runs.snapshots import due_after, due_on_resume, recorded
from perstack.core.runs.state import NO_REPEATS, Phase, Run, Sent, is_unsettled, latest_reply, promised
from perstack.core.runs.switching import shared, switched
from perstack.core.runs.transitions import ACTIVE, check_legal
from perstack.core.todos import apply_todo, todos_json
from perstack.core.tools import COUNTED_CALLS
from perstack.core.transitions import IllegalFact
from perstack.core.usage import NO_USAGE, Charge, Usage, together

_BY_A_PERSON = (StartRewind, FinishRewind, RedactEvent)
"""What the Run has not done."""


def evolve(run: Run, event: StoredEvent, head: Head) -> Run:
    """The state after one event more. The only way that state changes.

    Raises IllegalFact for an event that cannot follow: the state is that of before.
    """
    check_legal(run, event)
    at = run.updated_at if isinstance(event, _BY_A_PERSON) else max(run.updated_at, event.timestamp)
    # what was under way when its process ended is not known to have been work
    was_at_work = run.status in ACTIVE and not isinstance(event, (ResumeRun, CloseRun, *_BY_A_PERSON))
    worked = run.worked_ms + (at - run.updated_at if was_at_work else 0)
    # as `replace` does, which takes seven times as long over so many fields
    after = object.__new__(Run)
    vars(after).update(vars(run), head=head, updated_at=at, worked_ms=worked, **_changes(run, event))
    return after


def _changes(run: Run, event: StoredEvent) -> Changes:  # noqa: C901 - one case for each kind of event
    match event:
        case StartRun():
            raise IllegalFact("a second startRun")
        case ResumeRun():
            return _resumed(run, event)
        case StartGeneration():
            # what a summary before it has used is of the same step
            again = event.final or run.phase is Phase.GENERATING or run.phase is Phase.READY
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
                # a try that was under way and that nothing is known of counts as what it could come to
                assumed=together(run.assumed, run.reserved),
                reserved=event.reserved,
                max_tokens=event.max_tokens,
                sending=Sent(len(run.messages), event.tools_digest),
                counted=run.counted if event.guidance is None else None,
                is_switched=False,
            )
        case FinishGeneration():
            return _replied(run, event)
        case Retry():
            changes = _with_usage(run, event.usage)
            changes.update(_settled_try(run, is_charged=not event.uncharged))
            changes["context"] = overflowed(run, event)
            return changes
        case SwitchModel():
            return {**_settled_try(run, is_charged=not event.uncharged), **switched(run, event)}
        case CallTools():
            parts = {part.tool_call_id: part for part in latest_reply(run).tool_calls}
            if sorted(decided.id for decided in event.calls) != sorted(parts):
                raise IllegalFact("callTools is not about the calls of the reply")
            calls = {decided.id: Call(parts[decided.id], decided) for decided in event.calls}
            made = sum(decided.kind in COUNTED_CALLS for decided in event.calls)
            return Changes(
                phase=Phase.CALLING,
                tool_calls=run.tool_calls + made,
                calls=calls,
                is_tightened=False,
                context=known_tools(run, event),
            )
        case FinishToolCall():
            return _finished_call(run, event)
        case CallDelegate():
            calls = dict(run.calls)
            for delegation in event.delegates:
                call = _open_call(run, delegation.tool_call_id)
                calls[delegation.tool_call_id] = replace(call, delegation=delegation)
            numbers = (number_of_run(delegation.run_id) for delegation in event.delegates)
            return Changes(calls=calls, last_number=max(run.last_number, *numbers))
        case StopRunByDelegate():
            return Changes(status="stoppedByDelegate")
        case CallInteractiveTool():
            return _asked(run, event)
        case AnswerQuestion():
            return _answered(run, event)
        case RequestApproval():
            return _requested(run, event)
        case DecideApproval():
            return _decided(run, event)
        case StartToolCall():
            return _started_call(run, event)
        case StartSample():
            _open_call(run, event.tool_call_id)
            more = event.reserved + run.sampled.get(event.tool_call_id)
            return Changes(sampled={**run.sampled, event.tool_call_id: more})
        case WidenPermissions():
            return Changes(
                permissions=all_laid_over(run.permissions, event.widening),
                widenings=(*run.widenings, event.widening),
            )
        case StopRunByInteractiveTool():
            return Changes(status="stoppedByInteractiveTool")
        case AttemptCompletion():
            return _attempted(run, event)
        case ShrinkResults():
            return shrunk(run, event)
        case StartCompaction():
            return Changes(
                assumed=together(run.assumed, run.reserved), reserved=event.reserved, context=summarising(run, event)
            )
        case CompactHistory():
            changes = _with_usage(run, event.usage)
            changes.update(compacted(run, event))
            changes.update({"reserved": None, "assumed": together(run.assumed, event.assumed)})
            return changes
        case RecordSnapshot():
            return recorded(run, event)
        case FinishStep():
            return Changes(phase=Phase.READY, calls={}, step_usage=NO_USAGE)
        case RejectResult():
            return rejected(run, event)
        case FinishRun():
            return Changes(
                status="completed", result=event.text, value=event.result, without_effect=event.without_effect
            )
        case ErrorRun():
            changes = _settled_try(run, is_charged=not event.uncharged)
            changes.update({"status": "stoppedByError", "error": event.error})
            return changes
        case StopRunByExceededMaxSteps():
            return Changes(status="stoppedByMaxSteps")
        case StopRunByExceededBudget():
            changes = _settled_try(run, is_charged=True)
            changes.update({"status": "stoppedByBudget", "exceeded": event})
            return changes
        case StopRunByInterrupt():
            changes = _settled_try(run, is_charged=True)
            changes.update(
                {
                    "status": "stoppedByInterrupt",
                    "resume_at": event.resume_at,
                    "waits_for_limit": event.reason == "rateLimit",
                }
            )
            return changes
        case QueueRun():
            return Changes(status="queued", queued=event)
        case CloseRun():
            return Changes(closed=event, asked=None, questions={})
        case StartRewind() | FinishRewind():
            return Changes(snapshot=event.tree or run.snapshot)
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
    start = started_as(run.start, event)
    return Changes(
        start=start,
        schema=schema_of_run(start),
        rejections=min(run.rejections, MOST_REJECTED - 1),
        status="running",
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
        assumed=together(run.assumed, promised(run)),
        reserved=None,
        sampled={},
        context=resumed_context(run.context, failed=event.reason == "error"),
        # a person who resumes what failed has put something right
        back_at=0 if event.reason == "error" else run.back_at,
        stand_in=run.stand_in if event.definition is None else "",
        snapshot_due=due_on_resume(run),
        queued=None if run.status == "stoppedByError" and not run.has_generated else run.queued,
    )


def _asked(run: Run, event: CallInteractiveTool) -> Changes:
    """Of several questions at once the latest event says which one is asked; the others wait."""
    call = _open_call(run, event.tool_call_id)
    questions = {**_without(run.questions, event.tool_call_id), event.tool_call_id: open_question(event)}
    if event.question is None:
        return Changes(asked=event.tool_call_id, questions=questions)
    call = replace(call, question=event.question)
    changes = _with_usage(run, event.usage)
    changes["assumed"] = together(run.assumed, event.assumed)
    changes["sampled"] = _settled_samples(run, event.tool_call_id)
    changes.update(
        {"asked": event.tool_call_id, "questions": questions, "calls": {**run.calls, event.tool_call_id: call}}
    )
    return changes


def _settled_try(run: Run, *, is_charged: bool) -> Changes:
    """What was reserved for a try that has ended without a word of what it used."""
    if run.reserved is None and not run.sampled:
        return Changes()
    left = promised(run) if is_charged else promised(replace(run, reserved=None))
    return Changes(assumed=together(run.assumed, left), reserved=None, sampled={})


def _settled_samples(run: Run, call_id: str) -> dict[str, Charge]:
    """What is left under way, when the result of a call says what it has used."""
    return {one: charge for one, charge in run.sampled.items() if one != call_id}


def _not_reported(run: Run, event: FinishGeneration) -> Charge | None:
    """What counts besides the usage of a reply, so that together they are what was reserved."""
    if run.reserved is None or not event.unreported:
        return None
    cost = max(0.0, (run.reserved.cost_usd or 0) - (event.usage.cost_usd or 0))
    return Charge(tokens=max(0, run.reserved.tokens - event.usage.total_tokens), cost_usd=cost or None)


def _with_usage(run: Run, usage: Usage | None) -> Changes:
    """What generations cost is counted here, and nowhere else."""
    if usage is None:
        return Changes()
    return Changes(
        usage=run.usage + usage,
        step_usage=run.step_usage + usage,
        unpriced_tokens=run.unpriced_tokens + usage.unpriced_tokens,
        by_model=shared(run, usage),
    )


def _answered(run: Run, event: AnswerQuestion) -> Changes:
    call = _open_call(run, event.tool_call_id)
    calls = {
        **run.calls,
        event.tool_call_id: replace(call, question=None, answers=(*call.answers, event.answer)),
    }
    return Changes(calls=calls, asked=None, questions=_without(run.questions, event.tool_call_id))


def _requested(run: Run, event: RequestApproval) -> Changes:
    call = _open_call(run, event.tool_call_id)
    if not call.waits_for_approval:
        raise IllegalFact(f"call {event.tool_call_id!r} waits for no approval")
    call = replace(call, requested=event.call_digest, leads_to=event.leads_to, offers=event.offers)
    return Changes(
        asked=event.tool_call_id,
        questions={**_without(run.questions, event.tool_call_id), event.tool_call_id: approval_question(event)},
        calls={**run.calls, event.tool_call_id: call},
    )


def _decided(run: Run, event: DecideApproval) -> Changes:
    """An approval is of what was asked, to the letter: the digest is the same, and a rule is one that was offered."""
    call = _open_call(run, event.tool_call_id)
    if not call.waits_for_approval or call.requested is None:
        raise IllegalFact(f"nobody was asked to approve call {event.tool_call_id!r}")
    if event.call_digest != call.requested:
        raise IllegalFact(f"the approval is not of call {event.tool_call_id!r} as it was asked")
    # the offers of a request that was redacted since are not known any more
    if event.rule and (event.decision != "job" or not {event.rule, REDACTED} & set(call.offers)):
        raise IllegalFact(f"the rule {event.rule!r} was not offered with call {event.tool_call_id!r}")
    call = replace(call, approval=event.approval, is_unattended=event.by.door == UNATTENDED)
    changes = Changes(
        asked=None,
        questions=_without(run.questions, event.tool_call_id),
        calls={**run.calls, event.tool_call_id: call},
    )
    if event.decision == "job":
        given = Standing(id=event.id, call_digest=event.call_digest, leads_to=call.leads_to, rule=event.rule)
        changes["standing"] = (*run.standing, given)
    return changes


def _started_call(run: Run, event: StartToolCall) -> Changes:
    call = _open_call(run, event.tool_call_id)
    if call.approval is None or call.approval.denies or event.call_digest != call.requested:
        raise IllegalFact(f"nobody has approved call {event.tool_call_id!r} as it begins")
    return Changes(calls={**run.calls, event.tool_call_id: replace(call, began=True)})


def _replied(run: Run, event: FinishGeneration) -> Changes:
    reply = event.message
    changes = _with_usage(run, event.usage)
    changes.update(
        {
            "context_tokens": event.usage.total_tokens,
            "context_window": event.context_window or run.context_window,
            "has_generated": True,
            "assumed": together(run.assumed, _not_reported(run, event)),
            "reserved": None,
            "cut_at": None,
            "context": measured(run, event),
        }
    )
    if run.sending is not None and event.usage.input_tokens > 0:
        changes["counted"] = replace(run.sending, tokens=event.usage.input_tokens)
    if event.finish_reason == "length" and run.max_tokens is not None and not reply.tool_calls:
        changes["cut_at"] = run.max_tokens
        return changes
    problem = _problem_of(reply, event.finish_reason)
    if problem is not None:
        # it stands in the log, but not among the messages: the next try begins where this one did
        changes["unusable"] = problem
        return changes
    changes.update({"phase": Phase.REPLIED, "messages": run.messages.append(reply, event.id)})
    if run.final or not reply.tool_calls:
        changes.update({"phase": Phase.SETTLED, "accepted": True, "result": reply.text})
    return changes


def _problem_of(reply: ExpertMessage, reason: FinishReason) -> ErrorInfo | None:
    """Why a reply cannot be used; None if it can."""
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


def _finished_call(run: Run, event: FinishToolCall) -> Changes:
    call = _open_call(run, event.tool_call_id)
    if event.warning is not None or event.report is not None:
        call = replace(call, warning=event.warning, has_report=event.report is not None)
    result = ToolResultPart(
        tool_call_id=event.tool_call_id,
        tool_name=event.tool_name,
        contents=shown(event),
        is_error=event.is_error,
    )
    changes = _with_result(run, call, result, event.id)
    changes["status"] = "running"
    changes.update(_with_usage(run, event.usage))
    if event.assumed is not None:
        changes["assumed"] = together(run.assumed, event.assumed)
    if run.sampled:
        changes["sampled"] = _settled_samples(run, event.tool_call_id)
    if call.decided.kind == "todo":
        changes["todos"] = apply_todo(run.todos, call.part.args)
    elif call.decided.kind == "clearTodo":
        changes["todos"] = ()
    changes["snapshot_due"] = due_after(run, call)
    effects = effects_of(call, event)
    if effects:
        changes["effects"] = run.effects + effects
    if run.asked == event.tool_call_id:
        changes["asked"] = None
    if event.tool_call_id in run.questions:
        changes["questions"] = _without(run.questions, event.tool_call_id)
    return changes


def _without(questions: dict[str, OpenQuestion], call_id: str) -> dict[str, OpenQuestion]:
    return {asked: question for asked, question in questions.items() if asked != call_id}


def _attempted(run: Run, event: AttemptCompletion) -> Changes:
    call = _open_call(run, event.tool_call_id)
    left = event.remaining_todos
    text = todos_json(left, "remainingTodos") if left else "{}"
    result = ToolResultPart(
        tool_call_id=event.tool_call_id, tool_name=call.decided.tool_name, contents=(TextPart(text=text),)
    )
    changes = _with_result(run, call, result, event.id)
    if not left:
        changes.update({"accepted": True, "result": event.result if run.result is None else run.result})
    return changes


def _open_call(run: Run, call_id: str) -> Call:
    """Raises IllegalFact if there is no such call, or it has its result: it gets exactly one."""
    call = run.calls.get(call_id)
    if call is None or call.result is not None:
        raise IllegalFact(f"the Run has no open call {call_id!r}")
    return call


def _with_result(run: Run, call: Call, result: ToolResultPart, place: str) -> Changes:
    """The last result settles the step: all of them become one message."""
    calls = {**run.calls, call.decided.id: replace(call, result=result)}
    results = tuple(one.result for one in calls.values() if one.result is not None)
    if len(results) < len(calls):
        return Changes(calls=calls)
    return Changes(
        calls=calls,
        phase=Phase.SETTLED,
        messages=run.messages.append(ToolMessage(contents=results), place),
        repeats=counted(run, calls.values()),
    )
