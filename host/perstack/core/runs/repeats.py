"""Detect consecutive steps with equal calls and results, but for polling tools and questions to a person."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from perstack.core.runs.commands import Call
from perstack.core.runs.facts import ErrorInfo, repeat_warning
from perstack.core.runs.messages import ResultContent, TextPart, ToolResultPart
from perstack.core.runs.state import NO_REPEATS, Repeats, Run, SameCall
from perstack.core.runs.step_events import FinishToolCall


def counted(run: Run, calls: Iterable[Call]) -> Repeats:
    """Return the count of consecutive equal steps, after a step in which these calls have their results."""
    if run.limits.max_repeats is None:
        return NO_REPEATS
    same = tuple(_same_call(call) for call in calls)
    if not same or None in same:
        return NO_REPEATS
    found = tuple(one for one in same if one is not None)
    return Repeats(found, run.repeats.times + 1 if found == run.repeats.calls else 1)


def warned(run: Run, event: FinishToolCall) -> FinishToolCall:
    """Return the result with a warning to the model if it ends a step at half of the allowed repetitions."""
    warning = warning_with(run, event)
    return event if warning is None else event.model_copy(update={"warning": warning})


def warning_with(run: Run, event: FinishToolCall) -> str | None:
    """Return the warning that the model sees after this result; None if there is none."""
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
    return repeat_warning(most, is_one=len(calls) == 1)


def shown(event: FinishToolCall) -> tuple[ResultContent, ...]:
    """Return the contents of a result as the model sees it: with the delegate's report and the warning, if any."""
    report = None if event.report is None else event.report.text
    if report is None and event.warning is None:
        return event.contents
    return (*event.contents, *(TextPart(text=text) for text in (report, event.warning) if text is not None))


def repeated_call(run: Run) -> ErrorInfo | None:
    """Return the error of a Run that has repeated itself too often; None if it may continue."""
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
    """Return the compared parts of a call; None if it may be repeated."""
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
