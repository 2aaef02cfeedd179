"""What is recorded of a Run without any effect: the facts that its state, an answer or a stop calls for.

What an effect has brought (a reply, a tool's result) is recorded by those who performed it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

from perstack.core.by import By
from perstack.core.commands import (
    Call,
    Compact,
    Complete,
    EndRun,
    EndStep,
    Fail,
    RecordResult,
    Shrink,
    StartDelegates,
    StopAtLimit,
)
from perstack.core.definitions import Limits
from perstack.core.events import (
    AnswerQuestion,
    AttemptCompletion,
    CallDelegate,
    CallInteractiveTool,
    CompactHistory,
    DecideApproval,
    ErrorRun,
    FinishStep,
    FinishToolCall,
    RequestApproval,
    ResumeReason,
    ResumeRun,
    Settlement,
    ShrinkResults,
    StartCompaction,
    StartToolCall,
    StopRunByDelegate,
    StopRunByExceededBudget,
    StopRunByExceededMaxSteps,
    StopRunByInteractiveTool,
    StopRunByInterrupt,
    StoredEvent,
)
from perstack.core.ids import event_id_of, run_id_of
from perstack.core.instruction import names_directory
from perstack.core.messages import TextPart, estimated_tokens
from perstack.core.policy.approvals import UNATTENDED, Approval, call_digest
from perstack.core.policy.budget import Exceeded
from perstack.core.policy.permissions import RuleSet
from perstack.core.questions import Answer
from perstack.core.run_facts import Definition, Delegation, ErrorInfo
from perstack.core.runs.context import summary_tokens, window_of
from perstack.core.runs.repeats import warned
from perstack.core.runs.results import finished
from perstack.core.runs.stamp import Stamp, Stamps, at_checkpoint
from perstack.core.runs.state import Phase, Run, call_key, is_unsettled
from perstack.core.runs.transitions import ACTIVE
from perstack.core.usage import Charge, Usage
from perstack.dataclass import dataclass

Noted = RecordResult | StartDelegates | Complete | EndStep | EndRun | Fail | StopAtLimit
"""The commands that need no effect."""


def noted(run: Run, command: Noted, stamp: Stamps, next_number: int) -> tuple[StoredEvent, ...]:
    """The facts of a command that needs no effect; `next_number` is that of the Job's next Run."""
    match command:
        case RecordResult():
            return (warned(run, result_of(command.call, command.text, stamp, is_error=command.is_error)),)
        case StartDelegates():
            return _delegated(command, stamp, next_number)
        case Complete():
            return (
                AttemptCompletion(
                    **stamp(),
                    tool_call_id=command.call.decided.id,
                    remaining_todos=command.remaining,
                    result=command.result,
                ),
            )
        case EndStep():
            return (FinishStep(**at_checkpoint(stamp()), usage=run.step_usage),)
        case EndRun():
            return (finished(run, command.text, None, stamp),)
        case Fail():
            return (ErrorRun(**at_checkpoint(stamp()), error=command.error, uncharged=command.uncharged),)
        case StopAtLimit():
            return (stopped_at_limit(command.max_steps, stamp),)
        case _:
            assert_never(command)


def result_of(call: Call, text: str, stamp: Stamps, *, is_error: bool = False, by: By | None = None) -> FinishToolCall:
    """A result that is a text."""
    return FinishToolCall(
        **stamp(),
        tool_call_id=call.decided.id,
        tool_name=call.decided.tool_name,
        contents=(TextPart(text=text),),
        is_error=is_error,
        by=by,
    )


def _delegated(command: StartDelegates, stamp: Stamps, next_number: int) -> tuple[StoredEvent, ...]:
    """The ids of the delegates' Runs are decided here, before one begins: a resumed Run finds those that it started."""
    delegations = tuple(
        Delegation(
            tool_call_id=call.decided.id,
            tool_name=call.decided.tool_name,
            expert_key=call.decided.target or call.decided.tool_name,
            run_id=run_id_of(stamp()["job_id"], next_number + index),
            query=str(call.part.args.get("query", "")),
        )
        for index, call in enumerate(command.calls)
    )
    return CallDelegate(**stamp(), delegates=delegations), StopRunByDelegate(**at_checkpoint(stamp(1)))


# --- a full context -----------------------------------------------------------------------------------------------


def shrunk_results(run: Run, command: Shrink, stamp: Stamps) -> ShrinkResults:
    """Old results are shown by their ends from now on; their blobs are kept already."""
    return ShrinkResults(**_of_next_step(run, stamp), results=command.results, head=command.head, tail=command.tail)


