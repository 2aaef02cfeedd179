"""What differs between two texts, line by line, in time that is bounded whatever they hold.

Lines that are unique on both sides are the anchors (patience diff); between two of them the shortest way is looked for
(Myers). Both spend from one `Effort`: where it is used up, what is left counts as replaced as a whole, which is longer
to read and as true.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

CONTEXT = 3
"""Lines around a change that a hunk shows."""
_MOST_EDITS = 500
"""Of one stretch between two anchors; the way there is kept in memory, which grows with the square."""


class Effort:
    """How much comparing may still be done: about ten million steps take some seconds."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int) -> bool:
        """Whether there was that much."""
        self.left -= steps
        return self.left >= 0


class Match(NamedTuple):
    """Lines that are the same: from here on in the old text, in the new one, and how many."""

    old: int
    new: int
    size: int


class Hunk(NamedTuple):
    """Some changes that lie together, and the lines around them."""

    old: int
    """The first line of the old text that it shows, from 1; the one before it if it shows none."""
    old_size: int
    new: int
    new_size: int
    lines: tuple[tuple[str, bytes], ...]
    """Each with its sign: a space, `-` or `+`."""

    @property
    def head(self) -> str:
        """As unified diffs begin it."""
        return f"@@ -{_range(self.old, self.old_size)} +{_range(self.new, self.new_size)} @@"


class LineDiff(NamedTuple):
    """What differs between two texts."""

    added: int
    removed: int
    hunks: tuple[Hunk, ...] = ()


def lines_of(content: bytes) -> list[bytes]:
    """The lines of a text, each with its line break; the last one may have none."""
    lines = content.split(b"\n")
    whole = [line + b"\n" for line in lines[:-1]]
    return [*whole, lines[-1]] if lines[-1] else whole


def line_diff(old: Sequence[bytes], new: Sequence[bytes], effort: Effort, context: int = CONTEXT) -> LineDiff:
    """What differs between two texts, given by their lines."""
    found = matches(old, new, effort)
    same = sum(match.size for match in found)
    return LineDiff(len(new) - same, len(old) - same, tuple(_hunks(old, new, found, context)))


def matches(old: Sequence[bytes], new: Sequence[bytes], effort: Effort) -> list[Match]:
    """The stretches that are the same in both, in order, each as long as it can be."""
    numbers: dict[bytes, int] = {}
    a = [numbers.setdefault(line, len(numbers)) for line in old]
    b = [numbers.setdefault(line, len(numbers)) for line in new]
    found: list[Match] = []
    open_stretches = [(0, len(a), 0, len(b))]
    while open_stretches:
        a0, a1, b0, b1 = open_stretches.pop()
        first = a0
        while a0 < a1 and b0 < b1 and a[a0] == b[b0]:
            a0, b0 = a0 + 1, b0 + 1
        if a0 > first:
            found.append(Match(first, b0 - (a0 - first), a0 - first))
        last = a1
        while a0 < a1 and b0 < b1 and a[a1 - 1] == b[b1 - 1]:
            a1, b1 = a1 - 1, b1 - 1
        if last > a1:
            found.append(Match(a1, b1, last - a1))
        if a0 == a1 or b0 == b1 or not effort.spend(a1 - a0 + b1 - b0):
            continue
        anchors = _anchors(a, a0, a1, b, b0, b1)
        if anchors:
            ends = [*anchors, (a1, b1)]
            starts = [(a0, b0), *anchors]
            open_stretches += [(s[0], e[0], s[1], e[1]) for s, e in zip(starts, ends, strict=True)]
        else:
            found += [Match(i, j, 1) for i, j in _shortest(a, a0, a1, b, b0, b1, effort)]
    return _joined(sorted(found))


def _anchors(a: Sequence[int], a0: int, a1: int, b: Sequence[int], b0: int, b1: int) -> list[tuple[int, int]]:
    """Pairs of lines that are unique in both stretches, as many as stand in the same order."""
    in_a, in_b = Counter(a[a0:a1]), Counter(b[b0:b1])
    at_b = {b[j]: j for j in range(b0, b1) if in_b[b[j]] == 1}
    pairs = [(i, at_b[a[i]]) for i in range(a0, a1) if in_a[a[i]] == 1 and a[i] in at_b]
    return _longest_rising(pairs)


