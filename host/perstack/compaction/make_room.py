"""Free space in a full context: old results become blobs, and a model summarizes the older turns.

`startCompaction` is on disk before the model is called; a killed process leaves a state that asks again. A failed
summary never stops a Run: an outline made without a model takes its place.
"""

from __future__ import annotations

import time
from dataclasses import replace

from perstack.compaction.summary_texts import INSTRUCTION, count_texts_left_out, outline, summary_text, transcript
from perstack.core.base.usage import Charge, Usage, unreported_charge
from perstack.core.definitions.settings import NO_OVERRIDES, NOT_RECORDED, ReasoningBudget
from perstack.core.jobs.budget_ledger import Grant, is_reported, is_uncharged
from perstack.core.messages.messages import History, TextPart, ToolMessage, UserMessage, estimated_tokens
from perstack.core.runs.commands import Compact, Shrink
from perstack.core.runs.context_window import blob_of, is_inferred, summary_tokens, window_of
from perstack.core.runs.decide import stamp_for_next_step
from perstack.core.runs.events.context import CompactHistory, ShrinkResults, StartCompaction
from perstack.core.runs.facts import ErrorInfo
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass
from perstack.engine.log.run_session import RunSession
from perstack.engine.log.storage_access import JobBlobs
from perstack.engine.plugins.providers_and_prices import OpenProvider
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
from perstack.engine.runs.job_drive import RunDrive
from perstack.errors import PerstackError, ProviderError
from perstack.ports.provider import Generation, GenerationRequest


@dataclass(frozen=True, slots=True)
class Summarizer:
    """The model that writes the summaries of a Run, with its endpoint and instruction."""

    endpoint: OpenProvider
    provider_name: str
    model: str
    instruction: str = INSTRUCTION
    reasoning_budget: ReasoningBudget | None = None
    expert_key: str = ""  # the key of the Expert that the policy names; "" without one
    is_own: bool = True  # True for the Run's own model, which its fallback models may replace

    @property
    def name(self) -> str:
        """The model as `provider/model`."""
        return f"{self.provider_name}/{self.model}"


@dataclass(frozen=True, slots=True)
class _Summary:
    """Outcome of a summary: its text and usage, or the error that prevented it."""

    text: str = ""
    usage: Usage | None = None
    assumed: Charge | None = None
    duration_ms: int = 0
    error: ErrorInfo | None = None


def _summarizer_of(run_drive: RunDrive) -> Summarizer | ErrorInfo:
    run, providers, project = run_drive.session.run, run_drive.drive.setup.providers, run_drive.drive.setup.project
    context_policy = run.limits.context
    if context_policy is None or context_policy.expert is None:
        return Summarizer(run_drive.endpoint, run.provider, run.model)
    expert = project.expert(context_policy.expert)
    if expert is None:
        return ErrorInfo(
            name="UsageError", message=f"there is no Expert {context_policy.expert!r} in perstack.toml any more"
        )
    try:
        settings = providers.settings(project, expert, NO_OVERRIDES)
        endpoint = providers.endpoint(settings.provider, project)
    except PerstackError as error:
        return ErrorInfo(name=type(error).__name__, message=str(error))
    name, thinking = settings.provider.provider_name, settings.reasoning_budget
    return Summarizer(endpoint, name, settings.model, expert.instruction, thinking, expert.key, is_own=False)


async def make_room(run_drive: RunDrive, command: Shrink | Compact) -> None:
    """Shrink old results or summarize history, and record it; stop the Run if no budget allows a summary."""
    if isinstance(command, Shrink):
        await _shrink(run_drive.session, command, run_drive.drive.blobs)
    else:
        await _compact(run_drive, command)


async def _shrink(session: RunSession, command: Shrink, blobs: JobBlobs) -> None:
    blobs_by_call = {(result.at, result.tool_call_id): result.blob for result in command.results}
    messages = session.run.messages
    for index in range(len(messages)):
        message = messages[index]
        if isinstance(message, ToolMessage):
            for part in message.contents:
                blob = blobs_by_call.get((messages.place(index), part.tool_call_id))
                if blob is not None:
                    await blobs.keep(blob, blob_of(part))
    stamp = stamp_for_next_step(session.run, session.stamp)
    session.add(ShrinkResults(**stamp, results=command.results, head=command.head, tail=command.tail))
    await session.flush()


