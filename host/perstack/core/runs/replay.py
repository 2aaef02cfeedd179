"""Check that a log records what this version would have done.

Answers of the world (replies, results of tools, answers of people, stops) are taken from the log. Everything that the
loop decides is computed again by `pending` and `evolve`, and must be exactly equal. A new command
needs a case here; an event that no command leads to says so (`RunEvent.is_decided`).
"""

from __future__ import annotations

from dataclasses import replace

from perstack.core.base.records import JsonObject
from perstack.core.definitions.result_schemas import judged
from perstack.core.runs import commands, events, step_events
from perstack.core.runs.decide import digest_of, lacks_effect
from perstack.core.runs.messages import text_of
from perstack.core.runs.pending import pending
from perstack.core.runs.repeats import warning_with
from perstack.core.runs.retries_and_fallbacks import switch_difference
from perstack.core.runs.state import Phase, Run, may_have_unrecorded


def difference(run: Run, event: events.StoredEvent) -> str | None:
    """Return what is wrong with `event` as the next one after the state `run`; None if nothing is.

    >>> # difference(run_ready_for_step_2, FinishStep(...)) == "finishStep, where the loop would generate for step 2"
    """
    if not event.is_decided:
        return None
    if isinstance(event, events.ResumeRun):
        return _resumption(run, event)
    if isinstance(event, events.StopRunByInteractiveTool):
        waits = any(call.delegation for call in run.open_calls)
        return None if run.asked or waits else "stopRunByInteractiveTool, where nothing was asked"
    if isinstance(event, events.StopRunByDelegate):
        return None if any(call.delegation for call in run.open_calls) else "stopRunByDelegate without delegates"
    if run.is_tightened and isinstance(event, step_events.FinishToolCall) and event.is_error:
        return None  # rules added later forbid the call
    if isinstance(event, step_events.SwitchModel):
        return switch_difference(run, event)  # the failed attempt that caused it is not in the log
    if (
        isinstance(event, step_events.FinishToolCall | step_events.AnswerQuestion | step_events.DecideApproval)
        and event.tool_call_id == run.asked
    ):
        run = replace(run, snapshot_due="no")  # an answer follows the resumption directly, before a snapshot
    command = pending(run)
    if command is None:
        return f"{event.type} after the Run stopped ({run.status})"
    return _against(run, command, event)


def _resumption(run: Run, event: events.ResumeRun) -> str | None:
    if run.status == "completed":
        return "resumeRun of a completed Run"
    if event.definition is not None and not run.may_be_redefined:
        return "resumeRun with another definition, where the model has replied under the first"
    return None


def _against(run: Run, command: commands.Command, event: events.StoredEvent) -> str | None:  # noqa: C901 - one case a command
    wrong: str | _Unexpected | None = _Unexpected()
    match command:
        # Also a worker that exits during the calls records a snapshot.
        case _ if isinstance(event, step_events.RecordSnapshot) and (
            isinstance(command, commands.Snapshot) or may_have_unrecorded(run)
        ):
            wrong = None if event.base in (None, run.snapshot) else "recordSnapshot, which counts from another one"
        case commands.Generate():
            wrong = _generation(run, command, event)
        case commands.DecideCalls() if isinstance(event, step_events.CallTools):
            wrong = _same([call.tool_call_id for call in command.calls], [call.id for call in event.calls], "calls")
        case commands.RunTools() if isinstance(
            event,
            step_events.FinishToolCall
            | step_events.CallInteractiveTool
            | step_events.StartToolCall
            | step_events.StartSample,
        ):
            wrong = _one_of([call.decided.id for call in command.calls], event.tool_call_id) or _warning(run, event)
        case commands.AwaitDelegates() if isinstance(event, step_events.FinishToolCall):
            wrong = _one_of([one.tool_call_id for one in command.delegations], event.tool_call_id)
            wrong = wrong or _warning(run, event)
        case commands.RecordResult() if isinstance(event, step_events.FinishToolCall):
            wrong = _same(command.call.decided.id, event.tool_call_id, "call")
            wrong = wrong or _same(command.text, text_of(event.contents), "result")
            wrong = wrong or _warning(run, event)
        case commands.StartDelegates() if isinstance(event, step_events.CallDelegate):
            calls = [call.decided.id for call in command.calls]
            wrong = _same(calls, [one.tool_call_id for one in event.delegates], "delegated calls")
        case commands.Ask():
            wrong = _question(run, command, event)
        case commands.AskApproval() if isinstance(event, step_events.RequestApproval | step_events.DecideApproval):
            wrong = _same(command.call.decided.id, event.tool_call_id, "call that waits for approval")
            wrong = wrong or _same(digest_of(command.call), event.call_digest, "digest of the call")
        case commands.Shrink() if isinstance(event, step_events.ShrinkResults):
            wrong = _same(
                (command.results, command.head, command.tail), (event.results, event.head, event.tail), "results"
            )
        case commands.Compact():
            wrong = _compaction(run, command, event)
        case commands.Complete() if isinstance(event, step_events.AttemptCompletion):
            wrong = _completion(command, event)
        case commands.EndStep() if isinstance(event, step_events.FinishStep):
            # A Run that begins with an answer ends a step of the Run that it continues.
            wrong = _same(max(1, run.step), event.step_number, "step")
            wrong = wrong or _same(run.spending.step_usage, event.usage, "usage")
        case commands.JudgeResult() if isinstance(event, events.FinishRun | events.RejectResult):
            wrong = _result(run, command, event)
        case commands.EndRun() if isinstance(event, events.FinishRun):
            wrong = _end(run, command.text, None, event)
        case _:
            pass
    return f"{event.type}, where the loop would {_words(command)}" if isinstance(wrong, _Unexpected) else wrong


