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

    running_count: int = 0
    next_request: float = 0.0  # earliest start by `requestsPerMinute`; `next_tokens`: by `tokensPerMinute`
    next_tokens: float = 0.0
    held_until: float = 0.0  # end of the pause that the endpoint asked for
    max_concurrent: int | None = None  # generations at once, since the endpoint refused more; None if it never did
    success_count: int = 0  # successes since `max_concurrent` last changed
    failures: int = 0
    latest_error: str = ""
    open_until: float = 0.0  # end of the time without requests; 0 if the circuit is closed
    is_testing: bool = False  # True while a test generation runs that may close the circuit

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
    """The refusal of a generation while the circuit is open, for `remaining_s` more seconds."""

    remaining_s: float
    failures: int
    latest_error: str


def decide_start(pace: Pace, provider_limits: ProviderLimits, now: float) -> StartNow | Delay | CircuitOpen:
    """Decide whether the first generation in the queue may start at the time `now`."""
    if pace.is_open:
        if now < pace.open_until:
            return CircuitOpen(pace.open_until - now, pace.failures, pace.latest_error)
        if pace.is_testing:
            return Delay(None, "circuit")
    if now < pace.held_until:
        return Delay(pace.held_until, "rateLimit")
    if provider_limits.concurrency is not None and pace.running_count >= provider_limits.concurrency:
        return Delay(None, "concurrency")
    if pace.max_concurrent is not None and pace.running_count >= pace.max_concurrent:
        return Delay(None, "rateLimit")
    if provider_limits.requests_per_minute is not None and now < pace.next_request:
        return Delay(pace.next_request, "requestsPerMinute")
    if provider_limits.tokens_per_minute is not None and now < pace.next_tokens:
        return Delay(pace.next_tokens, "tokensPerMinute")
    return StartNow()


def after_start(pace: Pace, provider_limits: ProviderLimits, now: float, expected_tokens: int) -> Pace:
    """Return the state after the start of a generation that is expected to send so many tokens."""
    request, token_time = pace.next_request, pace.next_tokens
    if provider_limits.requests_per_minute is not None:
        request = _next_start(request, now, 60 / provider_limits.requests_per_minute)
    if provider_limits.tokens_per_minute is not None:
        token_time = max(token_time, now) + expected_tokens * 60 / provider_limits.tokens_per_minute
    return replace(
        pace,
        running_count=pace.running_count + 1,
        next_request=request,
        next_tokens=token_time,
        is_testing=pace.is_open,
    )


def _next_start(planned: float, now: float, interval_s: float) -> float:
    """Return the next start at even intervals. A slightly late start does not delay all later ones."""
    return (planned if now - planned < interval_s else now) + interval_s


def after_success(pace: Pace, provider_limits: ProviderLimits, extra_tokens: int) -> Pace:
    """Return the state after a success; `extra_tokens`: used beyond the expected ones, negative if fewer."""
    pace = _with_one_ended(after_answer(pace))
    if pace.max_concurrent is not None:
        grows = pace.success_count + 1 >= pace.max_concurrent
        pace = replace(
            pace, max_concurrent=pace.max_concurrent + grows, success_count=0 if grows else pace.success_count + 1
        )
    if provider_limits.tokens_per_minute is not None:
        pace = replace(pace, next_tokens=pace.next_tokens + extra_tokens * 60 / provider_limits.tokens_per_minute)
    return pace


def after_refusal(pace: Pace) -> Pace:
    """Return the state after the endpoint rejected a request for its content, which shows that the endpoint works."""
    return _with_one_ended(after_answer(pace))


def after_rate_limit(pace: Pace, now: float, pause_s: float | None) -> Pace:
    """Return the state after a 429; `pause_s`: the pause that the endpoint asks for.

    A pause beyond `MAX_WAIT_S` does not delay other Runs, because it may concern only one model or a quota. The Run
    that received it stops.
    """
    pace = _with_one_ended(after_answer(pace))
    is_short = pause_s is not None and pause_s <= MAX_WAIT_S
    held_until = max(pace.held_until, now + (pause_s or 0)) if is_short else pace.held_until
    limit = max(1, pace.running_count)
    limit = limit if pace.max_concurrent is None else min(limit, pace.max_concurrent)
    return replace(pace, held_until=held_until, max_concurrent=limit, success_count=0)


def after_failure(pace: Pace, now: float, error: str) -> Pace:
    """Return the state after a failure that suggests that the endpoint is down."""
    was_testing, pace = pace.is_testing, _with_one_ended(pace)
    failures = pace.failures + 1
    opens = was_testing or (failures >= MAX_FAILURES and not pace.is_open)
    open_until = now + CIRCUIT_OPEN_S if opens else pace.open_until
    return replace(pace, failures=failures, latest_error=error, open_until=open_until)


def after_cancellation(pace: Pace) -> Pace:
    """Return the state after a cancelled generation, which says nothing about the endpoint."""
    return _with_one_ended(pace)


def after_answer(pace: Pace) -> Pace:
    """Return the state after any answer of the endpoint, which closes the circuit."""
    return replace(pace, failures=0, latest_error="", open_until=0.0) if pace.failures or pace.is_open else pace


def _with_one_ended(pace: Pace) -> Pace:
    return replace(pace, running_count=max(0, pace.running_count - 1), is_testing=False)
