"""Build the events that need no side effect: of commands, questions, answers, results, stops and resumptions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import assert_never

from perstack.core.base.ids import By, event_id_of, run_id_of
from perstack.core.base.records import JsonObject, fields_of
from perstack.core.base.usage import BudgetRefusal
from perstack.core.definitions.instruction import names_directory
from perstack.core.definitions.job_status import ACTIVE
from perstack.core.definitions.permissions import UNATTENDED, Approval, RuleSet, call_digest
from perstack.core.definitions.settings import Limits
from perstack.core.definitions.skills import DecidedCall
from perstack.core.messages.messages import TextPart
from perstack.core.runs import commands, events
from perstack.core.runs.facts import (
    Answer,
    Definition,
    DelegateHead,
    DelegateReport,
    Delegation,
    ErrorInfo,
    EventStamp,
    Settlement,
    Stamps,
    at_checkpoint,
)
from perstack.core.runs.open_questions import settlement_of, settling_args
from perstack.core.runs.retries_and_fallbacks import models_of, next_model, reason_to_switch
from perstack.core.runs.state import Phase, Run, call_key, is_unsettled
from perstack.core.schemas.result_schemas import ResultCheck, correction
from perstack.dataclass import dataclass

PureCommand = (  # commands without a side effect: their events follow from the state
    commands.RecordResult
    | commands.StartDelegates
    | commands.Complete
    | commands.EndStep
    | commands.EndRun
    | commands.Fail
    | commands.StopAtLimit
)


def events_of_command(
    run: Run, command: PureCommand, stamp: Stamps, next_number: int
) -> tuple[events.StoredEvent, ...]:
    """Return the events of a command without a side effect; `next_number`: the number of the Job's next Run."""
    match command:
        case commands.RecordResult():
            return (text_result_event(command.call, command.text, stamp, is_error=command.is_error).with_warning(run),)
        case commands.StartDelegates():
            return _delegation_events(command, stamp, next_number)
        case commands.Complete():
            return (
                events.AttemptCompletion(
                    **stamp(),
                    tool_call_id=command.call.decided.id,
                    remaining_todos=command.remaining,
                    result=command.result,
                ),
            )
        case commands.EndStep():
            return (events.FinishStep(**at_checkpoint(stamp()), usage=run.spending.step_usage),)
        case commands.EndRun():
            return (_finish_run(run, command.text, None, stamp),)
        case commands.Fail():
            return (events.ErrorRun(**at_checkpoint(stamp()), error=command.error, uncharged=command.uncharged),)
        case commands.StopAtLimit():
            return (step_limit_event(command.max_steps, stamp),)
        case _:
            assert_never(command)


def text_result_event(
    call: commands.Call, text: str, stamp: Stamps, *, is_error: bool = False, by: By | None = None
) -> events.FinishToolCall:
    return events.FinishToolCall(
        **stamp(),
        tool_call_id=call.decided.id,
        tool_name=call.decided.tool_name,
        contents=(TextPart(text=text),),
        is_error=is_error,
        by=by,
    )


def _delegation_events(
    command: commands.StartDelegates, stamp: Stamps, next_number: int
) -> tuple[events.StoredEvent, ...]:
    """Return the events that start delegates. Recording their Run ids first lets a resumed Run find them."""
    delegations = tuple(
        Delegation(
            tool_call_id=call.decided.id,
            tool_name=call.decided.tool_name,
            expert_key=call.decided.target or call.decided.tool_name,
            run_id=run_id_of(stamp()["job_id"], next_number + index),
            query=commands.query_of(call),
        )
        for index, call in enumerate(command.calls)
    )
    return events.CallDelegate(**stamp(), delegates=delegations), events.StopRunByDelegate(**at_checkpoint(stamp(1)))


def stamp_for_next_step(run: Run, stamp: Stamps, ahead: int = 0) -> EventStamp:
    """Return the stamp of an event before a step's generation, which belongs to that step and not to the last."""
    fields = stamp(ahead)
    return {**fields, "step_number": run.step + 1} if run.phase is Phase.READY else fields


# --- questions ----------------------------------------------------------------------------------------------------


