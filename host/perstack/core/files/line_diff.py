"""Line diffs of two texts, in bounded time for any content.

`difflib` searches equal lines and consumes an `Effort`. Once that is used up, the remaining lines count as replaced:
the diff is longer, but correct.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import Match as Block
from difflib import SequenceMatcher
from itertools import accumulate
from typing import NamedTuple

CONTEXT = 3  # number of unchanged lines that a hunk shows around a change


class Effort:
    """Budget of comparison steps; ten million take some seconds."""

    def __init__(self, steps: int) -> None:
        self.remaining = steps

    def spend(self, steps: int) -> bool:
        """Consume steps and return whether enough were left."""
        self.remaining -= steps
        return self.remaining >= 0


class Match(NamedTuple):
    """A range of equal lines in two texts."""

    old: int  # index of its first line in the old text
    new: int  # index of its first line in the new text
    size: int  # number of lines


class Hunk(NamedTuple):
    """Changes that are close together, with the lines around them."""

    old: int  # number of the first old line that it shows, from 1; of the line before if it shows none
    old_size: int
    new: int
    new_size: int
    lines: tuple[tuple[str, bytes], ...]  # lines with their signs: a space, `-` or `+`

    @property
    def head(self) -> str:
        """The header of the hunk in a unified diff."""
        return f"@@ -{_range_text(self.old, self.old_size)} +{_range_text(self.new, self.new_size)} @@"


class LineDiff(NamedTuple):
    """Differences between two texts."""

    added: int
    removed: int
    hunks: tuple[Hunk, ...] = ()


def split_lines(content: bytes) -> list[bytes]:
    """Split a text into lines with their line breaks; the last one may have none."""
    lines = content.split(b"\n")
    complete = [line + b"\n" for line in lines[:-1]]
    return [*complete, lines[-1]] if lines[-1] else complete


def line_diff(old: Sequence[bytes], new: Sequence[bytes], effort: Effort, context: int = CONTEXT) -> LineDiff:
    """Return the diff of two texts, given by their lines."""
    equal = matches(old, new, effort)
    same_lines = sum(match.size for match in equal)
    return LineDiff(len(new) - same_lines, len(old) - same_lines, tuple(_hunks(old, new, equal, context)))


def matches(old: Sequence[bytes], new: Sequence[bytes], effort: Effort) -> list[Match]:
    """Return the ranges of equal lines in order, each as long as possible."""
    blocks = _BoundedMatcher(old, new, effort).get_matching_blocks()
    return [Match(*block) for block in blocks if block.size]


class _BoundedMatcher(SequenceMatcher[bytes]):
    """Matcher that finds no more equal lines once the effort is used up."""

    a: Sequence[bytes]  # documented attributes that the library's types leave out
    b: Sequence[bytes]
    b2j: dict[bytes, list[int]]

    def __init__(self, old: Sequence[bytes], new: Sequence[bytes], effort: Effort) -> None:
        self._effort = effort
        super().__init__(None, old, new)
        # steps of a search that begins at the first line and ends before this one
        self._steps = [0, *accumulate(1 + len(self.b2j.get(line, ())) for line in old)]

    def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None) -> Block:
        """Return a common beginning or end, which costs no effort, or else the longest range of equal lines."""
        ahi, bhi = len(self.a) if ahi is None else ahi, len(self.b) if bhi is None else bhi
        longest = min(ahi - alo, bhi - blo)
        size = _equal_size(self.a, range(alo, alo + longest), self.b, range(blo, blo + longest))
        if size:
            return Block(alo, blo, size)
        size = _equal_size(self.a, range(ahi - 1, ahi - 1 - longest, -1), self.b, range(bhi - 1, bhi - 1 - longest, -1))
        if size:
            return Block(ahi - size, bhi - size, size)
        # Without this limit the time grows with the cube of the number of lines, if each line occurs often.
        if not self._effort.spend(self._steps[ahi] - self._steps[alo]):
            return Block(alo, blo, 0)
        return super().find_longest_match(alo, ahi, blo, bhi)


def _equal_size(a: Sequence[bytes], a_indexes: range, b: Sequence[bytes], b_indexes: range) -> int:
    pairs = zip(a_indexes, b_indexes, strict=True)
    return next((size for size, (i, j) in enumerate(pairs) if a[i] != b[j]), len(a_indexes))


def _hunks(old: Sequence[bytes], new: Sequence[bytes], equal: Sequence[Match], context: int) -> Iterator[Hunk]:
    changes: list[tuple[int, int, int, int]] = []
    i = j = 0
    for match in (*equal, Match(len(old), len(new), 0)):
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
    leading = changes[0][0] - i0
    j0 = changes[0][2] - leading
    i1 = min(len(old), changes[-1][1] + context)
    j1 = changes[-1][3] + i1 - changes[-1][1]
    lines: list[tuple[str, bytes]] = []
    position = i0
    for i, i_end, j, j_end in changes:
        lines += [(" ", line) for line in old[position:i]]
        lines += [("-", line) for line in old[i:i_end]]
        lines += [("+", line) for line in new[j:j_end]]
        position = i_end
    lines += [(" ", line) for line in old[position:i1]]
    old_size, new_size = i1 - i0, j1 - j0
    return Hunk(i0 + bool(old_size), old_size, j0 + bool(new_size), new_size, tuple(lines))


def _range_text(first: int, size: int) -> str:
    return str(first) if size == 1 else f"{first},{size}"


_BINARY_CHECK_BYTES = 8_000  # bytes: a file with a NUL among the first of them is binary, as in git


def is_text(data: bytes) -> bool:
    return b"\0" not in data[:_BINARY_CHECK_BYTES]


def as_text(line: bytes) -> str:
    """Return a line of a file as text, without its line break."""
    return line.removesuffix(b"\n").decode("utf-8", "backslashreplace")
