"""Single lines of the interface: Experts, hints, the Inbox, definition problems, the tab line and the status line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from perstack.core.base.text import count, one_line
from perstack.core.base.usage import cost_text
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.models import split_full_name
from perstack.core.messages.messages import ToolCallPart
from perstack.doors.shared.activity import JobActivity, context_words, todos_words, whole_seconds
from perstack.doors.shared.live_project import PendingChange
from perstack.doors.shared.next_step_phrases import tui_phrase
from perstack.doors.shared.text import age_text, brief, cells, pad, shorten
from perstack.next_steps import Note
from perstack.oversight.inbox import InboxItem
from perstack_tui.session import Session
from perstack_tui.view.styled_text import Line, Span, Style, cells_of, wrap

# The list of Experts to choose from.

_MAX_EXPERT_CELLS = 28


def filter_experts(experts: Mapping[str, Expert], typed: str) -> list[Expert]:
    """Return the Experts with all typed words in key or description; a key that begins so comes first."""
    words = typed.casefold().split()
    matches = [
        item for item in experts.values() if all(word in f"{item.key} {item.description}".casefold() for word in words)
    ]
    first = words[0] if words else ""
    return sorted(matches, key=lambda item: not item.key.casefold().startswith(first))


def expert_lines(experts: Iterable[Expert], chosen: str | None, width: int) -> list[Line]:
    """Return a line for each Expert: its key and description."""
    listed = list(experts)
    column = min(_MAX_EXPERT_CELLS, max((cells(expert.key) for expert in listed), default=0))
    lines: list[Line] = []
    for expert in listed:
        is_chosen = expert.key == chosen
        description = shorten(one_line(expert.description), max(8, width - column - 6))
        key = pad(one_line(expert.key), column)
        lines.append(
            (
                Span("❯ " if is_chosen else "  ", "person"),
                Span(key, "expert"),
                Span("  "),
                Span(description, "" if is_chosen else "dim"),
            )
        )
    return lines


# The hint about what can be typed now.


def hint_of(job_session: Session, *, stop_key: str = "Esc") -> str:
    """Return the hint for the Job's state; `stop_key` is the name of the key that interrupts."""
    asking, checkpoint_id = job_session.open_question, job_session.resume_from
    if job_session.is_unread:
        return "the Job could not be read; Enter tries again"
    if checkpoint_id is not None:
        next_text = "a new query" if job_session.question_again is None else "another answer"
        return one_line(f"{next_text}, in a branch from {checkpoint_id}; {stop_key} leaves the branch")
    if asking is not None and asking.call_digest:
        return "y, a or n decides"
    step = job_session.resumption
    if step is not None and step.needs is not None:
        return "a higher limit, then Enter resumes; or a new query"
    key = job_session.expert_key
    drives = job_session.drives and job_session.state == "queued"
    action = (
        f"{stop_key} stops watching" if job_session.is_busy else f"Enter {'drives it here' if drives else 'follows it'}"
    )
    return {
        "new": f"what should {key} do?" if key else "type to find an Expert; Enter chooses it",
        "running": "tell it something" if job_session.accepts_texts else "",
        "reading": f"{stop_key} stops watching",
        "watching": f"another process drives it; {action}",
        "queued": f"waits for a worker; {action}",
        "asking": "your answer",
        "stopped": "Enter resumes; or type a new query",
        "completed": "a follow-up: the next Run of this Job",
    }[job_session.state]


# Lines of the Inbox.

_NAME_CELLS = 18
_MIN_ID_CELLS = 100  # minimum width in cells for showing the Job's id, which distinguishes equal questions


