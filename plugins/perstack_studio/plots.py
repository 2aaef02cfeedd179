"""Plots as numbers, which the macro in `plots.html` draws: bars of one series, and lines with marks.

Horizontal places are percentages of the width, vertical ones pixels: a plot fills its page, and text keeps its size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import ceil, floor, log10

from perstack.dataclass import dataclass

HEIGHT = 140  # pixels between the highest and the lowest tick
_MIN_PX = 1.5  # minimum height of a bar, so that a small value is visible
_MAX_LABELS = 4  # maximum labels below a plot, on a narrow screen too

Tick = tuple[float, str]  # place and text of a label


@dataclass(frozen=True, slots=True)
class PlotBar:
    """A bar that stands on the lower edge."""

    x: float
    width: float
    height: float
    title: str


@dataclass(frozen=True, slots=True)
class Plot:
    """Everything a plot draws."""

    title: str
    rows: tuple[Tick, ...]
    columns: tuple[Tick, ...]
    bars: tuple[PlotBar, ...] = ()
    segments: tuple[tuple[float, float, float, float], ...] = ()  # each as x and y of both ends
    marks: tuple[tuple[float, float, str, bool], ...] = ()  # each as x, y, title, and True for the best value
    limit: float | None = None  # vertical place of the line of the limit; None without one
    height: int = HEIGHT


def round_ticks(low: float, high: float, max_ticks: int = 5) -> list[float]:
    """Return at most `max_ticks` ascending multiples of 1, 2 or 5 times a power of ten that enclose the range."""
    if high <= low:
        high = low + (abs(low) or 1)
    if 1e-200 < high - low < 1e200:
        unit = 10 ** floor(log10((high - low) / max_ticks))
        for step in (unit, 2 * unit, 5 * unit, 10 * unit, 20 * unit):
            first, last = floor(round(low / step, 9)), ceil(round(high / step, 9))
            if last - first < max_ticks:
                return [float(f"{number * step:.12g}") for number in range(first, last + 1)]
    return [low, high]


def bar_plot(title: str, values: Sequence[tuple[str, float]], to_text: Callable[[float], str]) -> Plot:
    """Return a plot with a bar for each name and value. No value is negative."""
    ticks = round_ticks(0, max((value for _, value in values), default=0))
    slot = 100 / max(1, len(values))
    bars = tuple(
        PlotBar(slot * (index + 0.1), slot * 0.8, max(_MIN_PX, HEIGHT * value / ticks[-1]), f"{name}: {to_text(value)}")
        for index, (name, value) in enumerate(values)
        if value > 0
    )
    middles = [(slot * (index + 0.5), name) for index, (name, _) in enumerate(values)]
    return Plot(title, _rows(ticks, to_text), _columns(middles), bars)


def line_plot(
    title: str,
    points: Sequence[tuple[float, float]],
    to_text: Callable[[float], str],
    labels: Sequence[tuple[float, str]],
    *,
    limit: float | None = None,
    titles: Sequence[str] = (),
    best: int | None = None,
) -> Plot:
    """Return a plot of points in the order of x, joined by lines; `labels` have an x, and `limit` is a level.

    `titles`, one for each point, mark the points, `best` the one of that index. Without marks the axis begins at 0.
    """
    levels = [value for _, value in points] + ([] if limit is None else [limit]) + ([] if titles else [0.0])
    ticks = round_ticks(min(levels), max(levels))
    left, width = points[0][0], points[-1][0] - points[0][0]

    def x_percent(x: float) -> float:
        return 50.0 if width <= 0 else (x - left) * 100 / width

    places = [(x_percent(x), _y_pixels(ticks, value)) for x, value in points]
    return Plot(
        title,
        _rows(ticks, to_text),
        _columns([(x_percent(x), name) for x, name in labels]),
        segments=tuple((*place, *following) for place, following in pairwise(places)),
        marks=tuple((*places[index], name, index == best) for index, name in enumerate(titles)),
        limit=None if limit is None else _y_pixels(ticks, limit),
    )


def _y_pixels(ticks: Sequence[float], value: float) -> float:
    return HEIGHT - (value - ticks[0]) * HEIGHT / (ticks[-1] - ticks[0])


def _rows(ticks: Sequence[float], to_text: Callable[[float], str]) -> tuple[Tick, ...]:
    return tuple((_y_pixels(ticks, tick), to_text(tick)) for tick in ticks)


def _columns(labels: Sequence[tuple[float, str]]) -> tuple[Tick, ...]:
    """Return at most `_MAX_LABELS` evenly chosen labels, always with the last one."""
    interval = ceil(len(labels) / _MAX_LABELS) or 1
    return tuple(labels[::-1][::interval][::-1])
