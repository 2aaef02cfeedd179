"""Check that a log records what this version would have done.

Answers of the world (replies, results of tools, answers of people, stops) are taken from the log. Everything that the
loop decides is computed again by `pending` and `evolve`, and must be exactly equal. A new event or command needs a case
here.
"""

from __future__ import annotations

from dataclasses import replace

from perstack.core.base.records import JsonObject
from perstack.core.definitions.result_schemas import judged
from perstack.core.runs.commands import (
    Ask,
    AskApproval,
    AwaitDelegates,
    Command,
    Compact,
    Complete,
    DecideCalls,
    EndRun,
    EndStep,
    Fail,
    Generate,
    JudgeResult,
    RecordResult,
    RunTools,
    Shrink,
    Snapshot,
    StartDelegates,
    StopAtLimit,
    Switch,
)
from perstack.core.runs.decide import digest_of
from perstack.core.runs.events import (
    CloseRun,
    ErrorRun,
    FinishRewind,
    FinishRun,
    QueueRun,
    RedactEvent,
    RejectResult,
    ResumeRun,
    StartRewind,
    StopRunByDelegate,
    StopRunByExceededBudget,
    StopRunByExceededMaxSteps,
    StopRunByInteractiveTool,
    StopRunByInterrupt,
    StoredEvent,
    WidenPermissions,
)
from perstack.core.runs.fallbacks import switch_difference
from perstack.core.runs.messages import text_of
from perstack.core.runs.pending import pending
from perstack.core.runs.repeats import warning_with
from perstack.core.runs.results import lacks_effect
from perstack.core.runs.state import Phase, Run, may_have_unrecorded
from perstack.core.runs.step_events import (
    AnswerQuestion,
    AttemptCompletion,
    CallDelegate,
    CallInteractiveTool,
    CallTools,
    CompactHistory,
    DecideApproval,
    FinishGeneration,
    FinishStep,
    FinishToolCall,
    RecordSnapshot,
    RequestApproval,
    Retry,
    ShrinkResults,
    StartCompaction,
    StartGeneration,
    StartSample,
    StartToolCall,
    SwitchModel,
)


def difference(run: Run, event: StoredEvent) -> str | None:
    """Return what is wrong with `event` as the next one after the state `run`; None if nothing is.

    >>> # difference(run_ready_for_step_2, FinishStep(...)) == "finishStep, where the loop would generate for step 2"
    """
    if isinstance(event, StopRunByInterrupt | ErrorRun | StopRunByExceededMaxSteps | StopRunByExceededBudget):
        return None
    if isinstance(event, WidenPermissions | QueueRun | CloseRun | StartRewind | FinishRewind | RedactEvent):
        return None  # a person may do this at any time, and a worker when it exits
    if isinstance(event, ResumeRun):
        return _resumption(run, event)
    if isinstance(event, StopRunByInteractiveTool):
        waits = any(call.delegation for call in run.open_calls)
        return None if run.asked or waits else "stopRunByInteractiveTool, where nothing was asked"
    if isinstance(event, StopRunByDelegate):
        return None if any(call.delegation for call in run.open_calls) else "stopRunByDelegate without delegates"
    if run.is_tightened and isinstance(event, FinishToolCall) and event.is_error:
        return None  # rules added later forbid the call
    if isinstance(event, SwitchModel):
        return switch_difference(run, event)  # the failed attempt that caused it is not in the log
    if isinstance(event, FinishToolCall | AnswerQuestion | DecideApproval) and event.tool_call_id == run.asked:
        run = replace(run, snapshot_due="no")  # an answer follows the resumption directly, before a snapshot
    command = pending(run)
    if command is None:
        return f"{event.type} after the Run stopped ({run.status})"
    return _against(run, command, event)


def _resumption(run: Run, event: ResumeRun) -> str | None:
    if run.status == "completed":
        return "resumeRun of a completed Run"
    if event.definition is not None and not run.may_be_redefined:
        return "resumeRun with another definition, where the model has replied under the first"
    return None


