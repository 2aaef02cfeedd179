"""One generation, with its retries and its time limit."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count

from perstack.core.base import JsonObject
from perstack.core.commands import Fail, Generate
from perstack.core.definitions import Limits
from perstack.core.digests import KeptTools, request_digest
from perstack.core.events import FinishGeneration, Retry, StartGeneration, StreamReasoning, StreamText
from perstack.core.instruction import whole_instruction
from perstack.core.messages import ExpertMessage, ToolCallPart
from perstack.core.policy.budget import Exceeded, Grant, is_reported, is_uncharged, over
from perstack.core.replies import usable_reply
from perstack.core.retry import GiveUp, Pause, after_failure, time_for_try
from perstack.core.run_facts import ErrorInfo
from perstack.core.runs.context import OVERFLOW, learned_window, policy_of, too_large
from perstack.core.runs.decide import noted, paused_for_limit, stopped_by_budget
from perstack.core.usage import Charge, Usage
from perstack.engine.blobs import JobBlobs
from perstack.engine.catalogue import Catalogue
from perstack.engine.emit import Emitter
from perstack.engine.notices import notice
from perstack.engine.prices import Prices
from perstack.engine.session import Session
from perstack.engine.spending import Spending, UnknownPrice
from perstack.errors import ProviderError
from perstack.ports.provider import Delta, Generation, GenerationRequest, Provider, reply_settings


async def generate(
    session: Session,
    command: Generate,
    provider: Provider,
    catalogue: Catalogue,
    blobs: JobBlobs,
    emit: Emitter,
    prices: Prices,
    spending: Spending | None = None,
) -> None:
    """Call the model until it replies, or until trying again is no use now, or costs too much; each is recorded."""
    tools = catalogue.kept(session.run.messages)
    await blobs.keep(tools.sha256, tools.blob)

    async def begin() -> bool:
        return await _begin(session, command, catalogue, tools, reply_settings(provider), spending)

    if not await begin():
        return
    run = session.run
    request = GenerationRequest(
        model=run.start.model,
        instruction=run.instruction,
        messages=run.messages,
        tools=tools.specs,
        blobs=blobs.get,
        allow_tools=not command.final,
        reasoning_budget=run.start.reasoning_budget,
        expert_key=run.start.expert_key,
        run_id=run.id,
        step=command.step,
        max_tokens=run.max_tokens,
        output=run.schema,
        memo=session.memo,
    )
    show = _show_deltas(session, command.step, emit)
    prices.prepare(run.start.provider)
    started = time.monotonic()
    for attempt in count(1):
        began = time.monotonic()
        try:
            generation = await try_once(provider, request, show, run.limits, began - started)
        except ProviderError as error:
            if not await _goes_on(session, error, attempt, time.monotonic() - started):
                return
            if spending is not None:  # each try may be charged for
                if not await begin():
                    return
                request = replace(request, max_tokens=session.run.max_tokens)
            continue
        usage, window = await prices.known(run.start.provider, request.model, generation)
        reserved = session.run.reserved
        above = over(usage, reserved)
        if above is not None:
            dollars = "" if above.cost_usd is None else f", ${above.cost_usd:.4f}"
            what = f"{above.tokens:,} tokens{dollars}"
            notice(f"{run.start.provider} has used more than could be expected of {run.id}: {what}")
        session.note(
            FinishGeneration(
                **session.stamp(),
                usage=usage,
                reply=_with_unique_ids(generation.reply, final=command.final, step=command.step).contents,
                finish_reason=generation.finish_reason,
                context_window=None if window == run.context_window else window,
                duration_ms=round((time.monotonic() - began) * 1000),
                unreported=reserved is not None and not _is_reported(usage, generation, reserved),
                over_reserved=above,
            )
        )
        return


def _is_reported(usage: Usage, generation: Generation, reserved: Charge) -> bool:
    is_priced = reserved.cost_usd is None or usage.cost_usd is not None
    return is_priced and is_reported(usage, has_reply=bool(generation.reply.contents))


async def _begin(
    session: Session,
    command: Generate,
    catalogue: Catalogue,
    tools: KeptTools,
    settings: JsonObject,
    spending: Spending | None,
) -> bool:
    """Record that a try begins, with what it may cost; or that no budget allows it, or that it cannot be said."""
    granted: Grant | None = None
    if spending is not None:
        instruction = whole_instruction(session.run.start.instruction, catalogue.guidance)
        try:
            found = await spending.reserve(session.run, tools, instruction, settings)
        except UnknownPrice as error:
            await fail(session, error_info(error))
            return False
        if isinstance(found, Exceeded):
            session.note(stopped_by_budget(found, session.stamp))
            await session.flush()
            return False
        granted = found
    session.note(_started(session, command, catalogue, tools.digest, settings, granted))
    await session.flush()
    return True


def _started(
    session: Session,
    command: Generate,
    catalogue: Catalogue,
    tools_digest: str,
    settings: JsonObject,
    granted: Grant | None,
) -> StartGeneration:
    run = session.run
    own = settings.get("maxTokens")
    is_lower = granted is not None and not (isinstance(own, int) and own <= granted.max_tokens)
    is_new = catalogue.guidance != run.guidance
    event = StartGeneration(
        **session.stamp(step=command.step),
        final=command.final,
        guidance=catalogue.guidance if is_new else None,
        unreachable=catalogue.unreachable if is_new else {},
        provider_settings=None if settings == run.provider_settings else settings,
        tools_digest=tools_digest,
        max_tokens=granted.max_tokens if granted is not None and is_lower else None,
        reserved=None if granted is None else granted.amount.as_charge(),
    )
    return event.model_copy(update={"request_digest": request_digest(run, event)})


async def _goes_on(session: Session, error: ProviderError, attempt: int, spent: float) -> bool:
    """Record what becomes of a try that failed, and wait if there is another."""
    if error.name == OVERFLOW and policy_of(session.run) is not None:
        await _overflowed(session, error, attempt)
        return False
    decision = after_failure(
        session.run.limits,
        is_retryable=error.is_retryable,
        retry_after=error.retry_after,
        attempt=attempt,
        spent=spent,
        jitter=random.random(),  # noqa: S311 - spreads load, no secret
    )
    info = error_info(error)
    uncharged = session.run.reserved is not None and is_uncharged(info)
    if isinstance(decision, GiveUp):
        reason = f"{info.message} ({decision.reason})" if decision.reason else info.message
        await fail(session, info.model_copy(update={"message": reason}), uncharged=uncharged)
        return False
    delay = round(decision.delay * 1000)
    session.note(Retry(**session.stamp(), error=info, attempt=attempt, delay_ms=delay, uncharged=uncharged))
    if isinstance(decision, Pause):
        session.note(paused_for_limit(session.clock.now() + round(decision.delay * 1000), session.stamp))
        await session.flush()
        return False
    await session.flush()
    await asyncio.sleep(decision.delay)
    return True


async def _overflowed(session: Session, error: ProviderError, attempt: int) -> None:
    """Record that what was sent did not fit. It is sent once more, after content was left out; then the Run fails."""
    run, info = session.run, error_info(error)
    uncharged = run.reserved is not None and is_uncharged(info)
    if run.context.is_relieved:
        await fail(session, too_large(run, info), uncharged=uncharged)
        return
    window = learned_window(run, error.context_window)
    session.note(
        Retry(**session.stamp(), error=info, attempt=attempt, delay_ms=0, uncharged=uncharged, overflow=window)
    )
    await session.flush()


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


def _show_deltas(session: Session, step: int, emit: Emitter) -> Callable[[Delta], None]:
    number = 0

    def show(delta: Delta) -> None:
        nonlocal number
        number += 1
        kind = StreamText if delta.kind == "text" else StreamReasoning
        emit.display(
            kind(
                id=f"{session.next_id}-{number}",
                timestamp=session.clock.now(),
                job_id=session.ref.job_id,
                run_id=session.ref.run_id,
                expert_key=session.expert_key,
                step_number=step,
                delta=delta.text,
            )
        )

    return show


def _with_unique_ids(reply: ExpertMessage, *, final: bool, step: int) -> ExpertMessage:
    """Calls without an id, or with one that is taken, get one of ours; a final reply has no calls."""
    calls = reply.tool_calls
    if final and calls:
        return ExpertMessage(contents=tuple(part for part in reply.contents if not isinstance(part, ToolCallPart)))
    ids = [call.tool_call_id for call in calls]
    if all(ids) and len(set(ids)) == len(ids):
        return reply
    seen: set[str] = set()
    contents = list(reply.contents)
    for index, part in enumerate(contents):
        if not isinstance(part, ToolCallPart):
            continue
        if not part.tool_call_id or part.tool_call_id in seen:
            contents[index] = part = part.model_copy(update={"tool_call_id": f"call_{step}_{index}"})
        seen.add(part.tool_call_id)
    return ExpertMessage(contents=tuple(contents))
