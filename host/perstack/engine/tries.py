"""Asking a model, for a reply or for a summary: what a try may cost, its time, and what becomes of one that failed."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import TracebackType
from typing import Self

from perstack.core.commands import Fail
from perstack.core.events import Retry
from perstack.core.policy.budget import Exceeded, Grant, is_uncharged
from perstack.core.replies import usable_reply
from perstack.core.retry import GiveUp, Pause, after_failure, time_for_try
from perstack.core.run_facts import ErrorInfo
from perstack.core.runs.decide import noted, paused_for_limit, stopped_by_budget
from perstack.core.runs.switching import models_left, needs_no_retry
from perstack.engine.gates import OnWait, through
from perstack.engine.providers import Endpoint
from perstack.engine.session import Session
from perstack.engine.spending import UnknownPrice
from perstack.errors import ProviderError
from perstack.ports.provider import Delta, Generation, GenerationRequest, Provider


class Trying:
    """The tries of one generation with one model: its place in the line of its endpoint, and the time for them.

    What is waited in line is no part of that time: nothing has been tried yet.
    """

    def __init__(self, session: Session, endpoint: Endpoint, on_wait: OnWait = lambda waiting: None) -> None:
        now = time.monotonic()
        if session.first_try is None:
            session.first_try = now
        limits, left = session.run.limits, models_left(session.run)
        if left > 1 or session.run.stands_in:  # those that may stand in have their share
            time_left = limits.retry_timeout - (now - session.first_try) * 1000
            limits = limits.model_copy(update={"retry_timeout": max(0, round(time_left / left))})
        self.limits = limits
        self.has_stand_in = left > 1
        self.try_began = now
        """The latest one, by `time.monotonic`."""
        self._began = now
        self._session = session
        self._provider = endpoint.provider
        self._place = endpoint.place(on_wait)

    def __enter__(self) -> Self:
        self._place.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._place.__exit__(kind, error, trace)

    @property
    def spent(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began

    async def once(self, request: GenerationRequest, show: Callable[[Delta], None], tokens: int) -> Generation:
        """One try in its turn, within its time, which sends about so many tokens. Raises ProviderError."""
        asked = time.monotonic()

        async def work() -> Generation:
            self.try_began = time.monotonic()
            self._began += self.try_began - asked
            if self._session.first_try is not None:
                self._session.first_try += self.try_began - asked
            return await _tried(self._provider, request, show, *time_for_try(self.limits, self.spent))

        return await through(self._place, tokens, work)


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


async def _tried(
    provider: Provider, request: GenerationRequest, show: Callable[[Delta], None], seconds: float, is_last: bool
) -> Generation:
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
