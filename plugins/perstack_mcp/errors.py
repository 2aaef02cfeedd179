"""Errors of servers, their descriptions, and rate-limited output of server lines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

from perstack.core.base.secrets import masked_error
from perstack.errors import PerstackError, SkillError
from perstack.next_steps import NextStep

_MAX_ERROR_CHARS = 10_000
"""Characters of an error's text that are processed."""


class ServerEnded(SkillError):
    """Error of a call during which the connection closed."""


class Unauthorized(SkillError):
    """Error of a request that the server or its authorization server rejected; other requests may continue."""


def root_cause(error: BaseException) -> BaseException:
    """Return the first error inside an exception group other than a cancellation."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    inner = cast("BaseExceptionGroup[BaseException]", error).exceptions
    return root_cause(next((one for one in inner if not isinstance(one, asyncio.CancelledError)), inner[0]))


def next_steps_of(error: BaseException) -> tuple[NextStep, ...]:
    """Return the next steps of the root error."""
    found = root_cause(error)
    return found.next_steps if isinstance(found, PerstackError) else ()


def describe(error: BaseException) -> str:
    """Describe the root error on one line, without its next steps and with secrets in addresses masked."""
    found = root_cause(error)
    said = found.message if isinstance(found, PerstackError) else str(found)
    text = masked_error(" ".join(said.split())[:_MAX_ERROR_CHARS])
    return text[:500] if text else type(found).__name__


MAX_LINES = 1000
"""Maximum lines per time window; further ones are only counted."""

_WINDOW_S = 10.0
"""Length of the window in seconds."""

MAX_LINE_CHARS = 1000


class RateLimitedOutput:
    """Rate-limited output of lines to the person. Shortens each line and reports how many were omitted."""

    def __init__(self, show: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        """Send lines to `show`."""
        self._show = show
        self._clock = clock
        self._until = clock() + _WINDOW_S
        self._lines = 0

    def __call__(self, line: str) -> None:
        """Show a line, or count it."""
        now = self._clock()
        if now >= self._until:
            self._until, left_out, self._lines = now + _WINDOW_S, self._lines - MAX_LINES, 0
            if left_out > 0:
                self._show(f"({left_out} lines were not shown)")
        self._lines += 1
        if self._lines <= MAX_LINES:
            self._show(line[:MAX_LINE_CHARS].rstrip())
        elif self._lines == MAX_LINES + 1:
            self._show(f"(more than {MAX_LINES} lines at once: the next are not shown)")
