"""Lines of a server for a person, who is spared a flood of them."""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_LINES = 1000
"""Shown within a window of time; the others are counted."""

_WINDOW = 10.0
"""Seconds."""

LONGEST_LINE = 1000


class Shown:
    """Shows lines, each shortened, and says how many it did not."""

    def __init__(self, show: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._show = show
        self._clock = clock
        self._until = clock() + _WINDOW
        self._lines = 0

    def __call__(self, line: str) -> None:
        """One more."""
        now = self._clock()
        if now >= self._until:
            self._until, left_out, self._lines = now + _WINDOW, self._lines - MOST_LINES, 0
            if left_out > 0:
                self._show(f"({left_out} lines were not shown)")
        self._lines += 1
        if self._lines <= MOST_LINES:
            self._show(line[:LONGEST_LINE].rstrip())
        elif self._lines == MOST_LINES + 1:
            self._show(f"(more than {MOST_LINES} lines at once: the next are not shown)")