def question_events(run: Run, call: commands.Call, stamp: Stamps, *, approval: bool) -> tuple[events.StoredEvent, ...]:
    """Return the events that ask a question and stop the Run; only the stop if the Run is asking it already."""
    settles = call.settlement == "ask"
    if (settles or call.tool_question is not None) and run.asked_call_id == call.decided.id:
        return (events.StopRunByInteractiveTool(**at_checkpoint(stamp())),)
    asked: JsonObject | None = None if call.tool_question is None else {"question": call.tool_question.message}
    call_interactive_tool = events.CallInteractiveTool(
        **stamp(),
        tool_call_id=call.decided.id,
        tool_name=call.decided.tool_name,
        skill_name=call.decided.skill_name,
        args=settling_args(call.decided.tool_name, call.part.args) if settles else asked or call.part.args,
        approval=approval,
        question=call.tool_question,
        settles=settles,
    )
    return call_interactive_tool, events.StopRunByInteractiveTool(**at_checkpoint(stamp(1)))


@dataclass(frozen=True, slots=True)
class SettledApproval:
    """Decision on a call that needs approval, made without a question to a person."""

    approval: Approval
    door: str = UNATTENDED  # door that decided


@dataclass(frozen=True, slots=True)
class ApprovalSubject:
    """Facts in addition to the call that an approval is bound to, and the rules that may be approved in its place."""

    leads_to: tuple[str, ...] = ()
    offers: tuple[str, ...] = ()
    content: str = ""
    changes: tuple[str, ...] = ()  # lines of the definition that differ from the agreed one
    changed_files: tuple[str, ...] = ()  # files that have changed since the call was allowed in the project


def request_event(
    call: commands.Call, subject: ApprovalSubject, stamp: Stamps, again: str = ""
) -> events.RequestApproval:
    """Return the request for approval of a call; `again`: why a call is asked about again."""
    return events.RequestApproval(
        **stamp(),
        tool_call_id=call.decided.id,
        tool_name=call.decided.tool_name,
        skill_name=call.decided.skill_name,
        args=call.part.args,
        call_digest=call.digest,
        rule=call.decided.rule,
        leads_to=subject.leads_to,
        offers=subject.offers,
        content=subject.content,
        again=again,
        changes=subject.changes,
        changed_files=subject.changed_files,
        stage=call.decided.stage,
    )


def approval_events(
    call: commands.Call, subject: ApprovalSubject, stamp: Stamps, settled: SettledApproval | None
) -> tuple[events.StoredEvent, ...]:
    """Return the request for approval, if not recorded yet, and the stop; or the decision, if nobody need be asked."""
    requested = () if call.requested is not None else (request_event(call, subject, stamp, call.change_problem),)
    next_stamp = stamp(len(requested))
    if settled is None:
        return *requested, events.StopRunByInteractiveTool(**at_checkpoint(next_stamp))
    decision = events.DecideApproval(
        **next_stamp,
        tool_call_id=call.decided.id,
        call_digest=call.requested or call.digest,
        decision=settled.approval.decision,
        by=By(door=settled.door),
        rule=settled.approval.rule,
        text=settled.approval.text,
    )
    return *requested, decision


def changed_call_event(
    call: commands.Call, decided: DecidedCall, subject: ApprovalSubject, stamp: Stamps
) -> events.DecideChangedCall:
    """Return the decision about a changed call, whose `part` has the new arguments.

    What a rule or the tool itself refuses is asked again as it was. The change approves the call unless its paths lead
    elsewhere than they say, its tool is another by now, or another stage asks: then the person sees the changed call
    first.
    """
    if decided.kind == "refused":
        problem = f"{decided.rule} denies it as changed" if decided.rule else decided.problem or "it is not possible"
        return events.DecideChangedCall(**stamp(), tool_call_id=decided.id, problem=problem)
    is_as_written = not decided.ways and decided.definition == call.decided.definition
    is_as_asked = decided.decider == call.decided.decider
    return events.DecideChangedCall(
        **stamp(),
        tool_call_id=decided.id,
        decided=decided,
        approved=decided.asks and is_as_written and is_as_asked,
        call_digest=call_digest(decided.skill_name, decided.tool_name, call.part.args, decided.definition),
        leads_to=subject.leads_to,
        content=subject.content,
    )


def start_call_event(call: commands.Call, stamp: Stamps) -> events.StartToolCall:
    """Return the event that records the start of an approved call."""
    return events.StartToolCall(**stamp(), tool_call_id=call.decided.id, call_digest=call.digest)