def _against(run: Run, command: Command, event: StoredEvent) -> str | None:  # noqa: C901 - one case a command
    wrong: str | _Unexpected | None = _Unexpected()
    match command:
        # Also a worker that exits during the calls records a snapshot.
        case _ if isinstance(event, RecordSnapshot) and (isinstance(command, Snapshot) or may_have_unrecorded(run)):
            wrong = None if event.base in (None, run.snapshot) else "recordSnapshot, which counts from another one"
        case Generate():
            wrong = _generation(run, command, event)
        case DecideCalls() if isinstance(event, CallTools):
            wrong = _same([call.tool_call_id for call in command.calls], [call.id for call in event.calls], "calls")
        case RunTools() if isinstance(event, FinishToolCall | CallInteractiveTool | StartToolCall | StartSample):
            wrong = _one_of([call.decided.id for call in command.calls], event.tool_call_id) or _warning(run, event)
        case AwaitDelegates() if isinstance(event, FinishToolCall):
            wrong = _one_of([one.tool_call_id for one in command.delegations], event.tool_call_id)
            wrong = wrong or _warning(run, event)
        case RecordResult() if isinstance(event, FinishToolCall):
            wrong = _same(command.call.decided.id, event.tool_call_id, "call")
            wrong = wrong or _same(command.text, text_of(event.contents), "result")
            wrong = wrong or _warning(run, event)
        case StartDelegates() if isinstance(event, CallDelegate):
            calls = [call.decided.id for call in command.calls]
            wrong = _same(calls, [one.tool_call_id for one in event.delegates], "delegated calls")
        case Ask():
            wrong = _question(run, command, event)
        case AskApproval() if isinstance(event, RequestApproval | DecideApproval):
            wrong = _same(command.call.decided.id, event.tool_call_id, "call that waits for approval")
            wrong = wrong or _same(digest_of(command.call), event.call_digest, "digest of the call")
        case Shrink() if isinstance(event, ShrinkResults):
            wrong = _same(
                (command.results, command.head, command.tail), (event.results, event.head, event.tail), "results"
            )
        case Compact():
            wrong = _compaction(run, command, event)
        case Complete() if isinstance(event, AttemptCompletion):
            wrong = _completion(command, event)
        case EndStep() if isinstance(event, FinishStep):
            # A Run that begins with an answer ends a step of the Run that it continues.
            wrong = _same(max(1, run.step), event.step_number, "step") or _same(run.step_usage, event.usage, "usage")
        case JudgeResult() if isinstance(event, FinishRun | RejectResult):
            wrong = _result(run, command, event)
        case EndRun() if isinstance(event, FinishRun):
            wrong = _end(run, command.text, None, event)
        case _:
            pass
    return f"{event.type}, where the loop would {_words(command)}" if isinstance(wrong, _Unexpected) else wrong


class _Unexpected:
    """A marker: the event is of another type than the command leads to."""


def _generation(run: Run, command: Generate, event: StoredEvent) -> str | _Unexpected | None:
    if isinstance(event, FinishGeneration | Retry):
        return None if run.phase is Phase.GENERATING else f"{event.type} without startGeneration"
    if isinstance(event, StartGeneration):
        return _same(command.step, event.step_number, "step") or _same(command.final, event.final, "final")
    return _Unexpected()


def _compaction(run: Run, command: Compact, event: StoredEvent) -> str | _Unexpected | None:
    if isinstance(event, Retry):
        return None if run.context.summarising else "retry without startCompaction"
    if isinstance(event, StartCompaction | CompactHistory):
        found = (event.first, event.through)
        kept = event.kept if isinstance(event, CompactHistory) else command.kept
        return _same((command.first, command.through), found, "range") or _same(command.kept, kept, "kept messages")
    return _Unexpected()


def _question(run: Run, command: Ask, event: StoredEvent) -> str | _Unexpected | None:
    if isinstance(event, FinishToolCall | AnswerQuestion):
        return _same(run.asked, event.tool_call_id, "answered call")
    if isinstance(event, CallInteractiveTool):
        return _same(command.call.decided.id, event.tool_call_id, "asked call")
    return _Unexpected()


def _result(run: Run, command: JudgeResult, event: FinishRun | RejectResult) -> str | None:
    found = judged(command.text, command.schema)
    if isinstance(event, FinishRun):
        return _end(run, command.text, found.value, event)
    # The wording is not compared: it belongs to the version that wrote it.
    return None if found.value is None else "rejectResult of a result that fits"


def _end(run: Run, text: str, value: JsonObject | None, event: FinishRun) -> str | None:
    return (
        _same(text, event.text, "text")
        or _same(run.usage, event.total_usage, "total usage")
        or _same(value, event.result, "result")
        or _same(lacks_effect(run), event.without_effect, "withoutEffect")
    )


def _completion(command: Complete, event: AttemptCompletion) -> str | None:
    return (
        _same(command.call.decided.id, event.tool_call_id, "call")
        or _same(command.remaining, event.remaining_todos, "remaining todos")
        or _same(command.result, event.result, "result")
    )


def _warning(run: Run, event: FinishToolCall | CallInteractiveTool | StartToolCall | StartSample) -> str | None:
    if not isinstance(event, FinishToolCall):
        return None
    return _same(warning_with(run, event), event.warning, "warning")


def _one_of(open_ids: list[str], call_id: str) -> str | None:
    return None if call_id in open_ids else f"a result of {call_id}, where only {', '.join(open_ids)} are open"


def _same(expected: object, found: object, what: str) -> str | None:
    return None if expected == found else f"{what} {found!r}, where the loop has {expected!r}"


def _words(command: Command) -> str:
    if isinstance(command, Generate):
        return f"generate for step {command.step}"
    names = {
        DecideCalls: "decide on the calls of the reply",
        RunTools: "run tools",
        RecordResult: "record a result of its own",
        StartDelegates: "decide on delegates",
        AwaitDelegates: "await delegates",
        Ask: "ask a person",
        AskApproval: "ask a person's approval",
        Complete: "take the attempt to complete",
        Shrink: "shorten old results",
        Compact: "summarise a part of the history",
        Snapshot: "record the workspace's files",
        EndStep: "end the step",
        JudgeResult: "hold the result to its schema",
        EndRun: "end the Run",
        Fail: "record that the reply is not a completion",
        Switch: "have the next model generate",
        StopAtLimit: "stop at the step limit",
    }
    return names[type(command)]
