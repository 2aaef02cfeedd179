"""Ask a model for one reply, with retries, a time limit and fallback models.

Each try flushes `startGeneration`, with the most that it may cost, before the model is called. `after_failure`
(core/runs/retries_and_fallbacks.py) decides what follows a failed try. A try that the endpoint refuses because of one
part of the request is repeated with that part adapted (core/messages/adaptations.py), which is no retry of the policy.
compaction.py uses these tries for summaries too.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from perstack.core.base.records import JsonObject
from perstack.core.base.text import one_line
from perstack.core.base.usage import Exceeded, Usage
from perstack.core.definitions.instruction import whole_instruction
from perstack.core.definitions.models import parts_of
from perstack.core.definitions.skills import ToolSpec
from perstack.core.definitions.tool_definitions import unrecorded
from perstack.core.jobs.budget import Grant, excess_over, is_reported, is_uncharged
from perstack.core.messages.adaptations import (
    MAX_RUNGS,
    REFUSAL_STATUSES,
    Adaptations,
    names_in,
    new_adaptations,
    offered_tools,
    with_definitions,
)
from perstack.core.messages.messages import (
    ExpertMessage,
    Message,
    ProviderToolPart,
    ToolCallPart,
    generated_tokens,
    usable_reply,
)
from perstack.core.runs.commands import Fail, Generate
from perstack.core.runs.context import OVERFLOW, load, policy_of, too_large, window_after_overflow, window_after_refusal
from perstack.core.runs.decide import (
    budget_stop_event,
    events_of_command,
    rate_limit_pause_event,
    switch_back_event,
    switch_event,
)
from perstack.core.runs.display_events import StreamReasoning, StreamText, WaitForEndpoint
from perstack.core.runs.events import AdaptRequest, FinishGeneration, Retry, StartGeneration
from perstack.core.runs.events.generations import CONTINUATION, empty_reply, may_continue
from perstack.core.runs.facts import ErrorInfo, EventStamp
from perstack.core.runs.request_digest import KeptTools, request_digest
from perstack.core.runs.retries_and_fallbacks import (
    GiveUp,
    PauseJob,
    after_failure,
    cannot_stand_in,
    is_due_back,
    models_left,
    models_of,
    needs_no_retry,
    next_model,
    time_for_try,
)
from perstack.core.runs.state import Run
from perstack.engine.log.run_session import Emitter, RunSession
from perstack.engine.plugins.pacing import OnWait, Waiting, run_in_turn
from perstack.engine.plugins.provider_tools import ProviderToolOffer, offer_tools
from perstack.engine.plugins.providers import OpenProvider, Prices
from perstack.engine.plugins.tool_catalogue import Catalogue
from perstack.engine.runs.budget import UnknownPrice
from perstack.engine.runs.inputs import MEDIA
from perstack.engine.runs.job_context import JobContext, RunContext
from perstack.engine.runs.playback import playback_of
from perstack.errors import PerstackError, ProviderError
from perstack.ports.provider import Delta, Generation, GenerationRequest, Provider
from perstack.system.user import notice

# Tries of a generation, for a reply or a summary: what one may cost, its time limit, and how a failure is handled.


class Attempts:
    """The tries of one generation with one model. Time in the endpoint's queue does not count against the limit."""

    def __init__(self, session: RunSession, endpoint: OpenProvider, on_wait: OnWait = lambda waiting: None) -> None:
        """Start the clock. Each fallback model gets an equal share of the time that is left."""
        now = time.monotonic()
        if session.first_try is None:
            session.first_try = now
        limits, models_remaining = session.run.limits, models_left(session.run)
        if models_remaining > 1 or session.run.stands_in:  # fallback models get their share
            time_left = limits.retry_timeout - (now - session.first_try) * 1000
            limits = limits.model_copy(update={"retry_timeout": max(0, round(time_left / models_remaining))})
        self.limits = limits
        self.has_stand_in = models_remaining > 1
        self.try_began = now  # start of the latest try, by `time.monotonic`
        self._began = now
        self._session = session
        self.provider = endpoint.provider
        self.ticket = endpoint.place(on_wait)  # for the endpoint's queue, which the caller enters

    @property
    def spent(self) -> float:
        """Seconds since the first try began, without those in the queue."""
        return time.monotonic() - self._began

    async def once(self, request: GenerationRequest, show: Callable[[Delta], None], tokens: int) -> Generation:
        """Make one try, of about `tokens` tokens, when the queue allows it, in its time limit. Raises ProviderError."""
        asked_at = time.monotonic()

        async def work() -> Generation:
            self.try_began = time.monotonic()
            self._began += self.try_began - asked_at
            if self._session.first_try is not None:
                self._session.first_try += self.try_began - asked_at
            return await _try_once(self.provider, request, show, *time_for_try(self.limits, self.spent))

        generation = await run_in_turn(self.ticket, tokens, work)
        is_whole = generation.usage.input_tokens and generation.usage.output_tokens
        if is_whole or not self.provider.may_omit_usage:
            return generation
        usage = generation.usage.completed(tokens, generated_tokens(generation.reply))
        return replace(generation, usage=usage)