def inbox_line(item: InboxItem, is_chosen: bool, now: int, width: int) -> Line:
    """Return a line with the asking Expert, the question and its age."""
    age, name_cells = age_text(item.since, now), min(_NAME_CELLS, width // 4)
    owner_id = shorten(item.job_id or item.task_id or "", _NAME_CELLS) if width >= _MIN_ID_CELLS else ""
    end = f"{pad(owner_id, _NAME_CELLS)}  {age}" if owner_id else age
    free_cells = max(1, width - 6 - name_cells - cells(end))
    return (
        Span("✗ " if item.damaged else "? ", "bad" if item.damaged else "ask"),
        Span(pad(one_line(item.who), name_cells), "expert"),
        Span("  "),
        Span(pad(shorten(_question_summary(item), free_cells), free_cells), "" if is_chosen else "dim"),
        Span(f"  {end}", "dim"),
    )


def _question_summary(item: InboxItem) -> str:
    """Return the question; for an approval only the call, since the line already says who asks."""
    asking = item.question
    if asking is None or not asking.call_digest:
        return item.text
    part = ToolCallPart(tool_call_id="", tool_name=asking.tool_name, args=asking.args)
    return f"approve {part.tool_name} {brief(part)}"


# The definition's problem, while the last valid definition is used.

_MAX_PROBLEM_LINES = 8


def problem_lines(problem: Note | None, change: PendingChange | None, folder: Path, width: int) -> list[Line]:
    """Return the problem, with paths relative to the folder, or the held change and how to accept it."""
    if change is not None:
        lines = change_lines(change, folder, width)
        if lines is None:
            lines = _shorten_problem(change.note.text_for(tui_phrase), folder, width)
        else:
            lines += wrap("F9 uses it; until then the previous definition is used.", width)
    elif problem is not None:
        lines = _shorten_problem(problem.text_for(tui_phrase), folder, width)
    else:
        return []
    return [(Span(line, "" if index else "warn"),) for index, line in enumerate(lines)]


def change_lines(change: PendingChange, folder: Path, width: int) -> list[str] | None:
    """Return lines with all effects of the held change; None if they do not fit: then it cannot be agreed to here."""
    texts = change.question.removeprefix("perstack: ").splitlines()[:-1]
    lines = [line for text in texts for line in wrap(text.replace(f"{folder}/", ""), width)]
    return lines if len(lines) < _MAX_PROBLEM_LINES else None


def _shorten_problem(text: str, folder: Path, width: int) -> list[str]:
    lines = [line for part in text.splitlines() for line in wrap(part.replace(f"{folder}/", ""), width)]
    if len(lines) > _MAX_PROBLEM_LINES:
        return [*lines[: _MAX_PROBLEM_LINES - 1], "… `perstack validate` shows all problems"]
    return lines


MARKS: dict[str, tuple[str, Style]] = {
    "new": ("", "dim"),
    "running": ("●", "call"),
    "reading": ("◌", "dim"),
    "watching": ("◌", "call"),
    "queued": ("…", "dim"),
    "asking": ("?", "ask"),
    "stopped": ("!", "warn"),
    "completed": ("✓", "good"),
}

_TITLE = "perstack  "
_MAX_TAB_CELLS = 20


class Tab(NamedTuple):
    """A tab of the tab line."""

    name: str
    state: str


def tabs_line(tabs: Sequence[Tab], chosen: int, workspace: str, width: int) -> Line:
    """Return the numbered tabs that fit around the chosen one, and the workspace. A click on a tab shows it."""
    name_cells = max(6, min(_MAX_TAB_CELLS, (width - 12) // max(1, len(tabs)) - 6))
    spans = [_tab_spans(number, tab, name_cells, is_chosen=number == chosen) for number, tab in enumerate(tabs)]
    first, last = _visible_tabs([cells_of(line) for line in spans], chosen, width - cells(_TITLE) - 2)
    result: list[Span] = [Span(_TITLE[:-1] + ("…" if first else " "), "dim")]
    for spans_of_tab in spans[first:last]:
        result += spans_of_tab
    free_cells = width - cells_of(tuple(result))
    mark = "…" if last < len(tabs) else ""
    name = shorten(one_line(workspace), max(1, free_cells - 1)) if free_cells > 8 and not mark else ""
    return (*result, Span(mark + " " * max(0, free_cells - cells(mark) - cells(name))), Span(name, "dim"))


def _tab_spans(number: int, tab: Tab, name_cells: int, *, is_chosen: bool) -> Line:
    mark, style = MARKS[tab.state]
    action = f"app.tab({number + 1})"
    return (
        Span(f" {number + 1} ", "person" if is_chosen else "dim", action),
        Span(f"{shorten(one_line(tab.name), name_cells)} ", "strong" if is_chosen else "dim", action),
        Span(f"{mark} " if mark else "", style, action),
    )


def _visible_tabs(sizes: Sequence[int], chosen: int, free_cells: int) -> tuple[int, int]:
    """Return the range of tabs that fits, including the chosen one; its end is exclusive."""
    first = 0
    while first < chosen and sum(sizes[first : chosen + 1]) > free_cells:
        first += 1
    last = chosen + 1
    while last < len(sizes) and sum(sizes[first : last + 1]) <= free_cells:
        last += 1
    return first, last


# The status line: state, totals, and the next key.

_GAP = "  ·  "
_MAX_MODEL_CELLS = 24

STATES: dict[str, str] = {
    "new": "new",
    "running": "at work",
    "reading": "being read and checked",
    "watching": "another process drives it",
    "queued": "waits for a worker",
    "asking": "waits for you",
    "stopped": "stopped",
    "completed": "completed",
}


def status_line(
    state: JobActivity, shown_state: str, now: int, width: int, began: int | None = None, model: str = ""
) -> Line:
    """Return the state, one of `STATES`, and the model, then todos, steps, tokens, cost, context and time if they fit.

    `model` is the model of the next Run, if known.
    """
    lane = next(iter(state.lanes.values()), None) or state.latest
    parts: list[str] = [_model_text("" if lane is None else lane.model, model)]
    if lane is not None and lane.todos:
        parts.append(todos_words(lane))
    if state.skills:
        parts.append(f"starting {', '.join(state.skills)}")
    if state.steps:
        parts.append(count(state.steps, "step"))
    if state.usage.total_tokens:
        parts.append(count(state.usage.total_tokens, "token"))
        parts.append(cost_text(state.usage, state.unpriced_tokens))
    if lane is not None and lane.context_tokens:
        parts.append(context_words(lane))
    if began is not None:
        parts.append(whole_seconds(now - began))
    mark, style = MARKS[shown_state]
    text = f"{mark} {STATES[shown_state]}".lstrip()
    spans: list[Span] = [Span(f"{text}", style)]
    free_cells = width - cells(text)
    for index, part in enumerate(filter(None, parts)):
        shortened = shorten(part, width // 3) if index < 2 else part
        if free_cells < cells(_GAP) + cells(shortened):
            continue
        spans += [Span(_GAP, "rule"), Span(shortened, "dim")]
        free_cells -= cells(_GAP) + cells(shortened)
    return tuple(spans)


def _model_text(current: str, next_model: str) -> str:
    """Return the current model, without its provider, and the next one if it differs."""
    names = [one_line(split_full_name(name)[1]) for name in dict.fromkeys((current, next_model)) if name]
    return " → ".join(shorten(name, _MAX_MODEL_CELLS) for name in names)
