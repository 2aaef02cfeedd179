"""What differs between two texts: true whatever they hold, short where it can be, and soon done in any case."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perstack.core.files.line_diff import Effort, Hunk, line_diff, matches, split_lines

MUCH = 1_000_000
lines = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"d\n", b"\n"]), max_size=25)


def patched(old: Sequence[bytes], hunks: Sequence[Hunk]) -> list[bytes]:
    """As `patch` applies them: each has to fit where it says."""
    made: list[bytes] = []
    at = 0
    for hunk in hunks:
        start = hunk.old - 1 if hunk.old_size else hunk.old
        made += old[at:start]
        at = start
        assert len(made) == (hunk.new - 1 if hunk.new_size else hunk.new)
        for sign, line in hunk.lines:
            if sign != "+":
                assert old[at] == line
                at += 1
            if sign != "-":
                made.append(line)
    return made + list(old[at:])


@given(lines, lines, st.sampled_from([0, 5, 40, MUCH]), st.integers(0, 3))
def test_a_diff_makes_the_new_text_of_the_old_one_however_little_effort_it_may_take(
    old: list[bytes], new: list[bytes], effort: int, context: int
) -> None:
    found = line_diff(old, new, Effort(effort), context)
    assert patched(old, found.hunks) == new
    signs = [sign for hunk in found.hunks for sign, _ in hunk.lines]
    assert (signs.count("+"), signs.count("-")) == (found.added, found.removed)


@given(lines, lines)
def test_what_is_the_same_is_in_the_same_order_on_both_sides(old: list[bytes], new: list[bytes]) -> None:
    found = matches(old, new, Effort(MUCH))
    for match in found:
        assert old[match.old : match.old + match.size] == new[match.new : match.new + match.size]
    for one, after in pairwise(found):
        assert one.old + one.size <= after.old
        assert one.new + one.size <= after.new


def test_a_line_among_others_is_all_that_differs() -> None:
    old = [b"%d\n" % number for number in range(1000)]
    new = [*old[:500], b"new\n", *old[500:]]
    found = line_diff(old, new, Effort(MUCH))
    assert (found.added, found.removed) == (1, 0)
    assert [hunk.head for hunk in found.hunks] == ["@@ -498,6 +498,7 @@"]


def test_a_text_without_a_last_line_break_keeps_that() -> None:
    assert split_lines(b"") == []
    assert split_lines(b"a\nb") == [b"a\n", b"b"]
    assert split_lines(b"a\n\n") == [b"a\n", b"\n"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ([b"x\n", b"y\n"] * 100_000, [b"y\n", b"y\n", b"x\n"] * 100_000),
        ([b"%d\n" % n for n in range(200_000)], [b"%d\n" % n for n in reversed(range(200_000))]),
        ([b"%d\n" % (n * n % 97) for n in range(200_000)], [b"%d\n" % (n * n * n % 89) for n in range(200_000)]),
    ],
    ids=["repeated", "reversed", "mixed"],
)
def test_hostile_texts_are_compared_in_seconds(old: list[bytes], new: list[bytes]) -> None:
    began = time.process_time()
    found = line_diff(old, new, Effort(8_000_000))
    assert time.process_time() - began < 20
    assert found.added - found.removed == len(new) - len(old)
