"""Asking a model, for a reply or for a summary: what a try may cost, its time, and what becomes of one that failed."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from perstack.core.commands import Fail
from perstack.core.definitions import Limits
from perstack.core.events import Retry
from perstack.core.policy.budget import Exceeded, Grant, is_uncharged
from perstack.core.replies import usable_reply
from perstack.core.retry import GiveUp, Pause, after_failure, time_for_try
from perstack.core.run_facts import ErrorInfo
from perstack.core.runs.decide import noted, paused_for_limit, stopped_by_budget
from perstack.core.runs.switching import models_left, needs_no_retry
from perstack.dataclass import dataclass
from perstack.engine.session import Session
from perstack.engine.spending import UnknownPrice
from perstack.errors import ProviderError
from perstack.ports.provider import Delta, Generation, GenerationRequest, Provider


@dataclass(frozen=True, slots=True)
class Trying:
    """The tries of one generation with one model, and the time for them."""

    limits: Limits
    """With the share of the time that is this model's: those that may stand in for it have theirs."""
    began: float
    """By `time.monotonic`."""
    has_stand_in: bool = False

    @classmethod
    def begun(cls, session: Session) -> Trying:
        """The first try of the model in force begins."""
        now = time.monotonic()
        if session.first_try is None:
            session.first_try = now
        limits, left = session.run.limits, models_left(session.run)
        if left == 1 and not session.run.stands_in:
            return cls(limits, now)
        time_left = limits.retry_timeout - (now - session.first_try) * 1000
        share = limits.model_copy(update={"retry_timeout": max(0, round(time_left / left))})
        return cls(share, now, left > 1)

    @property
    def spent(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began


async def granted_or_stopped(session: Session, reserving: Awaitable[Grant | Exceeded]) -> Grant | None:
    """What a try may cost; None if no budget allows it or its price is not known, which is recorded."""
    try:
        found = await reserving
    except UnknownPrice as error:
        await fail(session, error_info(error))
        return None
    if isinstance(found, Exceeded):
        session.note(stopped_by_budget(found, session.stamp))
        await session.flush()
        return None
    return found


async def tried_again(session: Session, error: ProviderError, attempt: int, trying: Trying) -> GiveUp | bool:
    """True once there may be another try, which is recorded; false if the Job pauses for it; else why there is none."""
    decision = after_failure(
        trying.limits,
        is_retryable=error.is_retryable,
        retry_after=error.retry_after,
        attempt=attempt,
        spent=trying.spent,
        has_stand_in=trying.has_stand_in,
        is_hopeless=needs_no_retry(error_info(error)),
        jitter=random.random(),  # noqa: S311 - spreads load, no secret
    )
    if isinstance(decision, GiveUp):
        return decision
    info, delay = error_info(error), round(decision.delay * 1000)
    uncharged = session.run.reserved is not None and is_uncharged(info)
    session.note(Retry(**session.stamp(), error=info, attempt=attempt, delay_ms=delay, uncharged=uncharged))
    if isinstance(decision, Pause):
        session.note(paused_for_limit(session.clock.now() + delay, session.stamp))
    await session.flush()
    if isinstance(decision, Pause):
        return False
    await asyncio.sleep(decision.delay)
    return True


async def fail(session: Session, error: ErrorInfo, *, uncharged: bool = False) -> None:
    """Record that the Run failed."""
    session.note_all(noted(session.run, Fail(error, uncharged), session.stamp, 0))
    await session.flush()


def error_info(error: ProviderError) -> ErrorInfo:
    """What is kept of a provider's error: its own words and status."""
    return ErrorInfo(
        name=error.name, message=str(error), status_code=error.status_code, is_retryable=error.is_retryable
    )


async def try_once(
    provider: Provider, request: GenerationRequest, show: Callable[[Delta], None], trying: Trying
) -> Generation:
    """One try, within its time. Raises ProviderError."""
    seconds, is_last = time_for_try(trying.limits, trying.spent)
    try:
        async with asyncio.timeout(seconds):
            generation = await provider.generate(request, show)
            return replace(generation, reply=usable_reply(generation.reply))
    except TimeoutError as error:
        remedy = "" if is_last else "; give more time with `timeout`"
        message = f"no whole reply within {seconds * 1000:.0f} ms{remedy}"
        raise ProviderError(message, name="Timeout", is_retryable=True) from error
    except ProviderError:
        raise
    except Exception as error:  # a fault in a provider's code must not lose the Run
        raise ProviderError(f"{type(error).__name__}: {error}", name="ProviderFault") from error
