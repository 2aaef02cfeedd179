"""Compute a Run's next command from its state alone.

The result depends on nothing but the state, so that a resumed Run continues and a replayed log is checked by these
decisions too. `decide.py` or the engine performs the command; a new command needs a branch here.
"""

from __future__ import annotations

from typing import assert_never

from perstack.core.definitions.permissions import refusal
from perstack.core.runs import commands
from perstack.core.runs.context_window import command_before_repeat, command_for_full_context
from perstack.core.runs.facts import ErrorInfo, apply_todo, remaining_todos, todos_json
from perstack.core.runs.repeats import repeated_call
from perstack.core.runs.retries_and_fallbacks import next_model, reason_to_switch
from perstack.core.runs.state import MAX_REJECTIONS, Phase, Run, completion_result, continues_reply, latest_reply

INTERRUPTED = (
    "This call was interrupted before its result was recorded. It may have had its effect, in whole or in part: find"
    " out before you repeat it."
)

_DONE = "This call was interrupted before its result was recorded; a person has confirmed that it had its effect."

_TOO_DEEP = (
    "Delegation failed: there are {} delegates one below the other already, and `maxDepth` allows no more. Do this part"
    " of the work yourself."
)


def begins_step(run: Run, command: commands.Command) -> bool:
    """Return True if the command is the first work of a step: a Run stopped before it has nothing to repeat."""
    return run.phase is Phase.READY and isinstance(
        command, commands.Generate | commands.Compact | commands.Shrink | commands.Snapshot
    )


def takes_posted_texts(run: Run, command: commands.Command) -> bool:
    """Return True if texts that people posted reach the model before this command, which generates or ends the Run."""
    if run.phase not in (Phase.READY, Phase.GENERATING) or continues_reply(run):
        return False
    return isinstance(command, commands.Generate | commands.EndRun | commands.JudgeResult)


def pending(run: Run, limit: int | None = None) -> commands.Command | None:
    """Return the next command; None if stopped or closed. `limit`: the Job's step limit, once it is reached."""
    if run.closed is not None or run.status not in ("running", "stoppedByDelegate"):
        return None
    match run.phase:
        case Phase.READY:
            return _pending_step(run, limit)
        case Phase.GENERATING:
            if run.unusable_reply is not None:
                return _after_unusable(run, run.unusable_reply)
            return command_before_repeat(run) or commands.Generate(run.step, run.is_final_generation)
        case Phase.REPLIED:
            return commands.DecideCalls(latest_reply(run).tool_calls)
        case Phase.CALLING:
            return _pending_while_calling(run)
        case Phase.SETTLED if run.snapshot_due != "no":
            return commands.Snapshot()
        case Phase.SETTLED:
            if run.is_declared_done and run.result is None:
                return command_for_full_context(run) or commands.Generate(run.step, final=True)
            repeated = None if run.is_declared_done else repeated_call(run)
            return commands.EndStep() if repeated is None else commands.Fail(repeated)
        case _:
            assert_never(run.phase)


def _pending_while_calling(run: Run) -> commands.Command:
    """Return the next command while calls are open; snapshots keep the calls' changes apart from those of people."""
    if run.snapshot_due == "before":
        return commands.Snapshot()
    command = _pending_call(run)
    is_waiting = isinstance(command, commands.Ask | commands.AskApproval) and run.status == "running"
    return commands.Snapshot() if run.snapshot_due == "after" and is_waiting else command


def _after_unusable(run: Run, problem: ErrorInfo) -> commands.Fail | commands.Switch:
    has_fallback = next_model(run) is not None and reason_to_switch(problem) is not None
    return commands.Switch(problem) if has_fallback else commands.Fail(problem)


def _pending_step(run: Run, limit: int | None) -> commands.Command:
    if run.result is not None:
        return (
            commands.EndRun(run.result)
            if run.result_schema is None
            else commands.JudgeResult(run.result, run.result_schema)
        )
    if (failure := _failure(run)) is not None:
        return commands.Fail(failure)
    if limit is not None:
        return commands.StopAtLimit(limit)
    return (
        commands.Snapshot()
        if run.snapshot_due != "no"
        else command_for_full_context(run) or commands.Generate(run.step + 1)
    )


def _pending_call(run: Run) -> commands.Command:
    """Order: changes, ordinary and approved calls, tools' questions, delegates, approvals and answers, completion."""
    open_calls = run.open_calls
    changed = next((call for call in open_calls if call.change is not None), None)
    if changed is not None:
        return commands.DecideChange(changed)
    known_result = next((record for call in open_calls if (record := _known_result(run, call))), None)
    if known_result is not None:
        return known_result
    free = [call for call in open_calls if not call.waits_for_approval and call.settlement != "ask"]
    tools = tuple(call for call in free if call.decided.kind == "tool" and call.tool_question is None)
    if tools:
        return commands.RunTools(tools)
    asking = next((call for call in open_calls if call.tool_question is not None or call.settlement == "ask"), None)
    if asking is not None:
        return commands.Ask(asking)
    delegates = tuple(call for call in free if call.decided.kind == "delegate")
    undecided = tuple(call for call in delegates if call.delegation is None)
    if undecided:
        return commands.StartDelegates(undecided)
    if delegates:
        return commands.AwaitDelegates(tuple(call.delegation for call in delegates if call.delegation is not None))
    waiting = next((call for call in open_calls if call.waits_for_approval), None)
    if waiting is not None:
        return commands.AskApproval(waiting)
    question_call = next((call for call in open_calls if call.decided.kind == "interactive"), None)
    if question_call is not None:
        return commands.Ask(question_call)
    return _completion(run, open_calls[0])


def _known_result(run: Run, call: commands.Call) -> commands.RecordResult | None:
    """Return the command to record a result that follows from the state; None for a call that must be made."""
    if call.settlement in ("done", "tell"):
        words = f" The person says: {call.settled_with}" if call.settled_with else ""
        text = _DONE if call.settlement == "done" else INTERRUPTED
        return commands.RecordResult(call, text + words, is_error=call.settlement == "tell")
    if call.approval is not None and call.approval.denies:
        text = refusal(call.decided.rule, call.approval.text, is_unattended=call.is_unattended)
        return commands.RecordResult(call, text, is_error=True)
    match call.decided.kind:
        case "todo":
            return commands.RecordResult(call, todos_json(apply_todo(run.todos, call.part.args)))
        case "clearTodo":
            return commands.RecordResult(call, todos_json(()))
        case "refused":
            return commands.RecordResult(call, call.decided.problem or "This call is not possible.", is_error=True)
        case "delegate" if call.delegation is None and not run.may_delegate:
            return commands.RecordResult(call, _TOO_DEEP.format(run.limits.max_depth), is_error=True)
        case "tool" | "delegate" | "interactive" | "attemptCompletion":
            return None
        case _:
            assert_never(call.decided.kind)


def _completion(run: Run, call: commands.Call) -> commands.Complete:
    return commands.Complete(call, remaining_todos(run.todos), completion_result(run, call))


def _failure(run: Run) -> ErrorInfo | None:
    """Return the error of a Run whose results were rejected too often; None if it may continue."""
    if run.rejections < MAX_REJECTIONS:
        return None
    message = (
        f"the result does not fit the schema that was asked for, and neither did the one before: {run.rejected_for}"
    )
    return ErrorInfo(name="InvalidResult", message=message)