def answer_event(run: Run, answer: str | Answer | Approval, stamp: Stamps, by: By | None) -> events.StoredEvent:
    """Return the event for a person's answer; a text is the result of an interactive tool.

    An approval whose arguments equal those of the call is recorded as a plain approval.
    """
    call = run.calls[run.asked_call_id or ""]
    if isinstance(answer, Approval) and answer.changed is not None and answer.changed != call.part.args:
        call_id, digest = call.decided.id, call.requested or ""
        return events.ChangeCall(
            **stamp(), tool_call_id=call_id, call_digest=digest, args=answer.changed, by=by or By()
        )
    if isinstance(answer, Approval):
        return events.DecideApproval(
            **stamp(),
            tool_call_id=call.decided.id,
            call_digest=call.requested or "",
            decision=answer.decision,
            by=by or By(),
            rule=answer.rule,
            text=answer.text,
        )
    if isinstance(answer, str) and call.settlement == "ask":
        settlement, words = settlement_of(answer)
        return events.SettleCall(**stamp(), tool_call_id=call.decided.id, settlement=settlement, text=words, by=by)
    if isinstance(answer, str):
        return text_result_event(call, answer, stamp, by=by)
    return events.AnswerQuestion(**stamp(), tool_call_id=call.decided.id, answer=answer, by=by)


# --- results ------------------------------------------------------------------------------------------------------


def result_event(run: Run, text: str, check: ResultCheck, stamp: Stamps) -> events.FinishRun | events.RejectResult:
    """Return the completion of a Run, or the rejection of a result that does not fit its schema."""
    if check.value is None:
        text = correction(check.problem)
        return events.RejectResult(**stamp(), problem=check.problem, text=text, by_program=check.by_program)
    return _finish_run(run, text, check.value, stamp)


def _finish_run(run: Run, text: str, value: JsonObject | None, stamp: Stamps) -> events.FinishRun:
    return events.FinishRun(
        **at_checkpoint(stamp()),
        text=text,
        total_usage=run.spending.usage,
        result=value,
        without_effect=run.lacks_effect,
    )


@dataclass(frozen=True, slots=True)
class DelegateResult:
    """Result of a delegate's Run. Without a text the Run has stopped and may be resumed."""

    text: str | None
    is_error: bool = False
    run: Run | None = None  # None if it could not be set up

    @classmethod
    def failed(cls, reason: str, run: Run | None = None) -> DelegateResult:
        return cls(f"Delegation failed: {reason}", True, run)

    @property
    def head(self) -> DelegateHead | None:
        """The head of the Run's log when it ended; None without a Run."""
        run = self.run
        return None if run is None else DelegateHead(run_id=run.id, seq=run.head.seq, hash=run.head.hash)

    @property
    def stopped(self) -> Run | None:
        """The Run, if it has stopped without a result; None otherwise."""
        return self.run if self.text is None else None

    @classmethod
    def of(cls, run: Run) -> DelegateResult:
        """Create the result of a Run that has ended or stopped."""
        if run.status == "completed":
            text = run.result or ""
            return cls(
                text if run.result_value is None else json.dumps(run.result_value, ensure_ascii=False), False, run
            )
        if run.status == "stoppedByError":
            reason = run.error.message if run.error is not None else "unknown error"
            return cls.failed(reason, run)
        return cls(None, False, run)


def report_of(run: Run, tool_name: str) -> DelegateReport:
    """Return the report of an ended delegate; `tool_name`: the name that the caller knows it by."""
    is_completed = run.status == "completed"
    work = f"{_count_of(run.step, 'step')}, {_count_of(run.effect_count, 'call')} with an effect"
    text = f"({tool_name}: {'completed in' if is_completed else 'failed after'} {work})"
    if run.without_effect:
        text += " Its work should have an effect, and none of its calls had one: check before you rely on its result."
    return DelegateReport(
        outcome="completed" if is_completed else "failed",
        steps=run.step,
        effects=run.effect_count,
        without_effect=run.without_effect,
        text=text,
    )


