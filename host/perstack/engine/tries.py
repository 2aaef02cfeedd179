"""Asking a model, for a reply or for a summary: what a try may cost, its time, and what becomes of one that failed."""

from __future__ import annotations

import asyncio
import random
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
from perstack.engine.session import Session
from perstack.engine.spending import UnknownPrice
from perstack.errors import ProviderError
from perstack.ports.provider import Delta, Generation, GenerationRequest, Provider


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


async def tried_again(session: Session, error: ProviderError, attempt: int, spent: float) -> GiveUp | bool:
    """True once there may be another try, which is recorded; false if the Job pauses for it; else why there is none."""
    decision = after_failure(
        session.run.limits,
        is_retryable=error.is_retryable,
        retry_after=error.retry_after,
        attempt=attempt,
        spent=spent,
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
    provider: Provider, request: GenerationRequest, show: Callable[[Delta], None], limits: Limits, spent: float
) -> Generation:
    """One try, within its time: `spent` seconds have passed since the first. Raises ProviderError."""
    seconds, is_last = time_for_try(limits, spent)
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
