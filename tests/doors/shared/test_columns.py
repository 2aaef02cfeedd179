"""Fitting tables to the width of a screen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perstack.doors.shared.text import GAP, fit_columns

HEADINGS = (3, 6, 6, 5, 6, 4, 4, 5)
WIDTHS = (12, 8, 11, 5, 7, 7, 11, 300)
JOBS = {"whole": (0,), "texts": (7,), "drops": (4, 3, 6, 1, 5, 2)}


def test_where_no_width_is_known_nothing_is_cut() -> None:
    assert fit_columns(WIDTHS, HEADINGS, None, **JOBS) == dict(enumerate(WIDTHS))


def test_the_text_gives_way_first() -> None:
    assert fit_columns(WIDTHS, HEADINGS, 200, **JOBS) == {**dict(enumerate(WIDTHS)), 7: 125}


def test_then_columns_go_in_their_order() -> None:
    assert fit_columns(WIDTHS, HEADINGS, 80, **JOBS) == {0: 12, 1: 8, 2: 11, 5: 7, 6: 11, 7: 21}
    assert fit_columns(WIDTHS, HEADINGS, 60, **JOBS) == {0: 12, 2: 11, 5: 7, 7: 24}
    assert fit_columns(WIDTHS, HEADINGS, 30, **JOBS) == {0: 12, 7: 16}


def test_an_id_is_whole_even_where_it_is_longer_than_the_screen() -> None:
    assert fit_columns((64, 300), (3, 5), 40, whole=(0,), texts=(1,), drops=()) == {0: 64, 1: 5}


def test_two_texts_share_and_a_short_one_takes_only_what_it_needs() -> None:
    assert fit_columns((4, 6, 90), (4, 6, 5), 40, whole=(0,), texts=(1, 2), drops=()) == {0: 4, 1: 6, 2: 26}


@given(
    columns=st.lists(st.tuples(st.integers(1, 400), st.integers(1, 15)), min_size=2, max_size=8),
    width=st.integers(1, 300),
)
def test_ids_and_texts_are_always_there_and_the_rest_fits_if_anything_does(
    columns: list[tuple[int, int]], width: int
) -> None:
    headings = [heading for _, heading in columns]
    widths = [max(column) for column in columns]
    last = len(columns) - 1
    shown = fit_columns(widths, headings, width, whole=(0,), texts=(last,), drops=range(1, last))
    assert shown[0] == widths[0]
    assert shown.keys() <= set(range(len(columns)))
    assert last in shown
    if sum(shown.values()) + GAP * (len(shown) - 1) > width:
        assert shown.keys() == {0, last}
        assert shown[last] <= max(headings[last], 1)