async def reserve_or_stop(session: RunSession, reserving: Awaitable[Grant | Exceeded]) -> Grant | None:
    """Await a reservation. Returns None if no budget allows it or the price is unknown, and records that."""
    try:
        grant = await reserving
    except UnknownPrice as error:
        await fail(session, error_info(error))
        return None
    if isinstance(grant, Exceeded):
        session.record(budget_stop_event(grant, session.stamp))
        await session.flush()
        return None
    return grant


async def retry_or_give_up(
    session: RunSession, error: ProviderError, attempt: int, attempts: Attempts, usage: Usage | None = None
) -> GiveUp | bool:
    """Record a failed try, wait, and return True if there may be another. `usage`: what it has used, if known.

    Returns False if the Job pauses for the rate limit, which is recorded, or the reason why there is no further try.
    """
    decision = after_failure(
        attempts.limits,
        is_retryable=error.is_retryable,
        retry_after=error.retry_after,
        attempt=attempt,
        spent=attempts.spent,
        has_stand_in=attempts.has_stand_in,
        is_hopeless=needs_no_retry(error_info(error)),
        jitter=random.random(),  # noqa: S311 - spreads load, no secret
    )
    if isinstance(decision, GiveUp):
        return decision
    info, delay = error_info(error), round(decision.delay * 1000)
    is_reserved = session.run.spending.reserved is not None
    session.record(
        Retry(
            **session.stamp(),
            error=info,
            attempt=attempt,
            delay_ms=delay,
            usage=usage,
            uncharged=releases_reservation(session.run, info) or (usage is not None and is_reserved),
            most_tries=attempts.limits.max_retries + 1,
            most_ms=attempts.limits.retry_timeout,
        )
    )
    if isinstance(decision, PauseJob):
        session.record(rate_limit_pause_event(session.clock.now() + delay, session.stamp))
    await session.flush()
    if isinstance(decision, PauseJob):
        return False
    await asyncio.sleep(decision.delay)
    return True


def releases_reservation(run: Run, error: ErrorInfo) -> bool:
    """Return whether a failed try releases what was reserved for it."""
    return run.spending.reserved is not None and is_uncharged(error)


async def fail(session: RunSession, error: ErrorInfo, *, uncharged: bool = False) -> None:
    session.record_all(events_of_command(session.run, Fail(error, uncharged), session.stamp, 0))
    await session.flush()


def error_info(error: ProviderError) -> ErrorInfo:
    """Convert a provider's error to its recorded form, with the endpoint's message and status."""
    return ErrorInfo(
        name=error.name, message=str(error), status_code=error.status_code, is_retryable=error.is_retryable
    )


async def _try_once(
    provider: Provider, request: GenerationRequest, show: Callable[[Delta], None], seconds: float, is_last: bool
) -> Generation:
    try:
        async with asyncio.timeout(seconds):
            generation = await provider.generate(request, show)
            reply = usable_reply(generation.reply)
            return generation if reply is generation.reply else replace(generation, reply=reply)
    except TimeoutError as error:
        remedy = "" if is_last else "; give more time with `timeout`"
        message = f"no whole reply within {seconds * 1000:.0f} ms{remedy}"
        raise ProviderError(message, name="Timeout", is_retryable=True) from error
    except ProviderError:
        raise
    except Exception as error:  # a fault in a provider's code must not lose the Run
        raise ProviderError(one_line(f"{type(error).__name__}: {error}"), name="ProviderFault") from error


# Fallback models: the endpoint of the model in force, and the records of a switch.