async def _compact(run_drive: RunDrive, command: Compact) -> None:
    session, summarizer = run_drive.session, _summarizer_of(run_drive)
    window = window_of(session.run) or 0
    if isinstance(summarizer, ErrorInfo):
        summary: _Summary | None = _Summary(error=summarizer)
        name = ""
    else:
        name = summarizer.name
        summary = await _summarize(run_drive, command, summarizer, window)
    if summary is None:
        return
    run, overflow = session.run, session.run.context.overflow
    if overflow is not None and is_inferred(overflow) and summary.error is not None:
        # The endpoint refuses small requests too, so the refusal was not an overflow, and the history must stay whole.
        await record_failure(session, overflow, uncharged=summary.assumed is None)
        return
    model = name if summary.text else ""
    text = summary_text(run, command, summary.text or outline(run, command, window), model, window)
    session.add(
        CompactHistory(
            **stamp_for_next_step(run, session.stamp),
            first=command.first,
            through=command.through,
            kept=command.kept,
            text=text,
            model=model,
            usage=summary.usage,
            assumed=summary.assumed,
            tokens_before=command.tokens_before,
            tokens_after=max(0, command.tokens_after - summary_tokens(window) + _estimate_tokens(text)),
            duration_ms=summary.duration_ms,
            error=summary.error,
            left_out=count_texts_left_out(run, command, window),
        )
    )
    await session.flush()


async def _summarize(run_drive: RunDrive, command: Compact, summarizer: Summarizer, window: int) -> _Summary | None:
    """Return the summary, or the error; None if the Run has stopped, or its next model is asked instead."""
    session, prices = run_drive.session, run_drive.drive.prices
    text = transcript(session.run, command, window)
    request = GenerationRequest(
        model=summarizer.model,
        instruction=summarizer.instruction,
        messages=History([UserMessage(contents=(TextPart(text=text),))]),
        tools=(),
        blobs=run_drive.drive.blobs.get,
        allow_tools=False,
        reasoning_budget=summarizer.reasoning_budget,
        max_tokens=summary_tokens(window),
        expert_key=summarizer.expert_key,
        place=session.place if summarizer.endpoint.provider.player is not None else None,
        purpose="summary",
        step=stamp_for_next_step(session.run, session.stamp)["step_number"],
    )
    prices.prepare(summarizer.provider_name)
    adapter = RequestAdapter(session, summarizer.endpoint.provider, summarizer.name)
    attempt = 1
    with summarizer.endpoint.turns() as turns:
        attempts = Attempts(session, summarizer.endpoint.provider, turns)
        while True:
            if not await _begin_compaction(run_drive, command, summarizer, request):
                return None
            request = replace(request, adaptations=session.run.adaptations_by_model.get(summarizer.name, ()))
            try:
                generation = await attempts.attempt_once(request, lambda delta: None, _estimate_tokens(text))
            except ProviderError as error:
                if await adapter.adapt_after(request, error) is not None:
                    continue
                decision = await retry_or_give_up(session, error, attempt, attempts)
                if decision == "tryAgain":
                    attempt += 1
                    continue
                if decision == "paused":
                    return None
                info, reserved = error_info(error), session.run.spending.reserved
                released = releases_reservation(session.run, info)
                if summarizer.is_own and await switch_model(session, info, prices, uncharged=released):
                    return None  # the loop asks the next model for the same summary
                session.first_attempt = None
                if info.name == NOT_RECORDED:
                    await record_failure(session, info)
                    return None  # an outline instead would make the replayed Job differ from the recorded one
                return _Summary(assumed=None if is_uncharged(info) else reserved, error=info)
            session.first_attempt = None
            usage, _ = await prices.cost_and_window(summarizer.provider_name, summarizer.model, generation)
            duration = round((time.monotonic() - attempts.attempt_began_at) * 1000)
            assumed = _assumed_charge(session.run, usage, generation)
            return _Summary(generation.reply.text.strip(), usage, assumed, duration)


async def _begin_compaction(
    run_drive: RunDrive, command: Compact, summarizer: Summarizer, request: GenerationRequest
) -> bool:
    session, budget = run_drive.session, run_drive.budget
    grant: Grant | None = None
    if budget is not None:
        size = History(request.messages).size(1) + len(request.instruction.encode(errors="replace"))
        max_tokens = request.max_tokens or 0
        reservation = budget.reserve_summary(session.run, summarizer.provider_name, summarizer.model, size, max_tokens)
        grant = await reserve_or_stop(session, reservation)
        if grant is None:
            return False
    reserved = None if grant is None else grant.amount.as_charge()
    session.add(
        StartCompaction(
            **stamp_for_next_step(session.run, session.stamp),
            first=command.first,
            through=command.through,
            model=summarizer.name,
            reserved=reserved,
        )
    )
    record_learned_adaptations(run_drive.drive, session, summarizer.name)
    await session.flush()
    return True


def _assumed_charge(run: Run, usage: Usage, generation: Generation) -> Charge | None:
    """Return the charge to add to the usage, so that the total is what was reserved; None if the usage was reported."""
    reserved = run.spending.reserved
    if reserved is None or is_reported(usage, reserved, has_reply=bool(generation.reply.contents)):
        return None
    return unreported_charge(reserved, usage)


def _estimate_tokens(text: str) -> int:
    return estimated_tokens(len(text.encode(errors="replace")))
