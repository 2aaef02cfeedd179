"""What is going on in a Job, in words: what a Run does and for how long, its todos, what it all has cost."""

from __future__ import annotations

from perstack.frontends.shared.live_state import Lane, LiveState, Work
from perstack.frontends.shared.log_rows import tokens
from perstack.frontends.shared.words import count, duration, shorten

SECOND = 1_000


def work_words(work: Work, now: int, left: int) -> str:
    """A call at work, in so many cells."""
    words = f"{work.name} {work.words}" if work.words else work.name
    return timed(f"{words}: {work.progress}" if work.progress else words, work.since, now, left)


def timed(words: str, since: int, now: int, left: int) -> str:
    """The words, and for how long, if that is worth saying."""
    took = f"  {whole_seconds(now - since)}" if now - since >= SECOND else ""
    return shorten(words, max(4, left - len(took))) + took


def whole_seconds(milliseconds: int) -> str:
    """Whole seconds: a part of one is old as soon as it is read."""
    seconds = max(0, milliseconds) // SECOND
    return f"{seconds} s" if seconds < 60 else duration(seconds * SECOND)


def todos_words(lane: Lane) -> str:
    """How many are done, and the next."""
    done = sum(todo.completed for todo in lane.todos)
    following = next((f": {todo.title}" for todo in lane.todos if not todo.completed), "")
    return f"todos {done}/{len(lane.todos)}{following}"


def totals(state: LiveState, now: int) -> list[str]:
    """Steps, tokens and their cost, the context that is used, the time."""
    parts = [f"starting {', '.join(state.skills)}"] if state.skills else []
    parts.append(count(state.steps, "step"))
    if state.usage.total_tokens:
        parts.append(tokens(state.usage, state.unpriced_tokens))
    first = next(iter(state.lanes.values()), None)
    if first is not None and first.context_tokens:
        parts.append(context_words(first))
    if state.began is not None:
        parts.append(whole_seconds(now - state.began))
    return parts


def context_words(lane: Lane) -> str:
    """The share of the model's context that is filled; tokens where its size is not known."""
    share = f"{lane.context_tokens / lane.context_window:.0%}" if lane.context_window else ""
    return f"context {share or f'{lane.context_tokens:,} tokens'}"
