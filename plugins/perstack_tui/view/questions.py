"""Lines for questions, approvals, and calls that a crash left without a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import assert_never

from perstack.core.base.text import approvable_text
from perstack.core.jobs.answer_reading import ALWAYS, accepted_answers, describe_accepted, wider_answers
from perstack.core.jobs.resuming import UnsettledCall
from perstack.core.runs.facts import Settlement
from perstack.core.runs.open_questions import OpenQuestion
from perstack.doors.shared.consent import Row, covered_calls, marked, page_of
from perstack.doors.shared.question_forms import question_text
from perstack.doors.shared.text import break_anywhere, cells
from perstack_tui.view.items import diff_line
from perstack_tui.view.styled_text import Line, Span, clean, wrap

SETTLEMENTS: dict[str, tuple[Settlement, str]] = {
    "d": ("done", "it was done"),
    "r": ("retry", "it is run again"),
    "a": ("ask", "you are asked"),
}


CHOSEN = "❯ "  # mark before the call that the next key settles


def question_lines(question: OpenQuestion, workspace: Path, width: int, spent: str = "") -> list[Line]:
    """Return the whole question as lines; for a call that waits for approval, its page."""
    if not question.call_digest:
        first, *more_lines = wrap(question_text(question), width)
        return [(Span(first, "ask"),), *((Span(line),) for line in more_lines)]
    page = page_of(question, workspace, spent)
    return [line for row in page.rows for line in _lines_of_row(row, width)]


def _lines_of_row(row: Row, width: int) -> list[Line]:
    match row.kind:
        case "head":
            return [(Span(line, "ask"),) for line in wrap(row.text, width)]
        case "argument":
            return _argument_lines(row.label, marked(row.text), width)
        case "note":
            return [(Span("  "), Span(line, "warn")) for line in wrap(row.text, width - 2)]
        case "diff":
            return [(Span("  "), *_whole_diff_line(line)) for line in _break_diff_line(row.text, width - 2)]
        case "covers":
            return []  # the hint below shows these, next to their keys
        case "spent":
            return [(Span(line, "dim"),) for line in wrap(row.text, width)]
        case "run":
            first, *more = break_anywhere(clean(row.text), max(8, width - 8))
            return [
                (Span("  runs: ", "dim"), Span(first, "strong")),
                *((Span(" " * 8), Span(piece, "strong")) for piece in more),
            ]
        case _:
            assert_never(row.kind)


def question_hint(question: OpenQuestion, *, covers: bool = True, is_whole: bool = True) -> str:
    """Return the hint how to answer, with `covers` also the calls that each further answer covers.

    `is_whole` is True once all of a call has been visible; before that only a no is accepted.
    """
    accepted = accepted_answers(question)
    if question.call_digest and not is_whole:
        return "End, or Down to the last line, before a yes · n no, and why"
    if question.call_digest:
        job_answers = covered_calls(question)[: 1 + len(question.offers)]
        texts = [f"{number or 'a'} {texts if covers else answer}" for number, (answer, texts) in enumerate(job_answers)]
        numbers = [f"{len(job_answers) - 1 + number} as {number}" for number in range(1, len(job_answers))]
        project = [f"in this project: {', '.join(numbers)}"] if numbers else []
        return " · ".join(("y yes", f"in this Job: {', '.join(texts)}", *project, "e edit", "n no, and why"))
    if accepted.is_list:
        return "type numbers or options, with commas between" + (", or other words" if accepted.allows_other else "")
    if accepted.options:
        return "type a number or an option" if not accepted.allows_other else "type a number, an option, or other words"
    return describe_accepted(accepted)


def answer_of_key(question: OpenQuestion, key: str) -> str | None:
    """Return the answer of a key to a call: yes, or a yes for more calls than this one; None for other keys."""
    if key in ("y", "Y"):
        return accepted_answers(question).options[0]
    if key in ("a", "A"):
        return ALWAYS
    wider = wider_answers(question)
    if key.isascii() and key.isdecimal() and len(key) < 4 and 0 < int(key) <= len(wider):
        return wider[int(key) - 1]
    return None


def unsettled_lines(
    calls: Sequence[UnsettledCall], settled: Mapping[str, Settlement], chosen_index: int, width: int
) -> list[Line]:
    """Return the calls without a result and the settlement chosen for each."""
    lines: list[Line] = [
        (Span(line, "warn"),) for line in wrap("The Job's process ended during these calls. How did they end?", width)
    ]
    meanings = dict(SETTLEMENTS.values())
    for number, unsettled_call in enumerate(calls):
        mark = CHOSEN if number == chosen_index else "  "
        kind = settled.get(unsettled_call.key)
        lines.append(
            (
                Span(mark, "person"),
                Span(clean(unsettled_call.tool_name), "strong"),
                Span(f" of {clean(unsettled_call.expert_key)}", "dim"),
            )
        )
        lines += [(Span("    "), Span(line)) for line in wrap(approvable_text(unsettled_call.args), width - 4)]
        lines.append(
            (
                Span("    "),
                Span(meanings[kind] if kind else "the model sees that it was interrupted", "good" if kind else "dim"),
            )
        )
    return lines


REFUSING_HINT = "why not? Enter sends the no, with a reason if you type one; Esc goes back"
UNSETTLED_HINT = "d it was done · r run it again · a ask me · Enter resumes"


def _argument_lines(name: str, value: str, width: int) -> list[Line]:
    label = f"  {clean(name)}: "
    first, *more_lines = wrap(value, max(8, width - len(label)))
    return [(Span(label, "dim"), Span(first)), *((Span(" " * len(label)), Span(line)) for line in more_lines)]


def _break_diff_line(text: str, width: int) -> list[str]:
    """Break a line of a diff without dropping text, since the user approves it; continued pieces repeat its sign."""
    line = clean(text).replace("\n", " ")
    first, *pieces = break_anywhere(line, width)
    return [first, *(f"{line[:1]}  {part}" for piece in pieces for part in break_anywhere(piece, width - 3))]


def _whole_diff_line(line: str) -> Line:
    return diff_line(line, cells(line))
