"""Attempts of a generation, for a reply or a summary, and the reactions to their failures.

`after_failure` (core/runs/retries_and_fallbacks.py) decides what follows a failed attempt: a retry, a pause of the Job,
or none. Then a fallback model may take over. An attempt that the endpoint refuses because of one part of the request is
repeated with that part adapted (core/messages/adaptations.py), which does not count as a retry. An attempt queues for
the endpoint only after its reservation is on disk: in the other order two Runs could wait for each other for ever.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Literal

from perstack.core.base.text import one_line
from perstack.core.base.usage import BudgetRefusal, Usage
from perstack.core.definitions.models import split_full_name
from perstack.core.definitions.skills import ToolSpec
from perstack.core.jobs.budget_ledger import Grant, is_uncharged
from perstack.core.messages.adaptations import (
    MAX_RUNGS,
    REFUSAL_STATUSES,
    Adaptations,
    names_in,
    new_adaptations,
    offered_tools,
    with_definitions,
)
from perstack.core.messages.messages import Message, generated_tokens, usable_reply
from perstack.core.runs.commands import Fail
from perstack.core.runs.decide import (
    budget_stop_event,
    events_of_command,
    rate_limit_pause_event,
    switch_back_event,
    switch_event,
)
from perstack.core.runs.events.generations import AdaptRequest, Retry
from perstack.core.runs.facts import ErrorInfo
from perstack.core.runs.retries_and_fallbacks import (
    GiveUp,
    PauseJob,
    after_failure,
    attempt_timeout_s,
    fallback_failure,
    is_primary_due,
    models_left,
    models_of,
    needs_no_retry,
    next_model,
)
from perstack.core.runs.state import Run
from perstack.engine.log.run_session import RunSession
from perstack.engine.plugins.providers_and_prices import OpenProvider, Prices, Turns
from perstack.engine.runs.job_budget import UnknownPrice
from perstack.engine.runs.job_drive import JobDrive
from perstack.errors import PerstackError, ProviderError
from perstack.ports.provider import Delta, Generation, GenerationRequest, Provider
from perstack.system.user import notice


class Attempts:
    """Attempts of one generation with one model. Time in the queue of the endpoint does not count as spent."""

    def __init__(self, session: RunSession, provider: Provider, turns: Turns) -> None:
        """Start the clock. The model and its remaining fallbacks share the remaining time equally."""
        now = time.monotonic()
        if session.first_attempt is None:
            session.first_attempt = now
        limits, models_remaining = session.run.limits, models_left(session.run)
        if models_remaining > 1 or session.run.uses_fallback:  # leave the fallback models their share
            left_ms = limits.retry_timeout - (now - session.first_attempt) * 1000
            limits = limits.model_copy(update={"retry_timeout": max(0, round(left_ms / models_remaining))})
        self.limits = limits
        self.has_fallback = models_remaining > 1
        self.attempt_began_at = now  # start of the latest attempt, by `time.monotonic`
        self._began = now
        self._session = session
        self.provider = provider
        self._turns = turns

    @property
    def spent_s(self) -> float:
        """Seconds since the first attempt began, without time in the queue."""
        return time.monotonic() - self._began

    async def attempt_once(self, request: GenerationRequest, show: Callable[[Delta], None], tokens: int) -> Generation:
        """Make one attempt of about `tokens` tokens, within its time limit, after the queue. Raises ProviderError."""
        queued_at = time.monotonic()

        async def work() -> Generation:
            self.attempt_began_at = time.monotonic()
            self._began += self.attempt_began_at - queued_at
            if self._session.first_attempt is not None:
                self._session.first_attempt += self.attempt_began_at - queued_at
            return await _try_once(self.provider, request, show, *attempt_timeout_s(self.limits, self.spent_s))

        generation = await self._turns.take(tokens, work)
        is_whole = generation.usage.input_tokens and generation.usage.output_tokens
        if is_whole or not self.provider.may_omit_usage:
            return generation
        usage = generation.usage.with_estimates(tokens, generated_tokens(generation.reply))
        return replace(generation, usage=usage)


async def reserve_or_stop(session: RunSession, reservation: Awaitable[Grant | BudgetRefusal]) -> Grant | None:
    """Await a reservation. If the budget or an unknown price forbids it, record that and return None."""
    try:
        grant = await reservation
    except UnknownPrice as error:
        await record_failure(session, error_info(error))
        return None
    if isinstance(grant, BudgetRefusal):
        session.add(budget_stop_event(grant, session.stamp))
        await session.flush()
        return None
    return grant


RetryDecision = GiveUp | Literal["tryAgain", "paused"]
"""Next step after a failed attempt: another attempt, the Job's pause, or giving up for a reason."""


