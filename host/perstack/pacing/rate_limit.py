"""The rate limiter and circuit breaker of one endpoint, shared by all Runs of a process.

Pure functions: times are seconds of the caller's clock. `pacing/endpoint_queue.py` queues the waiting Runs.

- `[limits]` bounds concurrent generations, starts per minute, spread evenly, and tokens per minute.
- After a 429 nothing starts before the endpoint's `retry-after` has passed; then as many generations run at once as it
  had not refused, and one more each time that as many succeeded.
- After `MAX_FAILURES` consecutive failures the circuit opens: nothing is sent for `CIRCUIT_OPEN_S` seconds, then one
  generation as a test.
"""

from __future__ import annotations

from dataclasses import replace

from perstack.core.definitions.models import ProviderLimits
from perstack.core.runs.display_events import WaitReason
from perstack.core.runs.retries_and_fallbacks import MAX_WAIT_S
from perstack.dataclass import dataclass

MAX_FAILURES = 10  # consecutive failures over all Runs; more than one Run's attempts, which alone open no circuit
CIRCUIT_OPEN_S = 30.0

NO_LIMITS = ProviderLimits(name="")


@dataclass(frozen=True, slots=True)
class Pace:
    """The state of an endpoint."""

    under_way: int = 0
    next_request: float = 0.0  # earliest start by `requestsPerMinute`; `next_tokens`: by `tokensPerMinute`
    next_tokens: float = 0.0
    held_until: float = 0.0  # end of the pause that the endpoint asked for
    max_concurrent: int | None = None  # generations at once, since the endpoint refused more; None if it never did
    went_well: int = 0  # successes since `max_concurrent` last changed
    failures: int = 0
    latest: str = ""
    open_until: float = 0.0  # end of the time without requests; 0 if the circuit is closed
    is_trying: bool = False  # True while a test generation runs that may close the circuit

    @property
    def is_open(self) -> bool:
        """True if the circuit is open or being tested."""
        return self.open_until > 0


@dataclass(frozen=True, slots=True)
class StartNow:
    """The next generation may start."""


@dataclass(frozen=True, slots=True)
class Delay:
    """A delay of the next generation until `at`; None until another one has ended."""

    at: float | None
    reason: WaitReason


@dataclass(frozen=True, slots=True)
class CircuitOpen:
    """The refusal of a generation while the circuit is open, for `seconds` more."""

    seconds: float
    failures: int
    latest: str


def admission(pace: Pace, provider_limits: ProviderLimits, now: float) -> StartNow | Delay | CircuitOpen:
    """Return whether the first generation in the queue may start."""
    if pace.is_open:
        if now < pace.open_until:
            return CircuitOpen(pace.open_until - now, pace.failures, pace.latest)
        if pace.is_trying:
            return Delay(None, "circuit")
    if now < pace.held_until:
        return Delay(pace.held_until, "rateLimit")
    if provider_limits.concurrency is not None and pace.under_way >= provider_limits.concurrency:
        return Delay(None, "concurrency")
    if pace.max_concurrent is not None and pace.under_way >= pace.max_concurrent:
        return Delay(None, "rateLimit")
    if provider_limits.requests_per_minute is not None and now < pace.next_request:
        return Delay(pace.next_request, "requestsPerMinute")
    if provider_limits.tokens_per_minute is not None and now < pace.next_tokens:
        return Delay(pace.next_tokens, "tokensPerMinute")
    return StartNow()


def after_start(pace: Pace, provider_limits: ProviderLimits, now: float, tokens: int) -> Pace:
    """Return the state after the start of a generation that is expected to send so many tokens."""
    request, token_time = pace.next_request, pace.next_tokens
    if provider_limits.requests_per_minute is not None:
        request = _next_start(request, now, 60 / provider_limits.requests_per_minute)
    if provider_limits.tokens_per_minute is not None:
        token_time = max(token_time, now) + tokens * 60 / provider_limits.tokens_per_minute
    return replace(
        pace, under_way=pace.under_way + 1, next_request=request, next_tokens=token_time, is_trying=pace.is_open
    )


def _next_start(planned: float, now: float, interval: float) -> float:
    """Return the next start at even intervals. A slightly late start does not delay all later ones."""
    return (planned if now - planned < interval else now) + interval


def after_success(pace: Pace, provider_limits: ProviderLimits, tokens: int) -> Pace:
    """Return the state after a success; `tokens`: used beyond the expected ones, negative if fewer."""
    pace = _without_one(after_answer(pace))
    if pace.max_concurrent is not None:
        grows = pace.went_well + 1 >= pace.max_concurrent
        pace = replace(pace, max_concurrent=pace.max_concurrent + grows, went_well=0 if grows else pace.went_well + 1)
    if provider_limits.tokens_per_minute is not None:
        pace = replace(pace, next_tokens=pace.next_tokens + tokens * 60 / provider_limits.tokens_per_minute)
    return pace


def after_refusal(pace: Pace) -> Pace:
    """Return the state after the endpoint rejected a request for its content, which shows that the endpoint works."""
    return _without_one(after_answer(pace))


def after_rate_limit(pace: Pace, now: float, seconds: float | None) -> Pace:
    """Return the state after a 429; `seconds`: the pause that the endpoint asks for.

    A pause beyond `MAX_WAIT_S` holds no other Run: it may concern one model or a quota, and the Run that received it
    stops. Others will find out themselves.
    """
    pace = _without_one(after_answer(pace))
    is_short = seconds is not None and seconds <= MAX_WAIT_S
    held_until = max(pace.held_until, now + (seconds or 0)) if is_short else pace.held_until
    limit = max(1, pace.under_way)
    limit = limit if pace.max_concurrent is None else min(limit, pace.max_concurrent)
    return replace(pace, held_until=held_until, max_concurrent=limit, went_well=0)


def after_failure(pace: Pace, now: float, message: str) -> Pace:
    """Return the state after a failure that suggests that the endpoint is down."""
    was_trying, pace = pace.is_trying, _without_one(pace)
    failures = pace.failures + 1
    opens = was_trying or (failures >= MAX_FAILURES and not pace.is_open)
    open_until = now + CIRCUIT_OPEN_S if opens else pace.open_until
    return replace(pace, failures=failures, latest=message, open_until=open_until)


def after_cancellation(pace: Pace) -> Pace:
    """Return the state after a cancelled generation, which shows nothing."""
    return _without_one(pace)


def after_answer(pace: Pace) -> Pace:
    """Return the state after any answer of the endpoint, which closes the circuit."""
    return replace(pace, failures=0, latest="", open_until=0.0) if pace.failures or pace.is_open else pace


def _without_one(pace: Pace) -> Pace:
    return replace(pace, under_way=max(0, pace.under_way - 1), is_trying=False)