def compaction_started(
    run: Run, command: Compact, model: str, reserved: Charge | None, stamp: Stamps
) -> StartCompaction:
    """A summary is about to be asked for."""
    place = _of_next_step(run, stamp)
    return StartCompaction(**place, first=command.first, through=command.through, model=model, reserved=reserved)


def history_compacted(
    run: Run, command: Compact, text: str, stamp: Stamps, *, model: str, spent: Spent, error: ErrorInfo | None
) -> CompactHistory:
    """The text stands for a part of the history; `model` is empty if none has written it."""
    text_tokens = estimated_tokens(len(text.encode(errors="replace")))
    window = window_of(run) or 0
    return CompactHistory(
        **_of_next_step(run, stamp),
        first=command.first,
        through=command.through,
        kept=command.kept,
        text=text,
        model=model,
        usage=spent.usage,
        assumed=spent.assumed,
        tokens_before=command.tokens_before,
        tokens_after=max(0, command.tokens_after - summary_tokens(window) + text_tokens),
        duration_ms=spent.duration_ms,
        error=error,
    )


@dataclass(frozen=True, slots=True)
class Spent:
    """What a summary has cost."""

    usage: Usage | None = None
    assumed: Charge | None = None
    duration_ms: int = 0


def _of_next_step(run: Run, stamp: Stamps) -> Stamp:
    """What is done before a step's generation is of that step."""
    given = stamp()
    return {**given, "step_number": run.step + 1} if run.phase is Phase.READY else given


# --- questions ----------------------------------------------------------------------------------------------------


def asked(run: Run, call: Call, stamp: Stamps, *, approval: bool) -> tuple[StoredEvent, ...]:
    """The question, unless it is the one that is asked already, and the stop."""
    if call.question is not None and run.asked == call.decided.id:
        return (StopRunByInteractiveTool(**at_checkpoint(stamp())),)
    question = CallInteractiveTool(
        **stamp(),
        tool_call_id=call.decided.id,
        tool_name=call.decided.tool_name,
        skill_name=call.decided.skill_name,
        args=call.part.args if call.question is None else {"question": call.question.message},
        approval=approval,
        question=call.question,
    )
    return question, StopRunByInteractiveTool(**at_checkpoint(stamp(1)))


def approval_asked(
    call: Call, leads_to: tuple[str, ...], offers: tuple[str, ...], stamp: Stamps, *, is_unattended: bool
) -> tuple[StoredEvent, ...]:
    """The request, unless a person was asked already, and the stop; where nobody is there, the refusal instead."""
    digest = digest_of(call)
    request = RequestApproval(
        **stamp(),
        tool_call_id=call.decided.id,
        tool_name=call.decided.tool_name,
        skill_name=call.decided.skill_name,
        args=call.part.args,
        call_digest=digest,
        rule=call.decided.rule,
        leads_to=leads_to,
        offers=offers,
    )
    requested = () if call.requested is not None else (request,)
    after = stamp(len(requested))
    if not is_unattended:
        return *requested, StopRunByInteractiveTool(**at_checkpoint(after))
    nobody = DecideApproval(
        **after,
        tool_call_id=call.decided.id,
        call_digest=call.requested or digest,
        decision="no",
        by=By(door=UNATTENDED),
    )
    return *requested, nobody


def digest_of(call: Call) -> str:
    """What an approval of this call is bound to."""
    return call_digest(call.decided.skill_name, call.decided.tool_name, call.part.args)


def call_started(call: Call, stamp: Stamps) -> StartToolCall:
    """An approved call begins."""
    return StartToolCall(**stamp(), tool_call_id=call.decided.id, call_digest=digest_of(call))


def answered(run: Run, answer: str | Answer | Approval, stamp: Stamps, by: By | None) -> StoredEvent:
    """A person's answer to what the Run asks: a text is the result of a tool that is there to ask."""
    call = run.calls[run.asked or ""]
    if isinstance(answer, Approval):
        return DecideApproval(
            **stamp(),
            tool_call_id=call.decided.id,
            call_digest=call.requested or "",
            decision=answer.decision,
            by=by or By(),
            rule=answer.rule,
            text=answer.text,
        )
    if isinstance(answer, str):
        return result_of(call, answer, stamp, by=by)
    return AnswerQuestion(**stamp(), tool_call_id=call.decided.id, answer=answer, by=by)


# --- stops --------------------------------------------------------------------------------------------------------


def stopped_at_limit(max_steps: int, stamp: Stamps) -> StopRunByExceededMaxSteps:
    """The Job has used its steps."""
    return StopRunByExceededMaxSteps(**at_checkpoint(stamp()), max_steps=max_steps)