async def retry_or_give_up(
    session: RunSession, error: ProviderError, attempt: int, attempts: Attempts, usage: Usage | None = None
) -> RetryDecision:
    """Record a failed attempt that may be repeated, and wait before the next one or pause the Job for the rate limit.

    `usage`: tokens of the failed attempt, if known. Record nothing if no attempt follows.
    """
    decision = after_failure(
        attempts.limits,
        is_retryable=error.is_retryable,
        retry_after_s=error.retry_after,
        attempt=attempt,
        spent_s=attempts.spent_s,
        has_fallback=attempts.has_fallback,
        is_hopeless=needs_no_retry(error_info(error)),
        jitter=random.random(),  # noqa: S311 - spreads load, no secret
    )
    if isinstance(decision, GiveUp):
        return decision
    info, delay_ms = error_info(error), round(decision.delay_s * 1000)
    is_reserved = session.run.spending.reserved is not None
    session.add(
        Retry(
            **session.stamp(),
            error=info,
            attempt=attempt,
            delay_ms=delay_ms,
            usage=usage,
            uncharged=releases_reservation(session.run, info) or (usage is not None and is_reserved),
            most_tries=attempts.limits.max_retries + 1,
            most_ms=attempts.limits.retry_timeout,
        )
    )
    if isinstance(decision, PauseJob):
        session.add(rate_limit_pause_event(session.clock.now() + delay_ms, session.stamp))
    await session.flush()
    if isinstance(decision, PauseJob):
        return "paused"
    await asyncio.sleep(decision.delay_s)
    return "tryAgain"


def releases_reservation(run: Run, error: ErrorInfo) -> bool:
    """Return True if a failed attempt releases its reservation, because it was certainly not charged."""
    return run.spending.reserved is not None and is_uncharged(error)


async def record_failure(session: RunSession, error: ErrorInfo, *, uncharged: bool = False) -> None:
    session.record_all(events_of_command(session.run, Fail(error, uncharged), session.stamp, 0))
    await session.flush()


def error_info(error: ProviderError) -> ErrorInfo:
    """Convert a provider's error to its recorded form, with the endpoint's message and status."""
    return ErrorInfo(
        name=error.name, message=str(error), status_code=error.status_code, is_retryable=error.is_retryable
    )


async def _try_once(
    provider: Provider, request: GenerationRequest, show: Callable[[Delta], None], timeout_s: float, is_last: bool
) -> Generation:
    try:
        async with asyncio.timeout(timeout_s):
            generation = await provider.generate(request, show)
            reply = usable_reply(generation.reply)
            return generation if reply is generation.reply else replace(generation, reply=reply)
    except TimeoutError as error:
        remedy = "" if is_last else "; give more time with `timeout`"
        message = f"no complete reply within {timeout_s * 1000:.0f} ms{remedy}"
        raise ProviderError(message, name="Timeout", is_retryable=True) from error
    except ProviderError:
        raise
    except Exception as error:  # a fault in a provider's code must not lose the Run
        raise ProviderError(one_line(f"{type(error).__name__}: {error}"), name="ProviderFault") from error


# Fallback models: opening the endpoint of the active model, and recording a switch.