def _count_of(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# --- stops --------------------------------------------------------------------------------------------------------


def step_limit_event(max_steps: int, stamp: Stamps) -> events.StopRunByExceededMaxSteps:
    return events.StopRunByExceededMaxSteps(**at_checkpoint(stamp()), max_steps=max_steps)


def budget_stop_event(exceeded: BudgetRefusal, stamp: Stamps) -> events.StopRunByExceededBudget:
    """Return the stop of a Run whose next call could exceed a budget."""
    return events.StopRunByExceededBudget(**at_checkpoint(stamp()), **asdict(exceeded))


def switch_event(
    run: Run, error: ErrorInfo, stamp: Stamps, *, uncharged: bool = False, window: int | None = None
) -> events.SwitchModel | None:
    """Return the switch to the next model; None if there is none, or if it would not do better."""
    successor, reason = next_model(run), reason_to_switch(error)
    if successor is None or reason is None:
        return None
    return events.SwitchModel(
        **stamp(),
        before=run.active_model,
        to=successor,
        reason=reason,
        error=error,
        context_window=window,
        uncharged=uncharged,
    )


def switch_back_event(run: Run, stamp: Stamps, window: int | None = None) -> events.SwitchModel:
    return events.SwitchModel(
        **stamp(), before=run.active_model, to=models_of(run.start)[0], reason="triedAgain", context_window=window
    )


def rate_limit_pause_event(resume_at: int, stamp: Stamps) -> events.StopRunByInterrupt:
    """Return the pause for a rate limit until `resume_at`, in milliseconds since 1970; 0 if unknown."""
    return events.StopRunByInterrupt(**at_checkpoint(stamp()), reason="rateLimit", resume_at=resume_at or None)


def stop_event_after_delegates(delegates: Sequence[Run], max_steps: int, stamp: Stamps) -> events.StoredEvent:
    """Return the stop of a Run whose delegates stopped: for a question before a pause, a budget or a step limit."""
    statuses = {run.status for run in delegates}
    if "stoppedByInteractiveTool" in statuses:
        return events.StopRunByInteractiveTool(**at_checkpoint(stamp()))
    if "stoppedByInterrupt" in statuses:
        return rate_limit_pause_event(max(run.resume_at or 0 for run in delegates), stamp)
    exceeded = next((run.exceeded for run in delegates if run.status == "stoppedByBudget" and run.exceeded), None)
    if exceeded is not None:
        return budget_stop_event(exceeded, stamp)
    return step_limit_event(max_steps, stamp)


def interrupt_events(run: Run, stamp: Stamps) -> tuple[events.StoredEvent, ...]:
    """Return the interrupt of a running or queued Run; no event if the Run has stopped already."""
    return (
        (events.StopRunByInterrupt(**at_checkpoint(stamp())),) if run.status in ACTIVE or run.status == "queued" else ()
    )


# --- resumptions --------------------------------------------------------------------------------------------------


def resume_event(
    run: Run,
    reason: events.ResumeReason,
    stamp: Stamps,
    *,
    limits: Limits | None,
    settled: Mapping[str, Settlement],
    by: By | None = None,
    signal: str | None,
    definition: Definition | None,
    permissions: tuple[RuleSet, ...],
    worker: str = "",
) -> events.ResumeRun:
    """Return the event that resumes a Run.

    `settled`: decisions about interrupted calls, by call key or call id. `signal`: id of the event from outside that
    resumes the Job; only the Coordinator records it. `permissions`: today's rules that the Run does not have yet; they
    hold in addition from now on.
    """
    settlements = _settlements_of(run, settled)
    return events.ResumeRun(
        **stamp(),
        reason=reason,
        checkpoint_id=event_id_of(run.id, run.head.seq),
        limits=limits,
        by=None if limits is None else by,
        settled={call_id: how for call_id, how in settlements.items() if how != "ask"},
        asks=tuple(call_id for call_id, how in settlements.items() if how == "ask"),
        signal=None if reason == "parent" else signal,
        definition=definition,
        permissions=permissions,
        worker=worker,
    )


def _settlements_of(run: Run, settled: Mapping[str, Settlement]) -> dict[str, Settlement]:
    settlements: dict[str, Settlement] = {}
    for call in run.calls.values():
        settlement = settled.get(call_key(run, call)) or settled.get(call.decided.id)
        if is_unsettled(call) and settlement is not None:
            settlements[call.decided.id] = settlement
    return settlements


def changed_definition(
    run: Run, today: Definition, today_limits: Limits, limits: Limits | None
) -> tuple[Definition | None, Limits | None]:
    """Return today's definition and limits for a Run that failed before its first reply; None for each if unchanged."""
    is_same = _is_definition_of(run, today)
    new_limits = today_limits
    if limits is not None and limits.max_steps != run.limits.max_steps:
        new_limits = new_limits.model_copy(update={"max_steps": limits.max_steps})
    return None if is_same else today, None if new_limits == run.limits else new_limits


def definition_in_directory(run: Run, today: Definition, directory: str) -> Definition | None:
    """Return the definition that a queued Run continues with in `directory`; None if nothing differs."""
    is_same = _is_definition_of(run, today)
    return None if is_same and names_directory(run.start.instruction, directory) else today


def _is_definition_of(run: Run, today: Definition) -> bool:
    # An instruction contains the time of its rendering and always differs, so it is not compared.
    of_run = today.model_copy(update=fields_of(run.start, Definition))
    return of_run.model_copy(update={"instruction": today.instruction}) == today


def has_ended(delegate_run: Run) -> bool:
    """Return True if a delegate's Run has ended for good: it is never driven again."""
    return delegate_run.status in ("completed", "stoppedByError")
