"""Replay: does a log say what this version would have done?

What the world answered (replies, results of tools, answers of people, stops) is taken from the log; everything that the
loop itself decides is computed again by `pending` and `evolve`, and must be the same to the letter.
"""

from __future__ import annotations

from perstack.core.base import Fact
from perstack.core.events import (
    AttemptCompletion,
    CallDelegate,
    CallInteractiveTool,
    CallTools,
    ErrorRun,
    FinishGeneration,
    FinishRun,
    FinishStep,
    FinishToolCall,
    ResumeRun,
    Retry,
    StartGeneration,
    StopRunByDelegate,
    StopRunByExceededMaxSteps,
    StopRunByInteractiveTool,
    StopRunByInterrupt,
    StoredEvent,
)
from perstack.core.messages import text_of
from perstack.core.run import (
    Ask,
    AwaitDelegates,
    Command,
    Complete,
    DecideCalls,
    EndRun,
    EndStep,
    Generate,
    Phase,
    RecordResult,
    Run,
    RunTools,
    StartDelegates,
    pending,
)


def difference(run: Run, event: StoredEvent) -> str | None:
    """What is wrong with `event` as the next one after the state `run`; None if nothing is.

    >>> # difference(run_ready_for_step_2, FinishStep(...)) == "finishStep, where the loop would generate for step 2"
    """
    if isinstance(event, StopRunByInterrupt | ErrorRun | StopRunByExceededMaxSteps):
        return None
    if isinstance(event, ResumeRun):
        return "resumeRun of a completed Run" if run.status == "completed" else None
    if isinstance(event, StopRunByInteractiveTool):
        return None if run.asked else "stopRunByInteractiveTool, where nothing was asked"
    if isinstance(event, StopRunByDelegate):
        return None if any(call.delegation for call in run.open_calls) else "stopRunByDelegate without delegates"
    command = pending(run)
    if command is None:
        return f"{event.type} after the Run stopped ({run.status})"
    return _against(run, command, event)


def _against(run: Run, command: Command, event: StoredEvent) -> str | None:  # noqa: C901 - one case for each command
    match command, event:
        case Generate(), FinishGeneration() | Retry():
            return None if run.phase is Phase.GENERATING else f"{event.type} without startGeneration"
        case Generate(), StartGeneration():
            return _same(command.step, event.step_number, "step") or _same(command.final, event.final, "final")
        case DecideCalls(), CallTools():
            return _same([call.tool_call_id for call in command.calls], [call.id for call in event.calls], "calls")
        case RunTools(), FinishToolCall():
            return _one_of([call.decided.id for call in command.calls], event.tool_call_id)
        case AwaitDelegates(), FinishToolCall():
            return _one_of([one.tool_call_id for one in command.delegations], event.tool_call_id)
        case RecordResult(), FinishToolCall():
            return _same(command.call.decided.id, event.tool_call_id, "call") or _same(
                command.text, text_of(event.contents), "result"
            )
        case Ask(), FinishToolCall():
            return _same(run.asked, event.tool_call_id, "answered call")
        case Ask(), CallInteractiveTool():
            return _same(command.call.decided.id, event.tool_call_id, "asked call")
        case StartDelegates(), CallDelegate():
            calls = [call.decided.id for call in command.calls]
            return _same(calls, [one.tool_call_id for one in event.delegates], "delegated calls")
        case Complete(), AttemptCompletion():
            return (
                _same(command.call.decided.id, event.tool_call_id, "call")
                or _same(_json(command.remaining), _json(event.remaining_todos), "remaining todos")
                or _same(command.result, event.result, "result")
            )
        case EndStep(), FinishStep():
            return _same(run.step, event.step_number, "step") or _same(
                _json([run.step_usage]), _json([event.usage]), "usage"
            )
        case EndRun(), FinishRun():
            return _same(command.text, event.text, "text") or _same(
                _json([run.usage]), _json([event.total_usage]), "total usage"
            )
        case _:
            return f"{event.type}, where the loop would {_words(command)}"


def _one_of(open_ids: list[str], call_id: str) -> str | None:
    return None if call_id in open_ids else f"a result of {call_id}, where only {', '.join(open_ids)} are open"


def _same(expected: object, found: object, what: str) -> str | None:
    return None if expected == found else f"{what} {found!r}, where the loop has {expected!r}"


def _json(facts: tuple[Fact, ...] | list[Fact]) -> list[bytes]:
    return [fact.to_json() for fact in facts]


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
        Complete: "take the attempt to complete",
        EndStep: "end the step",
        EndRun: "end the Run",
    }
    return names[type(command)]
