"""Words for people: shortened texts, times, counts."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from perstack.core.base.text import MAX_TIME_MS, count, duration
from perstack.doors.shared.text import age_text, local_time, pad, shorten


@pytest.mark.parametrize(
    "text", ["short", "a" * 200, "字" * 50, "a字" * 30, "e\u0301" * 40, "one\ntwo\tthree", "", "🙂" * 30]
)
def test_a_shortened_text_is_one_line_of_at_most_so_many_cells(text: str) -> None:
    found = shorten(text, 20)
    assert cell_len(found) <= 20
    assert "\n" not in found
    assert found.endswith("…") == (cell_len(" ".join(text.split())) > 20)


@pytest.mark.parametrize("text", ["short", "a" * 30, "字字", "字" * 15])
def test_padding_fills_or_cuts_to_the_cells_asked_for(text: str) -> None:
    assert cell_len(pad(text, 10)) == 10


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [
        (-5, "0 ms"), (7, "7 ms"), (1340, "1.3 s"), (59_949, "59.9 s"), (59_999, "1 min 0 s"), (125_000, "2 min 5 s"),
        (3_599_900, "1 h 0 min"), (11_520_000, "3 h 12 min"),
    ],
)  # fmt: skip
def test_a_duration_is_said_in_the_unit_that_fits(milliseconds: int, words: str) -> None:
    assert duration(milliseconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-3, "just now"), (2, "just now"), (12, "12 s ago"), (300, "5 min ago"), (7300, "2 h ago"), (90_000, "1 day ago"),
     (900_000, "10 days ago")],
)  # fmt: skip
def test_how_long_ago_is_said_in_the_largest_unit(seconds: int, words: str) -> None:
    assert age_text(1_000_000_000, 1_000_000_000 + seconds * 1000) == words


def test_a_count_has_its_noun_in_singular_or_plural() -> None:
    assert (count(1, "step"), count(0, "step"), count(2000, "step")) == ("1 step", "0 steps", "2,000 steps")


@pytest.mark.parametrize("moment", [-(10**30), -1, 0, MAX_TIME_MS, MAX_TIME_MS + 1, 10**30])
def test_every_number_is_shown_as_some_moment(moment: int) -> None:
    year = local_time(moment).year
    assert 1969 <= year <= 9999
    assert (year > 9000) is (moment >= MAX_TIME_MS)
