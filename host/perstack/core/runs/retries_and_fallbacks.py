"""Decide from the state alone which of a Run's models is active, and whether a failed generation is tried again.

- `startRun` names the models in order; `switchModel` records each change of the active one.
- The next model takes over when the attempts are used up, a quota is exhausted, or the model refuses: where another
  endpoint may succeed. An invalid request is invalid everywhere, and a rejected key needs a person.
- The primary model is tried again after `REST_MS`.
"""

from __future__ import annotations

from typing import Literal

from perstack.core.definitions.models import full_name
from perstack.core.definitions.settings import Limits
from perstack.core.runs.facts import ErrorInfo
from perstack.core.runs.start import StartRun
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass

# After a failed generation: try again, give up, or pause the Job until the endpoint has capacity.

_MIN_DELAY_S = 0.5
_MAX_DELAY_S = 60.0

MAX_WAIT_S = 300.0  # longest pause that a process waits for an endpoint; beyond it the Job pauses


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """The decision to try again after a delay."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class PauseJob:
    """The decision to stop, and to resume after a delay that is too long to wait in a process."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The decision that another attempt is useless, with the reason unless the error already says it."""

    reason: str = ""


def attempt_timeout_s(limits: Limits, spent_s: float) -> tuple[float, bool]:
    """Return the seconds that an attempt may take, and True if `retry_timeout` limits them."""
    remaining_s = max(0.0, limits.retry_timeout / 1000 - spent_s)
    timeout_s = limits.timeout / 1000
    return (remaining_s, True) if remaining_s < timeout_s else (timeout_s, False)


def after_failure(
    limits: Limits,
    *,
    is_retryable: bool,
    retry_after_s: float | None,
    attempt: int,
    spent_s: float,
    jitter: float,
    has_fallback: bool = False,
    is_hopeless: bool = False,
) -> RetryAfter | PauseJob | GiveUp:
    """Decide what to do after attempt `attempt` (from 1) failed, `spent_s` seconds after the first attempt began.

    With a fallback model (`has_fallback`) the Job never pauses, and gives up at once if another attempt `is_hopeless`.
    """
    if not is_retryable or (has_fallback and is_hopeless):
        return GiveUp()
    if retry_after_s is not None and retry_after_s > MAX_WAIT_S:
        return GiveUp() if has_fallback else PauseJob(retry_after_s)
    is_over = spent_s * 1000 >= limits.retry_timeout
    if attempt > limits.max_retries and not is_over:
        return _give_up(attempt, spent_s, "maxRetries")
    delay_s = delay_after_attempt_s(attempt, jitter, retry_after_s)
    if (spent_s + delay_s) * 1000 >= limits.retry_timeout:
        return _give_up(attempt, spent_s, "retryTimeout")
    return RetryAfter(delay_s)


def _give_up(attempt: int, spent_s: float, limit: str) -> GiveUp:
    if attempt == 1 and limit == "maxRetries":
        return GiveUp()  # nothing was tried again
    tries = f"{attempt} {'try' if attempt == 1 else 'tries'}"
    return GiveUp(f"gave up after {tries} in {spent_s:.0f} s; raise `{limit}` in perstack.toml to allow more")


def delay_after_attempt_s(attempt: int, jitter: float, retry_after_s: float | None) -> float:
    """Return the seconds to wait after attempt `attempt` (from 1) failed.

    The delay doubles from half a second up to a minute, less a random part of up to a half (`jitter` is in [0, 1)), so
    that many Jobs do not return at once. The endpoint's own `retry_after_s` is waited in full.
    """
    if retry_after_s is not None:
        return max(0.0, retry_after_s)
    full_delay_s = min(_MAX_DELAY_S, _MIN_DELAY_S * 2.0 ** (attempt - 1))
    return full_delay_s * (1 - jitter / 2)


REST_MS = 300_000  # milliseconds until the primary model is tried again

REFUSAL = "Refusal"

SwitchReason = Literal[  # reasons for a switch of models; `triedAgain`: the pause of the primary model is over
    "overloaded",
    "rateLimit",
    "quota",
    "refusal",
    "timeout",
    "unreachable",
    "circuitOpen",
    "serverError",
    "notConfigured",
    "triedAgain",
]

_REASONS: dict[str, SwitchReason] = {
    "Overloaded": "overloaded",
    "RateLimit": "rateLimit",
    "QuotaExceeded": "quota",
    REFUSAL: "refusal",
    "Timeout": "timeout",
    "Stall": "timeout",
    "ConnectError": "unreachable",
    "ProxyError": "unreachable",
    "CutStream": "unreachable",
    "CircuitOpen": "circuitOpen",
    "MissingCredential": "notConfigured",
}
_ERRORS_WITHOUT_RETRY = frozenset(("QuotaExceeded", "CircuitOpen"))


def models_of(start: StartRun) -> tuple[str, ...]:
    """Return all models of a Run as `provider/model`, the primary one first."""
    return (full_name(start.provider, start.model), *start.fallbacks)


def next_model(run: Run) -> str | None:
    """Return the fallback of the active model; None if there is none."""
    names = models_of(run.start)
    next_index = names.index(run.active_model) + 1 if run.active_model in names else 1
    return names[next_index] if next_index < len(names) else None


def models_left(run: Run) -> int:
    """Return the number of models that may still be tried, including the active one; they share the time left."""
    names = models_of(run.start)
    return len(names) - (names.index(run.active_model) if run.active_model in names else 0)


def reason_to_switch(error: ErrorInfo) -> SwitchReason | None:
    """Return why another model may succeed after this error; None if it would not."""
    reason = _REASONS.get(error.name)
    status = error.status_code or 0
    if error.is_retryable or reason in ("quota", "refusal", "notConfigured") or status in (429, 529):
        return reason or "serverError"
    return None


def needs_no_retry(error: ErrorInfo) -> bool:
    """Return True if the fallback is asked at once, without another attempt of the active model."""
    return error.name in _ERRORS_WITHOUT_RETRY


def fallback_failure(run: Run, problem: str) -> ErrorInfo:
    """Return the error of a Run whose active model is unavailable: the previous model's failure, and this problem."""
    message = f"the fallback {run.active_model} is not available: {problem}"
    if run.fallback_cause is None:
        return ErrorInfo(name="MissingCredential", message=message)
    return run.fallback_cause.model_copy(update={"message": f"{run.fallback_cause.message}; {message}"})


def is_primary_due(run: Run, now: int) -> bool:
    """Return True if the primary model has rested long enough. `now`: milliseconds since 1970."""
    return run.uses_fallback and now >= run.primary_retry_at_ms