class _Unexpected:
    """A marker: the event is of another type than the command leads to."""


def _generation(run: Run, command: commands.Generate, event: events.StoredEvent) -> str | _Unexpected | None:
    if isinstance(event, step_events.FinishGeneration | step_events.Retry):
        return None if run.phase is Phase.GENERATING else f"{event.type} without startGeneration"
    if isinstance(event, step_events.StartGeneration):
        return _same(command.step, event.step_number, "step") or _same(command.final, event.final, "final")
    return _Unexpected()


def _compaction(run: Run, command: commands.Compact, event: events.StoredEvent) -> str | _Unexpected | None:
    if isinstance(event, step_events.Retry):
        return None if run.context.summarising else "retry without startCompaction"
    if isinstance(event, step_events.StartCompaction | step_events.CompactHistory):
        found = (event.first, event.through)
        kept = event.kept if isinstance(event, step_events.CompactHistory) else command.kept
        return _same((command.first, command.through), found, "range") or _same(command.kept, kept, "kept messages")
    return _Unexpected()


def _question(run: Run, command: commands.Ask, event: events.StoredEvent) -> str | _Unexpected | None:
    if isinstance(event, step_events.FinishToolCall | step_events.AnswerQuestion):
        return _same(run.asked, event.tool_call_id, "answered call")
    if isinstance(event, step_events.CallInteractiveTool):
        return _same(command.call.decided.id, event.tool_call_id, "asked call")
    return _Unexpected()


def _result(run: Run, command: commands.JudgeResult, event: events.FinishRun | events.RejectResult) -> str | None:
    found = judged(command.text, command.schema)
    if isinstance(event, events.FinishRun):
        return _end(run, command.text, found.value, event)
    # The wording is not compared: it belongs to the version that wrote it.
    return None if found.value is None else "rejectResult of a result that fits"


def _end(run: Run, text: str, value: JsonObject | None, event: events.FinishRun) -> str | None:
    return (
        _same(text, event.text, "text")
        or _same(run.spending.usage, event.total_usage, "total usage")
        or _same(value, event.result, "result")
        or _same(lacks_effect(run), event.without_effect, "withoutEffect")
    )


def _completion(command: commands.Complete, event: step_events.AttemptCompletion) -> str | None:
    return (
        _same(command.call.decided.id, event.tool_call_id, "call")
        or _same(command.remaining, event.remaining_todos, "remaining todos")
        or _same(command.result, event.result, "result")
    )


def _warning(
    run: Run,
    event: step_events.FinishToolCall
    | step_events.CallInteractiveTool
    | step_events.StartToolCall
    | step_events.StartSample,
) -> str | None:
    if not isinstance(event, step_events.FinishToolCall):
        return None
    return _same(warning_with(run, event), event.warning, "warning")


def _one_of(open_ids: list[str], call_id: str) -> str | None:
    return None if call_id in open_ids else f"a result of {call_id}, where only {', '.join(open_ids)} are open"


def _same(expected: object, found: object, what: str) -> str | None:
    return None if expected == found else f"{what} {found!r}, where the loop has {expected!r}"


def _words(command: commands.Command) -> str:
    if isinstance(command, commands.Generate):
        return f"generate for step {command.step}"
    names = {
        commands.DecideCalls: "decide on the calls of the reply",
        commands.RunTools: "run tools",
        commands.RecordResult: "record a result of its own",
        commands.StartDelegates: "decide on delegates",
        commands.AwaitDelegates: "await delegates",
        commands.Ask: "ask a person",
        commands.AskApproval: "ask a person's approval",
        commands.Complete: "take the attempt to complete",
        commands.Shrink: "shorten old results",
        commands.Compact: "summarise a part of the history",
        commands.Snapshot: "record the workspace's files",
        commands.EndStep: "end the step",
        commands.JudgeResult: "hold the result to its schema",
        commands.EndRun: "end the Run",
        commands.Fail: "record that the reply is not a completion",
        commands.Switch: "have the next model generate",
        commands.StopAtLimit: "stop at the step limit",
    }
    return names[type(command)]
