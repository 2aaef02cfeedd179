"""The line above: the Jobs that are open, and how each stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perstack.core.plain import one_line
from perstack.frontends.shared.words import cells, shorten
from perstack.frontends.tui.view.spans import Line, Span, Style

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
"""How a Job stands, in a character."""

_WIDEST = 20
FIRST = 1
"""The span of the first tab; each has three."""
EACH = 3


class Tab(NamedTuple):
    """A tab, as the line has it."""

    name: str
    state: str


def tabs_line(tabs: Sequence[Tab], chosen: int, place: str, width: int) -> Line:
    """The tabs by their numbers, and at the right where one is."""
    found: list[Span] = [Span("perstack  ", "dim")]
    each = max(6, min(_WIDEST, (width - 12) // max(1, len(tabs)) - 6))
    for number, tab in enumerate(tabs):
        mark, style = MARKS[tab.state]
        name = shorten(one_line(tab.name), each)
        found += [
            Span(f" {number + 1} ", "person" if number == chosen else "dim"),
            Span(f"{name} ", "strong" if number == chosen else "dim"),
            Span(f"{mark} " if mark else "", style),
        ]
    left = width - sum(cells(span.text) for span in found)
    shown = shorten(one_line(place), max(1, left - 1)) if left > 8 else ""
    return (*found, Span(" " * max(0, left - cells(shown))), Span(shown, "dim"))
