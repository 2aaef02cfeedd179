"""The plots of the studio, as numbers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perstack_studio.plots import HEIGHT, bar_plot, line_plot, round_ticks

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 7, [0, 2, 4, 6, 8]),
        (0, 100, [0, 50, 100]),
        (0, 0, [0, 0.5, 1]),
        (0.2, 0.9, [0.2, 0.4, 0.6, 0.8, 1]),
        (-3, 4, [-4, -2, 0, 2, 4]),
        (0, 0.003, [0, 0.001, 0.002, 0.003]),
        (0, 1e-9, [0, 5e-10, 1e-9]),
    ],
)
def test_ticks_are_round_numbers_around_the_values(low: float, high: float, ticks: list[float]) -> None:
    assert round_ticks(low, high) == ticks


@given(NUMBERS, NUMBERS)
def test_ticks_ascend_and_are_few_for_any_range(first: float, second: float) -> None:
    ticks = round_ticks(min(first, second), max(first, second))

    assert 2 <= len(ticks) <= 5
    assert all(low <= high for low, high in pairwise(ticks))


def test_bars_are_in_proportion_and_a_small_one_is_still_seen() -> None:
    plot = bar_plot("Cost", [("a", 0), ("b", 100), ("c", 50), ("d", 0.001)], str)

    assert [bar.title for bar in plot.bars] == ["b: 100", "c: 50", "d: 0.001"]
    heights = [bar.height for bar in plot.bars]
    assert heights[0] == HEIGHT
    assert heights[1] == HEIGHT / 2
    assert heights[2] > 1
    assert all(bar.x >= 0 and bar.x + bar.width <= 100 for bar in plot.bars)


def test_only_some_of_many_bars_have_a_label_and_the_last_has() -> None:
    plot = bar_plot("Cost", [(str(day), 1) for day in range(90)], str)

    assert len(plot.columns) <= 5
    assert plot.columns[-1][1] == "89"


def test_a_plot_without_values_has_axes_alone() -> None:
    plot = bar_plot("Cost", [], str)

    assert plot.bars == ()
    assert len(plot.rows) > 1


def test_a_line_begins_at_nothing_and_its_limit_is_within_the_plot() -> None:
    plot = line_plot("Cost", [(1_000, 0), (2_000, 3), (3_000, 4)], str, [(1_000, "begun")], limit=10)

    assert plot.segments[0][:2] == (0, HEIGHT)
    assert plot.segments[-1][2] == 100
    assert plot.limit == 0
    assert plot.marks == ()


def test_the_best_point_is_marked_and_the_axis_fits_the_points() -> None:
    plot = line_plot("Score", [(1, 0.5), (2, 0.9)], str, [], titles=["one", "two"], best=1)

    assert [(title, is_best) for _, _, title, is_best in plot.marks] == [("one", False), ("two", True)]
    assert plot.rows[0][1] != "0.0"


def test_one_point_is_in_the_middle() -> None:
    assert line_plot("Score", [(5, 1)], str, [], titles=["one"]).marks[0][0] == 50
