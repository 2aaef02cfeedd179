"""The Experts that a person chooses from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perstack.core.definitions import Expert
from perstack.core.plain import one_line
from perstack.frontends.shared.words import cells, pad, shorten
from perstack.frontends.tui.view.spans import Line, Span

_WIDEST = 28


def filtered(experts: Mapping[str, Expert], typed: str) -> list[Expert]:
    """Those with all the words that were typed in their key or description; where a key begins so comes first."""
    words = typed.casefold().split()
    found = [
        one for one in experts.values() if all(word in f"{one.key} {one.description}".casefold() for word in words)
    ]
    first = words[0] if words else ""
    return sorted(found, key=lambda one: not one.key.casefold().startswith(first))


def expert_lines(experts: Iterable[Expert], chosen: str | None, width: int) -> list[Line]:
    """A line each: the key, and what it is for."""
    every = list(experts)
    column = min(_WIDEST, max((cells(one.key) for one in every), default=0))
    found: list[Line] = []
    for one in every:
        is_chosen = one.key == chosen
        words = shorten(one_line(one.description), max(8, width - column - 6))
        key = pad(one_line(one.key), column)
        found.append(
            (
                Span("❯ " if is_chosen else "  ", "person"),
                Span(key, "expert"),
                Span("  "),
                Span(words, "" if is_chosen else "dim"),
            )
        )
    return found
