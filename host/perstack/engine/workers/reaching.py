"""A dispatcher that cannot be reached for a while: it is asked again, with pauses that grow, for ever."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from perstack.engine.workers.news import News, Tell, error_text
from perstack.errors import DispatcherError

_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 5.0

_T = TypeVar("_T")


class Reaching:
    """Whether the dispatcher answers, as all of a worker's calls find it. Each change is told once."""

    def __init__(self, location: str, tell: Tell) -> None:
        self._location = location
        self._tell = tell
        self._pause = 0.0
        """What was waited last; 0 while it answers."""

    async def until_done(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """What the work returns in the end."""
        while True:
            try:
                done = await work()
            except DispatcherError as error:
                await asyncio.sleep(self.failed(error))
            else:
                self.answered()
                return done

    def failed(self, error: DispatcherError) -> float:
        """Seconds to wait before it is asked again."""
        if not self._pause:
            text = f"the dispatcher does not answer, and is asked again: {error_text(error)}"
            facts = {"dispatcher": self._location, "error": error_text(error)}
            self._tell(News(event="unreachable", level="warning", text=text, facts=facts))
        self._pause = min(max(self._pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
        return self._pause * random.uniform(0.7, 1.0)  # noqa: S311 - so that not all come back at once

    def answered(self) -> None:
        """It has answered."""
        if self._pause:
            self._pause = 0.0
            self._tell(
                News(event="reachable", text="the dispatcher answers again", facts={"dispatcher": self._location})
            )