def _longest_rising(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Of pairs in the order of their first, the most whose second rises too."""
    ends: list[int] = []
    """The smallest second that a chain of each length ends with."""
    at: list[int] = []
    before: list[int | None] = []
    for number, (_, j) in enumerate(pairs):
        length = bisect_left(ends, j)
        before.append(at[length - 1] if length else None)
        if length == len(ends):
            ends.append(j)
            at.append(number)
        else:
            ends[length], at[length] = j, number
    chain: list[tuple[int, int]] = []
    place = at[-1] if at else None
    while place is not None:
        chain.append(pairs[place])
        place = before[place]
    return chain[::-1]


def _shortest(
    a: Sequence[int], a0: int, a1: int, b: Sequence[int], b0: int, b1: int, effort: Effort
) -> list[tuple[int, int]]:
    """The pairs of equal lines on the shortest way from one stretch to the other; none if that is too far."""
    n, m = a1 - a0, b1 - b0
    furthest = {1: 0}
    trace: list[dict[int, int]] = []
    for edits in range(min(n + m, _MOST_EDITS) + 1):
        trace.append(dict(furthest))
        if not effort.spend(2 * edits + 1):
            return []
        for k in range(-edits, edits + 1, 2):
            down = k == -edits or (k != edits and furthest[k - 1] < furthest[k + 1])
            x = first = furthest[k + 1] if down else furthest[k - 1] + 1
            while x < n and x - k < m and a[a0 + x] == b[b0 + x - k]:
                x += 1
            furthest[k] = x
            if not effort.spend(x - first):
                return []
            if x >= n and x - k >= m:
                return [(a0 + i, b0 + j) for i, j in _walked_back(trace, n, m)]
    return []


def _walked_back(trace: Sequence[dict[int, int]], n: int, m: int) -> Iterator[tuple[int, int]]:
    x, y = n, m
    for edits in range(len(trace) - 1, -1, -1):
        furthest, k = trace[edits], x - y
        down = k == -edits or (k != edits and furthest[k - 1] < furthest[k + 1])
        k = k + 1 if down else k - 1
        start = furthest[k] if edits else 0
        while x > start + (0 if down else 1) and y > start - k + (1 if down else 0) and edits:
            x, y = x - 1, y - 1
            yield x, y
        if not edits:
            while x > 0 and y > 0:
                x, y = x - 1, y - 1
                yield x, y
        x, y = start, start - k


def _joined(found: Sequence[Match]) -> list[Match]:
    joined: list[Match] = []
    for match in found:
        last = joined[-1] if joined else None
        if last is not None and (last.old + last.size, last.new + last.size) == (match.old, match.new):
            joined[-1] = Match(last.old, last.new, last.size + match.size)
        else:
            joined.append(match)
    return joined


def _hunks(old: Sequence[bytes], new: Sequence[bytes], same: Sequence[Match], context: int) -> Iterator[Hunk]:
    changes: list[tuple[int, int, int, int]] = []
    i = j = 0
    for match in (*same, Match(len(old), len(new), 0)):
        if (i, j) != (match.old, match.new):
            changes.append((i, match.old, j, match.new))
        i, j = match.old + match.size, match.new + match.size
    group: list[tuple[int, int, int, int]] = []
    for change in changes:
        if group and change[0] - group[-1][1] > 2 * context:
            yield _hunk(old, new, group, context)
            group = []
        group.append(change)
    if group:
        yield _hunk(old, new, group, context)


def _hunk(
    old: Sequence[bytes], new: Sequence[bytes], changes: Sequence[tuple[int, int, int, int]], context: int
) -> Hunk:
    i0 = max(0, changes[0][0] - context)
    before = changes[0][0] - i0
    j0 = changes[0][2] - before
    i1 = min(len(old), changes[-1][1] + context)
    j1 = changes[-1][3] + i1 - changes[-1][1]
    lines: list[tuple[str, bytes]] = []
    at = i0
    for i, i_end, j, j_end in changes:
        lines += [(" ", line) for line in old[at:i]]
        lines += [("-", line) for line in old[i:i_end]]
        lines += [("+", line) for line in new[j:j_end]]
        at = i_end
    lines += [(" ", line) for line in old[at:i1]]
    old_size, new_size = i1 - i0, j1 - j0
    return Hunk(i0 + bool(old_size), old_size, j0 + bool(new_size), new_size, tuple(lines))


def _range(first: int, size: int) -> str:
    return str(first) if size == 1 else f"{first},{size}"
