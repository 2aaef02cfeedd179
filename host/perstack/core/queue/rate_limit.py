"""What all Runs know together of one endpoint: when the next generation may begin there, and whether one may at all.

Pure: moments are seconds of whatever clock is handed in. Who waits, and in which order, is `engine/gates.py`'s.

- What `[limits]` allows: so many at once, so many begun in a minute and evenly over it, so many tokens.
- What the endpoint asks for: after a 429 with a `retry-after` that is waited for, nobody begins before that time is
  over; from then on as many at once as it had not refused, and one more each time that as many went well.
- After failures in a row the circuit opens: nothing is sent for a while, and then one generation, to see.
"""

from __future__ import annotations

from dataclasses import replace

from perstack.core.display_events import WaitReason
from perstack.core.models import ProviderLimits
from perstack.core.retry import LONGEST_WAIT
from perstack.dataclass import dataclass

MOST_FAILURES = 10
"""In a row, over all Runs: the tries of one alone, as many as there are by default, open no circuit."""
CLOSED_FOR = 30.0
"""Seconds that nothing is sent for once the circuit is open."""

NO_LIMITS = ProviderLimits(name="")


@dataclass(frozen=True, slots=True)
class Pace:
    """How an endpoint stands."""

    under_way: int = 0
    next_request: float = 0.0
    """When the next generation may begin by `requestsPerMinute`."""
    next_tokens: float = 0.0
    """The same by `tokensPerMinute`."""
    held_until: float = 0.0
    """Until when the endpoint asked to be left alone."""
    most: int | None = None
    """How many at once, since it refused more; None: it never did."""
    went_well: int = 0
    """How many have since that number last changed."""
    failures: int = 0
    """In a row."""
    latest: str = ""
    """The words of the latest of them."""
    open_until: float = 0.0
    """Until when nothing is sent; 0: the circuit is closed."""
    is_trying: bool = False
    """Whether one generation is under way that shows whether the circuit can close."""

    @property
    def is_open(self) -> bool:
        """Whether the circuit is open, or is being tried."""
        return self.open_until > 0


@dataclass(frozen=True, slots=True)
class Go:
    """The next one may begin."""


@dataclass(frozen=True, slots=True)
class Later:
    """Not before that moment; None: not before another has ended."""

    at: float | None
    reason: WaitReason


@dataclass(frozen=True, slots=True)
class Refused:
    """The circuit is open for so many seconds more."""

    seconds: float
    failures: int
    latest: str


def admission(pace: Pace, limits: ProviderLimits, now: float) -> Go | Later | Refused:
    """What becomes of the one that is first in line."""
    if pace.is_open:
        if now < pace.open_until:
            return Refused(pace.open_until - now, pace.failures, pace.latest)
        if pace.is_trying:
            return Later(None, "circuit")
    if now < pace.held_until:
        return Later(pace.held_until, "rateLimit")
    if limits.concurrency is not None and pace.under_way >= limits.concurrency:
        return Later(None, "concurrency")
    if pace.most is not None and pace.under_way >= pace.most:
        return Later(None, "rateLimit")
    if limits.requests_per_minute is not None and now < pace.next_request:
        return Later(pace.next_request, "requestsPerMinute")
    if limits.tokens_per_minute is not None and now < pace.next_tokens:
        return Later(pace.next_tokens, "tokensPerMinute")
    return Go()


def begun(pace: Pace, limits: ProviderLimits, now: float, tokens: int) -> Pace:
    """After one has begun, which is expected to send so many tokens."""
    request, spent = pace.next_request, pace.next_tokens
    if limits.requests_per_minute is not None:
        request = _next(request, now, 60 / limits.requests_per_minute)
    if limits.tokens_per_minute is not None:
        spent = max(spent, now) + tokens * 60 / limits.tokens_per_minute
    return replace(pace, under_way=pace.under_way + 1, next_request=request, next_tokens=spent, is_trying=pace.is_open)


def _next(planned: float, now: float, interval: float) -> float:
    """The next moment of an even pace. One that begins a little late does not delay all after it."""
    return (planned if now - planned < interval else now) + interval


def succeeded(pace: Pace, limits: ProviderLimits, tokens: int) -> Pace:
    """After one has ended well, and used so many tokens more than were expected; or fewer, below zero."""
    pace = _ended(answered(pace))
    if pace.most is not None:
        grows = pace.went_well + 1 >= pace.most
        pace = replace(pace, most=pace.most + grows, went_well=0 if grows else pace.went_well + 1)
    if limits.tokens_per_minute is not None:
        pace = replace(pace, next_tokens=pace.next_tokens + tokens * 60 / limits.tokens_per_minute)
    return pace


def refused(pace: Pace) -> Pace:
    """After the endpoint refused one for what was asked of it: it is there, and that is all it shows."""
    return _ended(answered(pace))


def slowed(pace: Pace, now: float, seconds: float | None) -> Pace:
    """After a 429, with what the endpoint asked for.

    What it asks for beyond `LONGEST_WAIT` holds nobody else: it may be of one model, or of a quota, and the Run that
    heard it stops. Others hear for themselves.
    """
    pace = _ended(answered(pace))
    holds = seconds is not None and seconds <= LONGEST_WAIT
    until = max(pace.held_until, now + (seconds or 0)) if holds else pace.held_until
    most = max(1, pace.under_way)
    return replace(pace, held_until=until, most=most if pace.most is None else min(most, pace.most), went_well=0)


def failed(pace: Pace, now: float, words: str) -> Pace:
    """After one failed as it does where an endpoint is down."""
    was_trying, pace = pace.is_trying, _ended(pace)
    failures = pace.failures + 1
    opens = was_trying or (failures >= MOST_FAILURES and not pace.is_open)
    until = now + CLOSED_FOR if opens else pace.open_until
    return replace(pace, failures=failures, latest=words, open_until=until)


def abandoned(pace: Pace) -> Pace:
    """After one was cancelled, which shows nothing."""
    return _ended(pace)


def answered(pace: Pace) -> Pace:
    """The endpoint has answered: the circuit is closed."""
    return replace(pace, failures=0, latest="", open_until=0.0) if pace.failures or pace.is_open else pace


def _ended(pace: Pace) -> Pace:
    return replace(pace, under_way=max(0, pace.under_way - 1), is_trying=False)
