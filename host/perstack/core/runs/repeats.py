"""A model that repeats itself: steps with the same calls and the same results, in a row.

Only a row counts: whatever else is called in between may be progress. Calls of one reply were asked for at once and
count as one step. What waits is no loop: tools that are made for it, and questions to a person.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from perstack.core.commands import Call
from perstack.core.events import FinishToolCall
from perstack.core.messages import ResultContent, TextPart, ToolResultPart
from perstack.core.run_facts import ErrorInfo
from perstack.core.runs.state import NO_REPEATS, Repeats, Run, SameCall


def counted(run: Run, calls: Iterable[Call]) -> Repeats:
    """How often in a row there was the same, after a step in which these calls have their results."""
    if run.limits.max_repeats is None:
        return NO_REPEATS
    same = tuple(_same_call(call) for call in calls)
    if not same or None in same:
        return NO_REPEATS
    found = tuple(one for one in same if one is not None)
    return Repeats(found, run.repeats.times + 1 if found == run.repeats.calls else 1)


def warned(run: Run, event: FinishToolCall) -> FinishToolCall:
    """The result as it is recorded: with a warning, if it ends a step that has been half as often as it may be."""
    warning = warning_with(run, event)
    return event if warning is None else event.model_copy(update={"warning": warning})


def warning_with(run: Run, event: FinishToolCall) -> str | None:
    """What the model is shown after this result; None for nothing."""
    most = run.limits.max_repeats
    if most is None or most < 2 or run.repeats.times + 1 != (most + 1) // 2:
        return None
    open_calls = run.open_calls
    if len(open_calls) != 1 or open_calls[0].decided.id != event.tool_call_id:
        return None
    result = ToolResultPart(
        tool_call_id=event.tool_call_id,
        tool_name=event.tool_name,
        contents=event.contents,
        is_error=event.is_error,
    )
    calls = {**run.calls, event.tool_call_id: replace(open_calls[0], result=result)}
    if counted(run, calls.values()).times != (most + 1) // 2:
        return None
    return _words(most, is_one=len(calls) == 1)


def is_warning(text: str) -> bool:
    """Whether this is what a model is shown that repeats itself, and nothing else."""
    most = text.rpartition("After ")[2].removesuffix(" times the Run is stopped.")
    return most.isdecimal() and len(most) < 10 and text in (_words(int(most), is_one=one) for one in (True, False))


def _words(most: int, *, is_one: bool) -> str:
    return (
        f"{'This call' if is_one else 'These calls'} had the same arguments and the same "
        f"{'result' if is_one else 'results'} {(most + 1) // 2} times in a row. Another repetition will not help: do"
        f" something else, or finish. After {most} times the Run is stopped."
    )


def shown(event: FinishToolCall) -> tuple[ResultContent, ...]:
    """What the model is shown of a result: with its delegate's report and the warning, if there are any."""
    report = None if event.report is None else event.report.text
    if report is None and event.warning is None:
        return event.contents
    return (*event.contents, *(TextPart(text=text) for text in (report, event.warning) if text is not None))


def repeated_call(run: Run) -> ErrorInfo | None:
    """Why a Run that repeats itself may not continue; None if it may."""
    most, repeats = run.limits.max_repeats, run.repeats
    if most is None or repeats.times < most:
        return None
    names = ", ".join(dict.fromkeys(one.tool_name for one in repeats.calls))
    return ErrorInfo(
        name="RepeatedCall",
        message=f"{names} had the same arguments and the same result {repeats.times} times in a row; `maxRepeats` of"
        " perstack.toml allows more, 0 any number, and tools that wait declare `polling = true`",
    )


def _same_call(call: Call) -> SameCall | None:
    """What is compared of a call; None for one that may be repeated."""
    if call.result is None or call.decided.polling or call.decided.kind == "interactive" or call.answers:
        return None
    contents = call.result.contents
    return SameCall(
        call.decided.tool_name,
        call.part.args,
        call.part.raw_args,
        contents[: len(contents) - call.has_report - (call.warning is not None)],
        call.result.is_error,
    )
