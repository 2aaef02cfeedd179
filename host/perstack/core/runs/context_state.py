"""What a Run's state knows of how full its context is, and of what has been left out."""

from __future__ import annotations

from perstack.core.run_facts import ErrorInfo
from perstack.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ContextState:
    """A part of a Run's state; messages are named by their places, which are ids of events."""

    learned: int | None = None
    """Tokens that the context can hold, as an endpoint's refusal has shown."""
    overhead: int = 0
    """About how many tokens a request has besides the messages; 0: not known yet."""
    freed: int = 0
    """About how many tokens of what was counted last have been left out since."""
    overflow: ErrorInfo | None = None
    """Why the generation in hand did not fit."""
    is_relieved: bool = False
    """Whether content was left out because the generation in hand did not fit: it is tried once more, and not again."""
    summarising: str = ""
    """The place of a startCompaction whose summary is not there yet."""
    has_dropped: bool = False
    """Whether the model does not see all that it has seen."""
    summaries: frozenset[str] = frozenset()
    """Which messages stand for others."""
    read_only: frozenset[str] = frozenset()
    """Tools that were called and only read."""
    pinned: frozenset[str] = frozenset()
    """Tools that were called and whose results are never left out."""
    revealed: tuple[str, ...] = ()
    """Tools that a search has found in messages which are left out."""


EMPTY_CONTEXT = ContextState()
