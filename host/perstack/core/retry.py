"""What becomes of a failed generation: it is tried again, given up, or the Job pauses until the endpoint has room."""

from __future__ import annotations

from perstack.core.definitions import Limits
from perstack.dataclass import dataclass

_FIRST_DELAY = 0.5
_LONGEST_DELAY = 60.0

LONGEST_WAIT = 300.0
"""Seconds that an endpoint may ask to be left alone while the process waits; for longer, the Job pauses."""


@dataclass(frozen=True, slots=True)
class Again:
    """Try again after some seconds."""

    delay: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop, to be resumed after some seconds: too many to wait for in a process."""

    delay: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Another try is no use; why, if that is not plain from the error."""

    reason: str = ""


def time_for_try(limits: Limits, spent: float) -> tuple[float, bool]:
    """Seconds that a try may take which begins `spent` seconds after the first, and whether `retry_timeout` says so."""
    left = max(0.0, limits.retry_timeout / 1000 - spent)
    longest = limits.timeout / 1000
    return (left, True) if left < longest else (longest, False)


def after_failure(
    limits: Limits,
    *,
    is_retryable: bool,
    retry_after: float | None,
    attempt: int,
    spent: float,
    jitter: float,
    has_stand_in: bool = False,
    is_hopeless: bool = False,
) -> Again | Pause | GiveUp:
    """What to do after try number `attempt` (from 1) failed, `spent` seconds after the first try began.

    A model that has another to stand in for it is not waited for as long as a Job would pause, nor where another try
    `is_hopeless`.
    """
    if not is_retryable or (has_stand_in and is_hopeless):
        return GiveUp()
    if retry_after is not None and retry_after > LONGEST_WAIT:
        return GiveUp() if has_stand_in else Pause(retry_after)
    is_over = spent * 1000 >= limits.retry_timeout
    if attempt > limits.max_retries and not is_over:
        return GiveUp()
    delay = delay_before(attempt, jitter, retry_after)
    if (spent + delay) * 1000 >= limits.retry_timeout:
        tries = f"{attempt} {'try' if attempt == 1 else 'tries'}"
        return GiveUp(f"given up after {tries} in {spent:.0f} s; `retryTimeout` of perstack.toml would allow more")
    return Again(delay)


def delay_before(attempt: int, jitter: float, retry_after: float | None) -> float:
    """Seconds to wait after try number `attempt` (from 1) failed.

    Doubles from half a second up to a minute, less a random share of a half (`jitter` is in [0, 1)) so that many
    Jobs do not return at once. What the endpoint asked for (`retry_after`, seconds) is waited in full.
    """
    if retry_after is not None:
        return max(0.0, retry_after)
    longest = min(_LONGEST_DELAY, _FIRST_DELAY * 2.0 ** (attempt - 1))
    return longest * (1 - jitter / 2)
