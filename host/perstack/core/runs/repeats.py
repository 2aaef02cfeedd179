"""Detect consecutive steps with equal calls and results, except polling tools and questions to a person.

Two steps that alternate count as well, and steps that only add todos count as equal, in Runs that began with this rule
(`StartRun.counts_rounds`): a Run of an earlier version keeps the rule that it began with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from perstack.core.messages.messages import ToolResultPart
from perstack.core.runs.commands import Call
from perstack.core.runs.facts import ErrorInfo, repeat_warning
from perstack.core.runs.state import NO_REPEATS, Repeats, Run, SameCall


def count_repeats(run: Run, calls: Iterable[Call]) -> Repeats:
    """Return the count of consecutive equal steps, after a step in which these calls have their results."""
    if run.limits.max_repeats is None:
        return NO_REPEATS
    counts_rounds, last = run.start.counts_rounds, run.repeats
    compared = tuple(_compared_call(call, only_adds=counts_rounds and _only_adds(call)) for call in calls)
    if not compared or None in compared:
        return NO_REPEATS
    comparable = tuple(same_call for same_call in compared if same_call is not None)
    times = last.times + 1 if comparable == last.calls else 1
    if not counts_rounds:
        return Repeats(comparable, times)
    alternates = comparable == last.before and comparable != last.calls
    alternating = (last.alternating or 2) + 1 if alternates else 0
    return Repeats(comparable, times, last.calls, alternating)


def warning_after(run: Run, call_id: str, result: Callable[[], ToolResultPart]) -> str | None:
    """Return the warning if this result ends a step that is half of the allowed repetitions; None otherwise."""
    limit = run.limits.max_repeats
    half = 0 if limit is None else (limit + 1) // 2
    if limit is None or limit < 2 or (run.repeats.times + 1 != half and run.repeats.alternating + 1 != 2 * half):
        return None
    open_calls = run.open_calls
    if len(open_calls) != 1 or open_calls[0].decided.id != call_id:
        return None
    calls = {**run.calls, call_id: replace(open_calls[0], result=result())}
    repeats = count_repeats(run, calls.values())
    if half not in (repeats.times, repeats.alternating / 2):
        return None
    return repeat_warning(limit, is_one=len(calls) == 1 and repeats.times == half)


def repeated_call(run: Run) -> ErrorInfo | None:
    """Return the error of a Run that has repeated itself too often; None if it may continue."""
    limit, repeats = run.limits.max_repeats, run.repeats
    if limit is None or repeats.rounds < limit:
        return None
    calls = repeats.calls if repeats.times >= limit else (*repeats.before, *repeats.calls)
    names = ", ".join(dict.fromkeys(same_call.tool_name for same_call in calls))
    return ErrorInfo(
        name="RepeatedCall",
        message=f"{names} had the same arguments and the same result {repeats.rounds} times in a row. If that is"
        " intended, raise `maxRepeats` in perstack.toml (0: no limit), or declare `polling = true` for a tool"
        " that waits",
    )


def _only_adds(call: Call) -> bool:
    """Return True if a call adds todos and completes none: a list that only grows is no progress."""
    return call.decided.kind == "todo" and not call.part.args.get("completedTodos")


def _compared_call(call: Call, *, only_adds: bool) -> SameCall | None:
    """Return the compared parts of a call; None if it may be repeated. With `only_adds` no text is compared."""
    if call.result is None or call.decided.polling or call.decided.kind == "interactive" or call.answers:
        return None
    if only_adds:
        return SameCall(call.decided.tool_name, {}, None, (), call.result.is_error)
    contents = call.result.contents
    return SameCall(
        call.decided.tool_name,
        call.part.args,
        call.part.raw_args,
        contents[: len(contents) - call.has_report - (call.warning is not None)],
        call.result.is_error,
    )
