"""The line above: the Jobs that are open, and how each stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perstack.core.plain import one_line
from perstack.frontends.shared.words import cells, shorten
from perstack.frontends.tui.view.spans import Line, Span, Style, cells_of

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

_TITLE = "perstack  "
_WIDEST = 20
FIRST = 1
"""The span of the first tab; each has three."""
EACH = 3


class Tab(NamedTuple):
    """A tab, as the line has it."""

    name: str
    state: str


def tabs_line(tabs: Sequence[Tab], chosen: int, place: str, width: int) -> Line:
    """The tabs by their numbers, and at the right where one is. Where there is no room for all, those around the chosen
    one: of the others the spans are empty."""
    each = max(6, min(_WIDEST, (width - 12) // max(1, len(tabs)) - 6))
    spans = [_spans(number, tab, each, is_chosen=number == chosen) for number, tab in enumerate(tabs)]
    first, last = _seen([cells_of(one) for one in spans], chosen, width - cells(_TITLE) - 2)
    found: list[Span] = [Span(_TITLE[:-1] + ("…" if first else " "), "dim")]
    for number, one in enumerate(spans):
        found += one if first <= number < last else [Span("")] * EACH
    left = width - cells_of(tuple(found))
    more = "…" if last < len(tabs) else ""
    shown = shorten(one_line(place), max(1, left - 1)) if left > 8 and not more else ""
    return (*found, Span(more + " " * max(0, left - cells(more) - cells(shown))), Span(shown, "dim"))


def _spans(number: int, tab: Tab, each: int, *, is_chosen: bool) -> Line:
    mark, style = MARKS[tab.state]
    return (
        Span(f" {number + 1} ", "person" if is_chosen else "dim"),
        Span(f"{shorten(one_line(tab.name), each)} ", "strong" if is_chosen else "dim"),
        Span(f"{mark} " if mark else "", style),
    )


def _seen(sizes: Sequence[int], chosen: int, room: int) -> tuple[int, int]:
    """From which tab to which, not included, there is room for, with the chosen one among them."""
    first = 0
    while first < chosen and sum(sizes[first : chosen + 1]) > room:
        first += 1
    last = chosen + 1
    while last < len(sizes) and sum(sizes[first : last + 1]) <= room:
        last += 1
    return first, last