def stopped_by_budget(exceeded: Exceeded, stamp: Stamps) -> StopRunByExceededBudget:
    """The next call could cross a budget."""
    return StopRunByExceededBudget(
        **at_checkpoint(stamp()),
        budget=exceeded.budget,
        expert=exceeded.expert,
        limit=exceeded.limit,
        spent=exceeded.spent,
        needed=exceeded.needed,
    )


def _stopped_by_the_same(event: StopRunByExceededBudget, stamp: Stamps) -> StopRunByExceededBudget:
    """The stop of a Run that is above one which a budget has stopped."""
    return event.model_copy(update=dict(at_checkpoint(stamp())))


def paused_for_limit(resume_at: int, stamp: Stamps) -> StopRunByInterrupt:
    """The endpoint asks to be left alone, until `resume_at` in milliseconds since 1970; 0 if that is not known."""
    return StopRunByInterrupt(**at_checkpoint(stamp()), reason="rateLimit", resume_at=resume_at or None)


def stopped_with(delegates: Sequence[Run], max_steps: int, stamp: Stamps) -> StoredEvent:
    """The stop of a Run whose delegates have stopped without a result: a question goes before a pause."""
    statuses = {run.status for run in delegates}
    if "stoppedByInteractiveTool" in statuses:
        return StopRunByInteractiveTool(**at_checkpoint(stamp()))
    if "stoppedByInterrupt" in statuses:
        return paused_for_limit(max(run.resume_at or 0 for run in delegates), stamp)
    of_budget = next((run.exceeded for run in delegates if run.status == "stoppedByBudget" and run.exceeded), None)
    if of_budget is not None:
        return _stopped_by_the_same(of_budget, stamp)
    return stopped_at_limit(max_steps, stamp)


def interrupted(run: Run, stamp: Stamps) -> tuple[StoredEvent, ...]:
    """The interrupt of a Run that is at work, or waits for a worker; one that has stopped is left as it is."""
    return (StopRunByInterrupt(**at_checkpoint(stamp())),) if run.status in ACTIVE or run.status == "queued" else ()


# --- going on -----------------------------------------------------------------------------------------------------


def resumed(
    run: Run,
    reason: ResumeReason,
    stamp: Stamps,
    *,
    limits: Limits | None,
    settled: Mapping[str, Settlement],
    by: By | None = None,
    signal: str | None,
    definition: Definition | None,
    permissions: tuple[RuleSet, ...],
    worker: str = "",
) -> ResumeRun:
    """A Run continues; `settled` is by the key or the id of a call. A signal is for the Coordinator.

    `permissions` are today's rules: what the Run does not have of them yet holds from now on.
    """
    return ResumeRun(
        **stamp(),
        reason=reason,
        checkpoint_id=event_id_of(run.id, run.head.seq),
        limits=limits,
        by=None if limits is None else by,
        settled=_settled_of(run, settled),
        signal=None if reason == "parent" else signal,
        definition=definition,
        permissions=permissions,
        worker=worker,
    )


def _settled_of(run: Run, settled: Mapping[str, Settlement]) -> dict[str, Settlement]:
    decided: dict[str, Settlement] = {}
    for call in run.calls.values():
        settlement = settled.get(call_key(run, call)) or settled.get(call.decided.id)
        if is_unsettled(call) and settlement is not None:
            decided[call.decided.id] = settlement
    return decided


def redefined(
    run: Run, today: Definition, today_limits: Limits, limits: Limits | None
) -> tuple[Definition | None, Limits | None]:
    """The definition and the limits that a Run which failed before its first reply continues with, where they are new.

    A number of steps that was asked for goes before today's.
    """
    of_run = today.model_copy(update={name: getattr(run.start, name) for name in Definition.model_fields})
    # an instruction is rendered with the time, and is another each time
    is_same = of_run.model_copy(update={"instruction": today.instruction}) == today
    wanted = today_limits
    if limits is not None and limits.max_steps != run.limits.max_steps:
        wanted = wanted.model_copy(update={"max_steps": limits.max_steps})
    return None if is_same else today, None if wanted == run.limits else wanted


def moved(run: Run, today: Definition, directory: str) -> Definition | None:
    """The definition that a Run which waits for a worker continues with: in another folder it is another."""
    of_run = today.model_copy(update={name: getattr(run.start, name) for name in Definition.model_fields})
    is_same = of_run.model_copy(update={"instruction": today.instruction}) == today
    return None if is_same and names_directory(run.start.instruction, directory) else today


def has_ended(delegate: Run) -> bool:
    """Whether a delegate's Run that was decided on has ended: it is never driven a second time."""
    return delegate.status in ("completed", "stoppedByError")
