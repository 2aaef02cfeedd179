"""Lines for questions, approvals, and calls that a crash left without a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from perstack.core.jobs.answers import ALWAYS, accepted, accepted_answers, wider_answers
from perstack.core.jobs.resuming import UnsettledCall
from perstack.core.runs.facts import Settlement
from perstack.core.runs.questions import OpenQuestion
from perstack.doors.shared.questions import covered_calls, head_lines, question_text, requested_change, value_text
from perstack.doors.shared.text import break_anywhere, cells
from perstack.doors.tui.view.items import difference
from perstack.doors.tui.view.styled_text import Line, Span, clean, wrap

SETTLEMENTS: dict[str, tuple[Settlement, str]] = {
    "d": ("done", "it was done"),
    "r": ("retry", "it is run again"),
    "a": ("ask", "you are asked"),
}


CHOSEN = "❯ "  # the mark before the call that a key settles


def asking_lines(question: OpenQuestion, workspace: Path, width: int, spent: str = "") -> list[Line]:
    """Return the whole question: what the Job has used so far, every argument, and for an edit its diff."""
    if not question.call_digest:
        first, *more_lines = wrap(question_text(question), width)
        return [(Span(first, "ask"),), *((Span(line),) for line in more_lines)]
    change = requested_change(question, workspace)
    lines: list[Line] = [(Span(piece, "ask"),) for line in head_lines(question) for piece in wrap(line, width)]
    lines += [(Span(line, "dim"),) for line in wrap(f"so far: {spent}", width) if spent]
    for name, value in question.args.items():
        if name not in change.arguments:
            lines += _argument(name, value_text(value, question), width)
    lines += [(Span("  "), Span(line, "warn")) for line in wrap(change.note, width - 2) if line]
    lines += [
        (Span("  "), *_difference_line(line)) for text in change.lines[2:] for line in _in_pieces(text, width - 2)
    ]
    return lines


def asking_hint(question: OpenQuestion, *, covers: bool = True) -> str:
    """Return the hint how to answer. `covers`: it also says which calls each further answer covers."""
    allowed = accepted_answers(question)
    if question.call_digest:
        of_job = covered_calls(question)[: 1 + len(question.offers)]
        texts = [f"{number or 'a'} {texts if covers else answer}" for number, (answer, texts) in enumerate(of_job)]
        numbers = [f"{len(of_job) - 1 + number} as {number}" for number in range(1, len(of_job))]
        project = [f"in this project: {', '.join(numbers)}"] if numbers else []
        return " · ".join(("y yes", f"in this Job: {', '.join(texts)}", *project, "n no, and why"))
    if allowed.several:
        return "type numbers or options, with commas between" + (", or other words" if allowed.allows_other else "")
    if allowed.options:
        return "type a number or an option" if not allowed.allows_other else "type a number, an option, or other words"
    return accepted(allowed)


def decision(question: OpenQuestion, key: str) -> str | None:
    """Return the answer that a key gives to a call: a yes, or one for more than this call; None for other keys."""
    if key in ("y", "Y"):
        return accepted_answers(question).options[0]
    if key in ("a", "A"):
        return ALWAYS
    wider = wider_answers(question)
    if key.isascii() and key.isdecimal() and len(key) < 4 and 0 < int(key) <= len(wider):
        return wider[int(key) - 1]
    return None


def unsettled_lines(
    calls: Sequence[UnsettledCall], settled: Mapping[str, Settlement], chosen: int, width: int
) -> list[Line]:
    """Return the calls without a result and the settlement chosen for each."""
    lines: list[Line] = [
        (Span(line, "warn"),)
        for line in wrap("Its process ended while these calls were at work. What became of them?", width)
    ]
    meanings = dict(SETTLEMENTS.values())
    for number, call in enumerate(calls):
        mark = CHOSEN if number == chosen else "  "
        kind = settled.get(call.key)
        lines.append(
            (Span(mark, "person"), Span(clean(call.tool_name), "strong"), Span(f" of {clean(call.expert_key)}", "dim"))
        )
        lines += [(Span("    "), Span(line)) for line in wrap(call.args, width - 4)]
        lines.append(
            (
                Span("    "),
                Span(meanings[kind] if kind else "the model sees that it was interrupted", "good" if kind else "dim"),
            )
        )
    return lines


REFUSING_HINT = "why not? Enter sends a reason to the model, or just the no; Esc goes back"
UNSETTLED_HINT = "d it was done · r run it again · a ask me · Enter resumes"


def _argument(name: str, value: str, width: int) -> list[Line]:
    label = f"  {clean(name)}: "
    first, *more_lines = wrap(value, max(8, width - len(label)))
    return [(Span(label, "dim"), Span(first)), *((Span(" " * len(label)), Span(line)) for line in more_lines)]


def _in_pieces(text: str, width: int) -> list[str]:
    """Return a diff's line in pieces without losing text that the user approves; continued pieces keep its sign."""
    line = clean(text).replace("\n", " ")
    first, *pieces = break_anywhere(line, width)
    return [first, *(f"{line[:1]}  {part}" for piece in pieces for part in break_anywhere(piece, width - 3))]


def _difference_line(line: str) -> Line:
    return difference(line, cells(line))