async def open_endpoint(job: JobContext, session: RunSession) -> OpenProvider | None:
    """Open the endpoint of the model in force. Returns None if the Run failed, and records that.

    A fallback model without a key is skipped. Raises PerstackError if the first model's endpoint cannot be opened.
    """
    host, prices = job.host, job.prices
    while True:
        try:
            return host.providers.for_run(session.run, host.project, host.overrides)
        except PerstackError as error:
            if not session.run.stands_in:
                raise
            info = ErrorInfo(name="MissingCredential", message=str(error))
        if not await switch_model(session, info, prices) and not await return_to_first_model(session, prices):
            await fail(session, cannot_stand_in(session.run, info.message))
            return None


async def switch_model(session: RunSession, error: ErrorInfo, prices: Prices, *, uncharged: bool = False) -> bool:
    """Record that the next model takes over after this error. Returns False without a suitable one."""
    next_name = next_model(session.run)
    window = None if next_name is None else await prices.window(*parts_of(next_name))
    event = switch_event(session.run, error, session.stamp, uncharged=uncharged, window=window)
    if event is None:
        return False
    session.record(event)
    await session.flush()
    return True


async def return_to_first_model(session: RunSession, prices: Prices) -> bool:
    """Record that the first model is tried again. Returns False if it is in force or has not rested long enough."""
    if not is_due_back(session.run, session.clock.now()):
        return False
    window = await prices.window(*parts_of(models_of(session.run.start)[0]))
    session.record(switch_back_event(session.run, session.stamp, window))
    return True


async def generate(context: RunContext, command: Generate) -> None:
    """Call the model until it replies or a further try is useless, paused or over budget. Record each outcome."""
    session, job, endpoint = context.session, context.job, context.endpoint
    tools = context.catalogue.kept_tools(session.run.messages)
    await job.blobs.keep(tools.sha256, tools.blob)
    expert = session.run.start.expert
    rules = session.run.rules if expert.provider_tools else ()  # most Experts have none, and rules are costly

    def offer() -> ProviderToolOffer:
        refused = names_in(session.run.adaptations, "providerTool") if expert.provider_tools else frozenset[str]()
        return offer_tools(expert, endpoint.name, endpoint.provider.tools, rules, refused)

    async def begin() -> bool:
        return await _begin(context, command, tools, offer())

    adapt_as_before(job, session, session.run.on, tools.specs, session.run.messages)
    if session.run.messages.blobs(len(session.run.messages)):
        await job.host.parts.get(MEDIA).fit_request(session, endpoint.provider, job.blobs)
    if not await begin():
        return
    await asyncio.sleep(0)  # a Run whose model and tools never wait must not keep others from running
    run = session.run
    request = GenerationRequest(
        model=run.model,
        instruction=run.instruction,
        messages=run.messages,
        tools=offered_tools(tools.specs, run.adaptations),
        blobs=job.blobs.get,
        allow_tools=not command.final,
        reasoning_budget=run.start.reasoning_budget,
        expert_key=run.start.expert_key,
        run_id=run.id,
        step=command.step,
        max_tokens=run.max_tokens,
        provider_tools=offer().tools,
        output=run.schema,
        place=session.place if context.plays_recording else None,
        adaptations=run.adaptations,
        memo=session.memo,
    )
    show = _show_deltas(session, command.step, job.emit)
    job.prices.prepare(run.provider)
    attempts = Attempts(session, endpoint, _show_wait(session, command.step, job.emit))
    with attempts.ticket:
        is_reserved = context.budget is not None
        reply = await _reply(
            session, request, show, attempts, job.prices, begin, is_reserved=is_reserved, tools_bytes=len(tools.blob)
        )
    if reply is None:
        return
    generation, problem = reply
    session.first_try = None
    if not context.plays_recording:
        generation = _without_unoffered(generation, offer(), session.run)
    usage, window = await job.prices.cost_and_window(run.provider, request.model, generation)
    reserved = session.run.spending.reserved
    excess = excess_over(usage, reserved)
    goes_on = not generation.is_cut_early and may_continue(run, generation.reply, generation.finish_reason)
    if goes_on and context.plays_recording:  # why a recorded reply was not continued is not in the recording
        goes_on = not playback_of(context).ends_with(context, command.step)
    if excess is not None:
        dollars = "" if excess.cost_usd is None else f", ${excess.cost_usd:.4f}"
        amount = f"{excess.tokens:,} tokens{dollars}"
        notice(f"{run.provider} has used more than could be expected of {run.id}: {amount}")
    session.record(
        FinishGeneration(
            **session.stamp(),
            usage=usage,
            reply=_with_unique_ids(generation.reply, final=command.final, step=command.step).contents,
            finish_reason=generation.finish_reason,
            context_window=None if window == run.context.window else window,
            duration_ms=round((time.monotonic() - attempts.try_began) * 1000),
            unreported=reserved is not None
            and not is_reported(usage, reserved, has_reply=bool(generation.reply.contents)),
            over_reserved=excess,
            problem=problem,
            continuation=CONTINUATION if goes_on else "",
        )
    )


