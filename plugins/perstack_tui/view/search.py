"""Search in a transcript: find the items and lines that contain a text, even in folded items."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from perstack_tui.view.styled_text import text_of
from perstack_tui.view.tree import RenderContext, TreeBranch, TreeItem

MAX_MATCHES = 1_000
_MAX_ITEMS = 50_000  # maximum items that are searched, the newest
_ITEMS_PER_TURN = 200


class SearchMatch(NamedTuple):
    """An occurrence of the searched text."""

    item: TreeItem
    line: int  # index among the item's lines
    is_hidden: bool = False  # True if only the folded part of the item has the text


class Matches(NamedTuple):
    """The occurrences of a text, in order."""

    places: Sequence[SearchMatch] = ()
    is_cut: bool = False  # True if the limits left out earlier items or occurrences


def search(items: TreeBranch, typed: str, context: RenderContext) -> Iterator[Matches | None]:
    """Search from the newest item. Yield None after some items, so that the caller can pause, at last the matches."""
    words = typed.casefold().split()
    matches: list[list[SearchMatch]] = []
    total = 0
    is_cut = False
    for number, (item, item_context) in enumerate(_newest_first(items, context) if words else ()):
        if number == _MAX_ITEMS or total >= MAX_MATCHES:
            is_cut = True
            break
        item_matches = _find_in_item(item, words, item_context)[: MAX_MATCHES - total]
        total += len(item_matches)
        matches.append(item_matches)
        if number % _ITEMS_PER_TURN == _ITEMS_PER_TURN - 1:
            yield None
    yield Matches([match for item_matches in reversed(matches) for match in item_matches], is_cut)


def matches_in_item(item: TreeItem, typed: str, context: RenderContext) -> list[SearchMatch]:
    """Return the occurrences of the text in one item, in order."""
    return _find_in_item(item, typed.casefold().split(), context)


def _newest_first(branch: TreeBranch, context: RenderContext) -> Iterator[tuple[TreeItem, RenderContext]]:
    inner_context = branch.inner_context(context)
    for item in [*branch.items][::-1]:  # items may be added or removed while the caller pauses
        if isinstance(item, TreeBranch):
            yield from _newest_first(item, inner_context)
        yield item, inner_context


def _find_in_item(item: TreeItem, words: Sequence[str], context: RenderContext) -> list[SearchMatch]:
    text = item.whole_text().casefold()
    if not all(word in text for word in words):
        return []
    is_branch = isinstance(item, TreeBranch)
    lines = [text_of(line) for line in (item.render(context) if is_branch else item.lines(context))]
    matches = [SearchMatch(item, line) for line in dict.fromkeys(_matching_lines(lines, words))]
    is_folded = item.can_fold and not item.is_open and not is_branch
    return matches or ([SearchMatch(item, 0, is_hidden=True)] if is_folded and _contains_words(text, words) else [])


def _matching_lines(lines: Sequence[str], words: Sequence[str]) -> Iterator[int]:
    """Yield the line at which each occurrence begins; it may continue in the next lines, which were broken by width."""
    starts: list[int] = []
    offset = 0
    for line in lines:
        starts.append(offset)
        offset += len(line) + 1
    for match in re.finditer(_pattern(words), "\n".join(lines), re.IGNORECASE):
        yield bisect_right(starts, match.start()) - 1


def _contains_words(text: str, words: Sequence[str]) -> bool:
    return re.search(_pattern(words), text) is not None


def _pattern(words: Sequence[str]) -> str:
    return r"\s+".join(map(re.escape, words))
