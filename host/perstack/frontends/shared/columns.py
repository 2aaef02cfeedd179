"""How a table fits a screen: ids stay whole, texts give way, then columns go, in an order that is fixed."""

from __future__ import annotations

from collections.abc import Sequence

GAP = 2
"""Cells between two columns."""

_LEAST_TEXT = 16
"""A text is cut to this before a column goes, and to less only when none is left to go."""
_MOST_PLAIN = 32
"""A column that is neither an id nor a text gets no more, where there is a width to keep to."""


def fitting(
    widths: Sequence[int],
    headings: Sequence[int],
    width: int | None,
    *,
    whole: Sequence[int],
    texts: Sequence[int],
    drops: Sequence[int],
) -> dict[int, int]:
    """The cells of each column that is shown, by its index.

    `widths` are what the columns would take, headings included, `headings` what those alone take. Columns `whole` are
    never cut and never go; `texts` share what is left; `drops` go in that order. None as `width` keeps everything.
    """
    if width is None:
        return dict(enumerate(widths))
    cut = (*whole, *texts)
    wanted = {i: cells if i in cut else min(cells, max(_MOST_PLAIN, headings[i])) for i, cells in enumerate(widths)}
    least = {i: min(wanted[i], max(_LEAST_TEXT, headings[i])) for i in texts}
    for index in (None, *drops):
        if index is not None:
            wanted.pop(index, None)
        if _total({**wanted, **least}) <= width:
            break
    return {**wanted, **_shared(width - _total(wanted) + sum(wanted[i] for i in texts), wanted, texts, headings)}


def _total(columns: dict[int, int]) -> int:
    return sum(columns.values()) + GAP * (len(columns) - 1)


def _shared(left: int, wanted: dict[int, int], texts: Sequence[int], headings: Sequence[int]) -> dict[int, int]:
    """What each text gets of the cells that are left: the shortest first, so that what it does not need is others'."""
    found: dict[int, int] = {}
    for done, index in enumerate(sorted(texts, key=lambda one: wanted[one])):
        share = left // (len(texts) - done)
        found[index] = max(min(wanted[index], share), headings[index], 1)
        left -= found[index]
    return found
