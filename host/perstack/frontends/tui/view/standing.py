"""The line below: how a Job stands, what it has used, and what a key does next."""

from __future__ import annotations

from perstack.frontends.shared.live_state import LiveState
from perstack.frontends.shared.live_words import context_words, todos_words, whole_seconds
from perstack.frontends.shared.words import cells, cost, count, shorten
from perstack.frontends.tui.view.spans import Line, Span
from perstack.frontends.tui.view.tabs import MARKS

_GAP = "  ·  "

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
"""How a Job stands, for a person."""


def standing_line(state: LiveState, stands: str, now: int, width: int, began: int | None = None) -> Line:
    """How it stands, one of `STATES`, then todos, steps, tokens, cost, context and time, as many as fit."""
    lane = next(iter(state.lanes.values()), None) or state.latest
    parts: list[str] = []
    if lane is not None and lane.todos:
        parts.append(todos_words(lane))
    if state.skills:
        parts.append(f"starting {', '.join(state.skills)}")
    if state.steps:
        parts.append(count(state.steps, "step"))
    if state.usage.total_tokens:
        parts.append(count(state.usage.total_tokens, "token"))
        parts.append(cost(state.usage, state.unpriced_tokens))
    if lane is not None and lane.context_tokens:
        parts.append(context_words(lane))
    if began is not None:
        parts.append(whole_seconds(now - began))
    mark, style = MARKS[stands]
    text = f"{mark} {STATES[stands]}".lstrip()
    found: list[Span] = [Span(f"{text}", style)]
    left = width - cells(text)
    for at, part in enumerate(filter(None, parts)):
        shown = shorten(part, width // 2) if not at else part
        if left < cells(_GAP) + cells(shown):
            continue
        found += [Span(_GAP, "rule"), Span(shown, "dim")]
        left -= cells(_GAP) + cells(shown)
    return tuple(found)
