"""For storages: how long the medium takes."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager

_SLOW = 0.001
"""Seconds; a change of threads costs about a tenth of it."""

_SHARE = 0.3
"""How much the latest write counts."""


class Pace:
    """A moving mean of what uses of a storage take.

    On a quick disk a use is done at once, in the thread that asks. On a slow one it goes to a thread of its own, so
    that Runs that work side by side do not wait for each other's syncs.
    """

    def __init__(self) -> None:
        self._mean = 0.0

    @property
    def is_slow(self) -> bool:
        """Whether the next one is worth a thread."""
        return self._mean > _SLOW

    @contextmanager
    def measured(self) -> Generator[None]:
        """Around one."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._mean += _SHARE * (time.perf_counter() - began - self._mean)
