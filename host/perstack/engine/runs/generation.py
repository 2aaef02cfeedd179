"""One generation, with its retries and its time limit."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count

from perstack.core.base import JsonObject
from perstack.core.commands import Generate
from perstack.core.digests import KeptTools, request_digest
from perstack.core.events import FinishGeneration, Retry, StartGeneration, StreamReasoning, StreamText, WaitForEndpoint
from perstack.core.instruction import whole_instruction
from perstack.core.messages import ExpertMessage, ToolCallPart
from perstack.core.policy.budget import Grant, is_reported, is_uncharged, over
from perstack.core.runs.context import OVERFLOW, learned_window, load, policy_of, too_large
from perstack.engine.blobs import JobBlobs
from perstack.engine.catalogue import Catalogue
from perstack.engine.emit import Emitter
from perstack.engine.gates import OnWait, Waiting
from perstack.engine.notices import notice
from perstack.engine.prices import Prices
from perstack.engine.providers import Endpoint
from perstack.engine.session import Session
from perstack.engine.spending import Spending
from perstack.engine.switching import switched
from perstack.engine.tries import Trying, error_info, fail, granted_or_stopped, tried_again
from perstack.errors import ProviderError
from perstack.ports.provider import Delta, Generation, GenerationRequest, plays_recording


async def generate(
    session: Session,
    command: Generate,
    endpoint: Endpoint,
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
        return await _begin(session, command, catalogue, tools, endpoint.reply_settings, spending)

    if not await begin():
        return
    run = session.run
    request = GenerationRequest(
        model=run.model,
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
        place=session.place if plays_recording(endpoint.provider) else None,
        memo=session.memo,
    )
    show = _show_deltas(session, command.step, emit)
    prices.prepare(run.provider)
    with Trying(session, endpoint, _show_wait(session, command.step, emit)) as trying:
        again = begin if spending is not None else None  # each try may be charged for
        generation = await _reply(session, request, show, trying, prices, again)
    if generation is None:
        return
    session.first_try = None
    usage, window = await prices.known(run.provider, request.model, generation)
    reserved = session.run.reserved
    above = over(usage, reserved)
    if above is not None:
        dollars = "" if above.cost_usd is None else f", ${above.cost_usd:.4f}"
        what = f"{above.tokens:,} tokens{dollars}"
        notice(f"{run.provider} has used more than could be expected of {run.id}: {what}")
    session.note(
        FinishGeneration(
            **session.stamp(),
            usage=usage,
            reply=_with_unique_ids(generation.reply, final=command.final, step=command.step).contents,
            finish_reason=generation.finish_reason,
            context_window=None if window == run.context_window else window,
            duration_ms=round((time.monotonic() - trying.try_began) * 1000),
            unreported=reserved is not None
            and not is_reported(usage, reserved, has_reply=bool(generation.reply.contents)),
            over_reserved=above,
        )
    )


async def _reply(
    session: Session,
    request: GenerationRequest,
    show: Callable[[Delta], None],
    trying: Trying,
    prices: Prices,
    begin: Callable[[], Awaitable[bool]] | None,
) -> Generation | None:
    """What the model replied, in as many tries as it takes; None if it did not, and what becomes of that is recorded.

    `begin` reserves what a further try may cost; None where there is no budget.
    """
    for attempt in count(1):
        try:
            return await trying.once(request, show, load(session.run))
        except ProviderError as error:
            if not await _goes_on(session, error, attempt, trying, prices):
                return None
            if begin is not None:
                if not await begin():
                    return None
                request = replace(request, max_tokens=session.run.max_tokens)
    raise AssertionError("count never ends")


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
        granted = await granted_or_stopped(session, spending.reserve(session.run, tools, instruction, settings))
        if granted is None:
            return False
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


async def _goes_on(session: Session, error: ProviderError, attempt: int, trying: Trying, prices: Prices) -> bool:
    """Record what becomes of a try that failed, and wait if there is another of the same model."""
    if error.name == OVERFLOW and policy_of(session.run) is not None:
        session.first_try = None
        await _overflowed(session, error, attempt)
        return False
    decision = await tried_again(session, error, attempt, trying)
    if isinstance(decision, bool):
        return decision
    info = error_info(error)
    if await switched(session, info, prices, uncharged=session.run.reserved is not None and is_uncharged(info)):
        return False
    session.first_try = None
    reason = f"{info.message} ({decision.reason})" if decision.reason else info.message
    uncharged = session.run.reserved is not None and is_uncharged(info)
    await fail(session, info.model_copy(update={"message": reason}), uncharged=uncharged)
    return False


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


def _show_wait(session: Session, step: int, emit: Emitter) -> OnWait:
    def show(waiting: Waiting) -> None:
        emit.display(
            WaitForEndpoint(
                id=f"{session.next_id}-wait",
                timestamp=session.clock.now(),
                job_id=session.ref.job_id,
                run_id=session.ref.run_id,
                expert_key=session.expert_key,
                step_number=step,
                provider=session.run.provider,
                reason=waiting.reason,
                ahead=waiting.ahead,
                delay_ms=None if waiting.seconds is None else round(waiting.seconds * 1000),
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
