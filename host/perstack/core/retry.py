"""When a failed generation is tried again."""

from __future__ import annotations

_FIRST_DELAY = 0.5
_LONGEST_DELAY = 60.0


def delay_before(attempt: int, jitter: float, retry_after: float | None) -> float:
    """Seconds to wait after try number `attempt` (from 1) failed.

    Doubles from half a second up to a minute, less a random share of a half (`jitter` is in [0, 1)) so that many
    Jobs do not return at once. What the endpoint asked for (`retry_after`, seconds) is waited in full.
    """
    if retry_after is not None:
        return max(0.0, retry_after)
    longest = min(_LONGEST_DELAY, _FIRST_DELAY * 2.0 ** (attempt - 1))
    return longest * (1 - jitter / 2)