async def _reply(
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
    """Return the model's reply after as many tries as needed, with its problem if it is no answer.

    Returns None without a reply, and records why. `begin` is called again before a try whose cost is
    reserved, or whose request has changed.
    """
    attempt = 1
    ladder = Ladder(session, attempts.provider, session.run.on)
    while True:
        adapted: GenerationRequest | None = None
        try:
            generation = await attempts.once(request, show, load(session.run, tools_bytes))
        except ProviderError as error:
            adapted = await ladder.climb(request, error)
            if adapted is not None:
                request = adapted
            elif await _continue_after(session, error, attempt, attempts, prices):
                attempt += 1
            else:
                return None
        else:
            problem = await _problem_after_retries(session, request, generation, attempt, attempts, prices)
            if problem is not _TRY_AGAIN:
                return generation, problem
            attempt += 1
        if (is_reserved or adapted is not None) and not await begin():
            return None
        request = replace(request, max_tokens=session.run.max_tokens)


_TRY_AGAIN = ErrorInfo(name="", message="")


async def _problem_after_retries(
    session: RunSession,
    request: GenerationRequest,
    generation: Generation,
    attempt: int,
    attempts: Attempts,
    prices: Prices,
) -> ErrorInfo | None:
    """Return why a reply is no answer after the last try, `_TRY_AGAIN` before it; None if it is an answer.

    A recorded reply is played as it was taken.
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
        return _TRY_AGAIN
    words = f"{problem.message} ({decision.reason})" if decision.reason else problem.message
    return problem.model_copy(update={"message": words})


# Adaptations: parts of a request that the endpoint does not take as they are.


class Ladder:
    """The repetitions of one generation's request with parts adapted that its endpoint has refused."""

    def __init__(self, session: RunSession, provider: Provider, model: str) -> None:
        """Start without adaptations; `model` is the model that is asked, as `provider/model`."""
        self._session, self._provider, self._model = session, provider, model
        self._rungs = 0

    async def climb(self, request: GenerationRequest, error: ProviderError) -> GenerationRequest | None:
        """Record how the parts that a refusal names are sent from now on, and return the request to repeat.

        Returns None if it names none that could be sent in another form, or after `MAX_RUNGS` refusals.
        """
        adaptations = () if self._rungs >= MAX_RUNGS else adaptations_after(self._provider, request, error)
        if not adaptations:
            return None
        self._rungs += 1
        session, info = self._session, error_info(error)
        session.record(
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
    """Return what a provider finds in a refusal that could be sent in another form; empty for other errors."""
    if error.status_code not in REFUSAL_STATUSES:
        return ()
    try:
        named = with_definitions(provider.adapt(request, error), request.tools)
        return new_adaptations(request.adaptations, named)
    except Exception as fault:  # noqa: BLE001 - a fault in a provider's code must not replace the endpoint's own error
        notice(one_line(f"what was refused could not be found: {type(fault).__name__}: {fault}"))
        return ()


def adapted_request(request: GenerationRequest, adaptations: Adaptations) -> GenerationRequest:
    known = (*request.adaptations, *adaptations)
    refused = names_in(known, "providerTool")
    return replace(
        request,
        adaptations=known,
        tools=offered_tools(tuple(request.tools), known),
        provider_tools=tuple(tool for tool in request.provider_tools if tool.name not in refused),
    )


def adapt_as_before(
    job: JobContext, session: RunSession, model: str, tools: Iterable[ToolSpec] = (), messages: Iterable[Message] = ()
) -> None:
    """Record what other Runs of the Job have learned about a model's endpoint, so that it need not refuse it again."""
    adaptations = job.missing_adaptations(session.run, model, tools, messages)
    if adaptations:
        session.record(AdaptRequest(**session.stamp(), model=model, adaptations=adaptations))


_MAX_NAME_CHARS, _MAX_LISTED = 40, 5  # characters and names of tools that were not offered, in a notice


def _without_unoffered(generation: Generation, offer: ProviderToolOffer, run: Run) -> Generation:
    """Drop the uses of provider tools that were not offered, and say so: no rule has allowed them."""
    names = {tool.name for tool in offer.tools}
    unoffered = dict.fromkeys(use.tool_name for use in generation.reply.provider_tools if use.tool_name not in names)
    if not unoffered:
        return generation
    listing = ", ".join(name[:_MAX_NAME_CHARS] for name in list(unoffered)[:_MAX_LISTED])
    notice(f"{run.provider} says that it has run {listing} for {run.id}, which was not offered: left out")
    parts = generation.reply.contents
    contents = tuple(part for part in parts if not (isinstance(part, ProviderToolPart) and part.tool_name in unoffered))
    return replace(generation, reply=ExpertMessage(contents=contents))


async def _begin(context: RunContext, command: Generate, tools: KeptTools, offer: ProviderToolOffer) -> bool:
    session, granted = context.session, None
    settings = {**context.endpoint.reply_settings, **offer.settings}
    if context.budget is not None:
        instruction = whole_instruction(session.run.start.instruction, context.catalogue.guidance)
        reserving = context.budget.reserve(session.run, tools, instruction, settings, offer.tools)
        granted = await reserve_or_stop(session, reserving)
        if granted is None:
            return False
    event = _start_event(session, command, context.catalogue, tools.digest, settings, granted)
    if offer.withheld != session.withheld:
        session.withheld = offer.withheld
        event = event.model_copy(update={"unreachable": {**event.unreachable, **offer.withheld}})
    session.record(event)
    if granted is None:
        await session.flush_soon()  # the sync overlaps with the generation, which changes nothing outside
    else:
        await session.flush()  # money may be spent only on what is reserved for certain
    return True


def _start_event(
    session: RunSession,
    command: Generate,
    catalogue: Catalogue,
    tools_digest: str,
    settings: JsonObject,
    granted: Grant | None,
) -> StartGeneration:
    run = session.run
    own_max_tokens = settings.get("maxTokens")
    is_lower = granted is not None and not (isinstance(own_max_tokens, int) and own_max_tokens <= granted.max_tokens)
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
        definitions=unrecorded(catalogue.definitions, run.definitions),
    )
    return event.model_copy(update={"request_digest": request_digest(run, event)})


async def _continue_after(
    session: RunSession, error: ProviderError, attempt: int, attempts: Attempts, prices: Prices
) -> bool:
    if error.name == OVERFLOW and policy_of(session.run) is not None:
        session.first_try = None
        await _record_overflow(session, error, attempt, window_after_overflow(session.run, error.context_window))
        return False
    decision = await retry_or_give_up(session, error, attempt, attempts)
    if isinstance(decision, bool):
        return decision
    info = error_info(error)
    if await switch_model(session, info, prices, uncharged=releases_reservation(session.run, info)):
        return False
    session.first_try = None
    supposed_window = window_after_refusal(session.run, info) if error.may_not_fit else None
    if supposed_window is not None:
        await _record_overflow(session, error, attempt, supposed_window)
        return False
    why = decision.reason or ("`compaction` is off, so no room is made" if error.name == OVERFLOW else "")
    reason = f"{info.message} ({why})" if why else info.message
    await fail(session, info.model_copy(update={"message": reason}), uncharged=releases_reservation(session.run, info))
    return False


async def _record_overflow(session: RunSession, error: ProviderError, attempt: int, window: int) -> None:
    run, info = session.run, error_info(error)
    uncharged = releases_reservation(run, info)
    if run.context.is_relieved:
        await fail(session, too_large(run, info), uncharged=uncharged)
        return
    session.record(
        Retry(**session.stamp(), error=info, attempt=attempt, delay_ms=0, uncharged=uncharged, overflow=window)
    )
    await session.flush()


def _show_deltas(session: RunSession, step: int, emit: Emitter) -> Callable[[Delta], None]:
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


def _show_wait(session: RunSession, step: int, emit: Emitter) -> OnWait:
    def show(waiting: Waiting) -> None:
        session.show_written()
        emit.display(
            WaitForEndpoint(
                **_display_stamp(session, step, "wait"),
                provider=session.run.provider,
                reason=waiting.reason,
                ahead=waiting.ahead,
                delay_ms=None if waiting.seconds is None else round(waiting.seconds * 1000),
            )
        )

    return show


def _with_unique_ids(reply: ExpertMessage, *, final: bool, step: int) -> ExpertMessage:
    calls = reply.tool_calls
    if final and calls:
        return ExpertMessage(contents=tuple(part for part in reply.contents if not isinstance(part, ToolCallPart)))
    ids = [call.tool_call_id for call in calls]
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
