"""Ask a model for one reply, in as many attempts (attempts.py) as needed, and record each outcome.

`startGeneration`, with the most that the reply may cost, is flushed before the model is called. A reply that is no
answer counts as a failed attempt. An overflow is recorded with the window that it reveals, so that the next command
makes room (core/runs/context_window.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Literal

from perstack.core.base.records import JsonObject
from perstack.core.definitions.instruction import whole_instruction
from perstack.core.definitions.tool_definitions import unrecorded_definitions
from perstack.core.jobs.budget_ledger import Grant, excess_over, is_reported
from perstack.core.messages.adaptations import names_in, offered_tools
from perstack.core.messages.messages import ExpertMessage, ProviderToolPart, ToolCallPart
from perstack.core.runs.commands import Generate
from perstack.core.runs.context_window import (
    OVERFLOW,
    next_request_tokens,
    policy_of,
    too_large,
    window_after_overflow,
    window_after_refusal,
)
from perstack.core.runs.display_events import StreamReasoning, StreamText, WaitForEndpoint, WaitReason
from perstack.core.runs.events.generations import (
    CONTINUATION,
    FinishGeneration,
    Retry,
    StartGeneration,
    empty_reply,
    may_continue,
)
from perstack.core.runs.facts import ErrorInfo, EventStamp
from perstack.core.runs.request_digest import StoredTools, request_digest
from perstack.core.runs.retries_and_fallbacks import GiveUp
from perstack.core.runs.state import Phase, Run
from perstack.engine.log.run_session import Emitter, RunSession
from perstack.engine.plugins.provider_tools import ProviderToolOffer, offer_tools
from perstack.engine.plugins.providers_and_prices import OnWait, Prices
from perstack.engine.plugins.tool_catalogue import Catalogue
from perstack.engine.runs.attempts import (
    Attempts,
    RequestAdapter,
    error_info,
    record_failure,
    record_learned_adaptations,
    releases_reservation,
    reserve_or_stop,
    retry_or_give_up,
    switch_model,
)
from perstack.engine.runs.input_protocols import MEDIA
from perstack.engine.runs.job_drive import RunDrive
from perstack.engine.runs.playback_protocol import playback_of
from perstack.errors import ProviderError
from perstack.ports.provider import Delta, Generation, GenerationRequest
from perstack.system.user import notice


async def generate(run_drive: RunDrive, command: Generate) -> None:
    """Call the model until it replies, or another attempt is useless, paused or over budget. Record each outcome."""
    session, drive, endpoint = run_drive.session, run_drive.drive, run_drive.endpoint
    tools = run_drive.catalogue.stored_tools(session.run.messages)
    await drive.blobs.keep(tools.sha256, tools.blob)
    expert = session.run.start.expert
    # most Experts have no provider tools, and rules are costly
    rules = session.run.rules if expert.provider_tools else ()

    def offer() -> ProviderToolOffer:
        refused = names_in(session.run.adaptations, "providerTool") if expert.provider_tools else frozenset[str]()
        return offer_tools(expert, endpoint.name, endpoint.provider.tools, rules, refused)

    async def begin() -> bool:
        return await _record_start(run_drive, command, tools, offer())

    record_learned_adaptations(drive, session, session.run.active_model, tools.specs, session.run.messages)
    if session.run.messages.blobs(len(session.run.messages)):
        await drive.setup.parts.get(MEDIA).fit_request(session, endpoint.provider, drive.blobs)
    if not await begin():
        return
    await asyncio.sleep(0)  # a Run whose model and tools never wait must not keep others from running
    run = session.run
    request = GenerationRequest(
        model=run.model,
        instruction=run.instruction,
        messages=run.messages,
        tools=offered_tools(tools.specs, run.adaptations),
        blobs=drive.blobs.get,
        allow_tools=not command.final,
        reasoning_budget=run.start.reasoning_budget,
        expert_key=run.start.expert_key,
        run_id=run.id,
        step=command.step,
        max_tokens=run.reply_token_limit,
        provider_tools=offer().tools,
        output=run.result_schema,
        place=session.place if run_drive.plays_recording else None,
        adaptations=run.adaptations,
        memo=session.memo,
    )
    show = _delta_display(session, command.step, drive.emit)
    drive.prices.prepare(run.provider)
    with endpoint.turns(_wait_display(session, command.step, drive.emit)) as turns:
        attempts = Attempts(session, endpoint.provider, turns)
        is_reserved = run_drive.budget is not None
        reply = await _generate_reply(
            session, request, show, attempts, drive.prices, begin, is_reserved=is_reserved, tools_bytes=len(tools.blob)
        )
    if reply is None:
        return
    generation, problem = reply
    session.first_attempt = None
    if not run_drive.plays_recording:
        generation = _drop_unoffered(generation, offer(), session.run)
    usage, window = await drive.prices.cost_and_window(run.provider, request.model, generation)
    reserved = session.run.spending.reserved
    excess = excess_over(usage, reserved)
    is_continued = not generation.is_cut_early and may_continue(run, generation.reply, generation.finish_reason)
    if is_continued and run_drive.plays_recording:  # a recording does not say why a reply was not continued
        is_continued = not playback_of(run_drive).is_last_step(run_drive, command.step)
    if excess is not None:
        dollars = "" if excess.cost_usd is None else f", ${excess.cost_usd:.4f}"
        amount = f"{excess.tokens:,} tokens{dollars}"
        notice(f"{run.provider} has used more for {run.id} than was reserved: {amount}")
    session.add(
        FinishGeneration(
            **session.stamp(),
            usage=usage,
            reply=_normalize_calls(generation.reply, final=command.final, step=command.step).contents,
            finish_reason=generation.finish_reason,
            context_window=None if window == run.context.window else window,
            duration_ms=round((time.monotonic() - attempts.attempt_began_at) * 1000),
            unreported=reserved is not None
            and not is_reported(usage, reserved, has_reply=bool(generation.reply.contents)),
            over_reserved=excess,
            problem=problem,
            continuation=CONTINUATION if is_continued else "",
        )
    )


async def _generate_reply(
    session: RunSession,
    request: GenerationRequest,
    show: Callable[[Delta], None],
    attempts: Attempts,
    prices: Prices,
    begin: Callable[[], Awaitable[bool]],
    *,
    is_reserved: bool,
    tools_bytes: int,
) -> tuple[Generation, ErrorInfo | None] | None:
    """Return the model's reply after as many attempts as needed, and the reason if it is not a usable answer.

    Return None without a reply, after recording why. `begin` is called again before an attempt whose cost is reserved,
    or whose request has changed.
    """
    attempt = 1
    adapter = RequestAdapter(session, attempts.provider, session.run.active_model)
    while True:
        adapted_request: GenerationRequest | None = None
        try:
            generation = await attempts.attempt_once(request, show, next_request_tokens(session.run, tools_bytes))
        except ProviderError as error:
            adapted_request = await adapter.adapt_after(request, error)
            if adapted_request is not None:
                request = adapted_request
            elif await _retry_switch_or_fail(session, error, attempt, attempts, prices):
                attempt += 1
            else:
                return None
        else:
            problem = await _problem_after_retries(session, request, generation, attempt, attempts, prices)
            if problem == "paused":
                return None
            if problem != "tryAgain":
                return generation, problem
            attempt += 1
        if (is_reserved or adapted_request is not None) and not await begin():
            return None
        request = replace(request, max_tokens=session.run.reply_token_limit)


async def _problem_after_retries(
    session: RunSession,
    request: GenerationRequest,
    generation: Generation,
    attempt: int,
    attempts: Attempts,
    prices: Prices,
) -> ErrorInfo | Literal["tryAgain", "paused"] | None:
    """Return None if the reply is an answer, as a played one always is, or what follows a reply that is not.

    That is another attempt, a pause of the Job, or the problem of a reply that nothing can follow.
    """
    is_played = request.place is not None
    problem = empty_reply(generation.reply, generation.finish_reason, final=not request.allow_tools)
    if problem is None or is_played:
        return None
    usage, _ = await prices.cost_and_window(session.run.provider, request.model, generation)
    reserved = session.run.spending.reserved
    is_known = reserved is None or is_reported(usage, reserved, has_reply=bool(generation.reply.contents))
    error = ProviderError(problem.message, name=problem.name, is_retryable=True)
    decision = await retry_or_give_up(session, error, attempt, attempts, usage if is_known else None)
    if not isinstance(decision, GiveUp):
        return decision
    message = f"{problem.message} ({decision.reason})" if decision.reason else problem.message
    return problem.model_copy(update={"message": message})


_MAX_NAME_CHARS, _MAX_LISTED = 40, 5  # characters and names of tools that were not offered, in a notice


def _drop_unoffered(generation: Generation, offer: ProviderToolOffer, run: Run) -> Generation:
    """Drop uses of provider tools that were not offered, with a notice, because no rule has allowed them."""
    names = {tool.name for tool in offer.tools}
    unoffered_names = dict.fromkeys(
        use.tool_name for use in generation.reply.provider_tools if use.tool_name not in names
    )
    if not unoffered_names:
        return generation
    listing = ", ".join(name[:_MAX_NAME_CHARS] for name in list(unoffered_names)[:_MAX_LISTED])
    notice(f"{run.provider} reports uses of {listing} for {run.id}, which were not offered; they are left out")
    parts = generation.reply.contents
    contents = tuple(
        part for part in parts if not (isinstance(part, ProviderToolPart) and part.tool_name in unoffered_names)
    )
    return replace(generation, reply=ExpertMessage(contents=contents))


async def _record_start(run_drive: RunDrive, command: Generate, tools: StoredTools, offer: ProviderToolOffer) -> bool:
    """Reserve the cost of an attempt and write its `startGeneration`. Return False if the budget forbids it."""
    session, grant = run_drive.session, None
    settings = {**run_drive.endpoint.reply_settings, **offer.settings}
    if run_drive.budget is not None:
        instruction = whole_instruction(session.run.start.instruction, run_drive.catalogue.guidance)
        reservation = run_drive.budget.reserve(session.run, tools, instruction, settings, offer.tools)
        grant = await reserve_or_stop(session, reservation)
        if grant is None:
            return False
    # Parallel Runs may have taken the last steps since the command was decided. No await may follow before the event is
    # recorded, or they could do so again; the next pending command is then the stop at the limit.
    if session.run.phase is Phase.READY and run_drive.allowance.steps_left == 0:
        return False
    event = _start_event(session, command, run_drive.catalogue, tools.digest, settings, grant)
    if offer.withheld_reasons != session.withheld_reasons:
        session.withheld_reasons = offer.withheld_reasons
        event = event.model_copy(update={"unreachable": {**event.unreachable, **offer.withheld_reasons}})
    session.add(event)
    if grant is None:
        await session.flush_soon()  # the sync overlaps with the generation, which changes nothing outside
    else:
        await session.flush()  # money may be spent only after the reservation is on disk
    return True


def _start_event(
    session: RunSession,
    command: Generate,
    catalogue: Catalogue,
    tools_digest: str,
    settings: JsonObject,
    grant: Grant | None,
) -> StartGeneration:
    run = session.run
    own_max_tokens = settings.get("maxTokens")
    lowers_limit = grant is not None and not (isinstance(own_max_tokens, int) and own_max_tokens <= grant.max_tokens)
    is_new_guidance = catalogue.guidance != run.guidance
    event = StartGeneration(
        **session.stamp(step=command.step),
        final=command.final,
        guidance=catalogue.guidance if is_new_guidance else None,
        unreachable=catalogue.unreachable if is_new_guidance else {},
        provider_settings=None if settings == run.provider_settings else settings,
        tools_digest=tools_digest,
        max_tokens=grant.max_tokens if grant is not None and lowers_limit else None,
        reserved=None if grant is None else grant.amount.as_charge(),
        definitions=unrecorded_definitions(catalogue.definitions, run.definitions),
    )
    return event.model_copy(update={"request_digest": request_digest(run, event)})


async def _retry_switch_or_fail(
    session: RunSession, error: ProviderError, attempt: int, attempts: Attempts, prices: Prices
) -> bool:
    """Return True if another attempt with this model may follow. Otherwise record a pause, a switch or a failure."""
    if error.name == OVERFLOW and policy_of(session.run) is not None:
        session.first_attempt = None
        await _record_overflow(session, error, attempt, window_after_overflow(session.run, error.context_window))
        return False
    decision = await retry_or_give_up(session, error, attempt, attempts)
    if not isinstance(decision, GiveUp):
        return decision == "tryAgain"
    info = error_info(error)
    if await switch_model(session, info, prices, uncharged=releases_reservation(session.run, info)):
        return False
    session.first_attempt = None
    supposed_window = window_after_refusal(session.run, info) if error.may_not_fit else None
    if supposed_window is not None:
        await _record_overflow(session, error, attempt, supposed_window)
        return False
    detail = decision.reason or ("`compaction` is off, so no room is made" if error.name == OVERFLOW else "")
    reason = f"{info.message} ({detail})" if detail else info.message
    await record_failure(
        session, info.model_copy(update={"message": reason}), uncharged=releases_reservation(session.run, info)
    )
    return False


async def _record_overflow(session: RunSession, error: ProviderError, attempt: int, window: int) -> None:
    """Record that a request exceeds `window` tokens, so that room is made; fail the Run if none is left."""
    run, info = session.run, error_info(error)
    uncharged = releases_reservation(run, info)
    if run.context.is_relieved:
        await record_failure(session, too_large(run, info), uncharged=uncharged)
        return
    session.add(Retry(**session.stamp(), error=info, attempt=attempt, delay_ms=0, uncharged=uncharged, overflow=window))
    await session.flush()


def _delta_display(session: RunSession, step: int, emit: Emitter) -> Callable[[Delta], None]:
    number = 0

    def show(delta: Delta) -> None:
        nonlocal number
        number += 1
        session.show_written()
        kind = StreamText if delta.kind == "text" else StreamReasoning
        emit.display(kind(**_display_stamp(session, step, number), delta=delta.text))

    return show


def _display_stamp(session: RunSession, step: int, name: int | str) -> EventStamp:
    stamp = session.stamp(step=step)
    stamp["id"] += f"-{name}"
    return stamp


def _wait_display(session: RunSession, step: int, emit: Emitter) -> OnWait:
    def show(reason: WaitReason, ahead: int, seconds: float | None) -> None:
        session.show_written()
        emit.display(
            WaitForEndpoint(
                **_display_stamp(session, step, "wait"),
                provider=session.run.provider,
                reason=reason,
                ahead=ahead,
                delay_ms=None if seconds is None else round(seconds * 1000),
            )
        )

    return show


def _normalize_calls(reply: ExpertMessage, *, final: bool, step: int) -> ExpertMessage:
    """Return the reply with unique, non-empty ids of calls, and without calls in a final reply."""
    calls = reply.tool_calls
    if final and calls:
        return ExpertMessage(contents=tuple(part for part in reply.contents if not isinstance(part, ToolCallPart)))
    ids = [tool_call_part.tool_call_id for tool_call_part in calls]
    if all(ids) and len(set(ids)) == len(ids) and all(part.id for part in reply.provider_tools):
        return reply
    seen_ids: set[str] = set()
    contents = list(reply.contents)
    for index, part in enumerate(contents):
        if isinstance(part, ProviderToolPart) and not part.id:
            contents[index] = part.model_copy(update={"id": f"use_{step}_{index}"})
        if not isinstance(part, ToolCallPart):
            continue
        if not part.tool_call_id or part.tool_call_id in seen_ids:
            contents[index] = part = part.model_copy(update={"tool_call_id": f"call_{step}_{index}"})
        seen_ids.add(part.tool_call_id)
    return ExpertMessage(contents=tuple(contents))