async def open_endpoint(drive: JobDrive, session: RunSession) -> OpenProvider | None:
    """Open the endpoint of the active model. If that fails the Run, record it and return None.

    A fallback model without a key is skipped. Raises PerstackError if the first model's endpoint cannot be opened.
    """
    setup, prices = drive.setup, drive.prices
    while True:
        try:
            return setup.providers.for_run(session.run, setup.project, setup.overrides)
        except PerstackError as error:
            if not session.run.uses_fallback:
                raise
            info = ErrorInfo(name="MissingCredential", message=str(error))
        if not await switch_model(session, info, prices) and not await return_to_first_model(session, prices):
            await record_failure(session, fallback_failure(session.run, info.message))
            return None


async def switch_model(session: RunSession, error: ErrorInfo, prices: Prices, *, uncharged: bool = False) -> bool:
    """Record the switch to the next model after this error. Return False if no other model may succeed."""
    next_name = next_model(session.run)
    window = None if next_name is None else await prices.window(*split_full_name(next_name))
    event = switch_event(session.run, error, session.stamp, uncharged=uncharged, window=window)
    if event is None:
        return False
    session.add(event)
    await session.flush()
    return True


async def return_to_first_model(session: RunSession, prices: Prices) -> bool:
    """Record the switch back to the primary model. Return False if it is active, or its pause is not over."""
    if not is_primary_due(session.run, session.clock.now()):
        return False
    window = await prices.window(*split_full_name(models_of(session.run.start)[0]))
    session.add(switch_back_event(session.run, session.stamp, window))
    return True


# Adaptations: parts of a request that the endpoint accepts only in another form.


class RequestAdapter:
    """Repetitions of one generation's request, each with the parts adapted that the endpoint has refused."""

    def __init__(self, session: RunSession, provider: Provider, model: str) -> None:
        """Start without adaptations; `model` is the model that is asked, as `provider/model`."""
        self._session, self._provider, self._model = session, provider, model
        self._adaptations_made = 0

    async def adapt_after(self, request: GenerationRequest, error: ProviderError) -> GenerationRequest | None:
        """Record how the parts that a refusal names are sent from now on, and return the request to repeat.

        Return None if no named part could be sent in another form, or after `MAX_RUNGS` refusals.
        """
        adaptations = () if self._adaptations_made >= MAX_RUNGS else adaptations_after(self._provider, request, error)
        if not adaptations:
            return None
        self._adaptations_made += 1
        session, info = self._session, error_info(error)
        session.add(
            AdaptRequest(
                **session.stamp(),
                model=self._model,
                adaptations=adaptations,
                error=info,
                uncharged=releases_reservation(session.run, info),
            )
        )
        await session.flush()
        return adapted_request(request, adaptations)


def adaptations_after(provider: Provider, request: GenerationRequest, error: ProviderError) -> Adaptations:
    """Return the adaptations for the parts that a refusal names, as the provider reads it; none for other errors."""
    if error.status_code not in REFUSAL_STATUSES:
        return ()
    try:
        needed = with_definitions(provider.adapt(request, error), request.tools)
        return new_adaptations(request.adaptations, needed)
    except Exception as fault:  # noqa: BLE001 - a fault in a provider's code must not replace the endpoint's own error
        notice(one_line(f"the provider could not read the refusal: {type(fault).__name__}: {fault}"))
        return ()


def adapted_request(request: GenerationRequest, adaptations: Adaptations) -> GenerationRequest:
    """Return the request with further adaptations, and without the tools that these omit."""
    all_adaptations = (*request.adaptations, *adaptations)
    refused_tools = names_in(all_adaptations, "providerTool")
    return replace(
        request,
        adaptations=all_adaptations,
        tools=offered_tools(tuple(request.tools), all_adaptations),
        provider_tools=tuple(tool for tool in request.provider_tools if tool.name not in refused_tools),
    )


def record_learned_adaptations(
    drive: JobDrive, session: RunSession, model: str, tools: Iterable[ToolSpec] = (), messages: Iterable[Message] = ()
) -> None:
    """Record the adaptations that other Runs of the Job have learned for a model, before its endpoint refuses again."""
    adaptations = drive.missing_adaptations(session.run, model, tools, messages)
    if adaptations:
        session.add(AdaptRequest(**session.stamp(), model=model, adaptations=adaptations))
