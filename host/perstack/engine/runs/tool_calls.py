"""Run the tool calls of one reply.

Calls run concurrently. If one may have a side effect, all are on disk before any begins. Results are recorded as they
arrive; an error in a tool becomes an error result for the model and never ends the Run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING

from perstack.core.base.usage import NO_USAGE, Charge, Exceeded, Usage
from perstack.core.jobs.budget import Grant, is_reported, is_uncharged
from perstack.core.jobs.summary import RunPlace
from perstack.core.runs.commands import Call, Complete, EndStep, RunTools, Work
from perstack.core.runs.decide import call_started, digest_of, result_of
from perstack.core.runs.display_events import ToolProgress
from perstack.core.runs.facts import Question
from perstack.core.runs.messages import History, estimated_tokens
from perstack.core.runs.repeats import warned
from perstack.core.runs.state import Run, call_key
from perstack.core.runs.step_events import CallInteractiveTool, FinishToolCall, StartSample
from perstack.dataclass import dataclass
from perstack.engine.log.emitter import Emitter
from perstack.engine.log.run_session import RunSession
from perstack.engine.plugins.pacing import through
from perstack.engine.plugins.providers import Endpoint, Prices
from perstack.engine.plugins.tool_catalogue import Catalogue, OfferedTool
from perstack.engine.runs.budget import Spending
from perstack.engine.runs.generation import error_info
from perstack.errors import PerstackError, ProviderError, SkillError
from perstack.ports.provider import BlobReader, Generation, GenerationRequest
from perstack.ports.skill import BlobStore, Sample, SampleRequest, SkillSession, ToolCall, ToolResult
from perstack.system.clock import Clock

if TYPE_CHECKING:
    from perstack.engine.plugins.secret_masking import SecretVault


# Sampling: generations that a tool asks the Run's own model for.


class Sampling:
    """Access to the Run's model for one tool call, and the total cost of its generations."""

    def __init__(
        self,
        run: Run,
        endpoint: Endpoint,
        blobs: BlobReader,
        prices: Prices,
        spending: Spending | None,
        key: str,
        begin: Callable[[Charge], Awaitable[None]],
        place: RunPlace | None = None,
    ) -> None:
        """Prepare sampling for one tool call.

        `begin` records what a generation may cost, before the model is called. `place` is the Run's place in a
        recording.
        """
        self._begin = begin
        self._place = place
        self._run = run
        self._endpoint = endpoint
        self._blobs = blobs
        self._prices = prices
        self._spending = spending
        self._key = key
        self.usage: Usage | None = None
        self.assumed: Charge | None = None
        """Reserved amounts of generations whose usage was not reported; they count in addition to `usage`."""
        self._numbers = count(1)

    async def __call__(self, request: SampleRequest) -> Sample:
        """Generate once, without tools and without retries. Raises ProviderError, also if no budget allows it."""
        start = self._run.start
        key = f"{self._key}/{next(self._numbers)}"
        messages = History(request.messages)
        sent = messages.size(len(messages)) + len(request.instruction.encode("utf-8", "surrogatepass"))
        granted = await self._reserved(request, sent)
        if granted is not None:
            await self._begin(granted.amount.as_charge())
        generation = GenerationRequest(
            model=self._run.model,
            instruction=request.instruction,
            messages=request.messages,
            tools=(),
            blobs=self._blobs,
            allow_tools=False,
            max_tokens=request.max_tokens if granted is None else granted.max_tokens,
            temperature=request.temperature,
            expert_key=start.expert_key,
            place=self._place,
            purpose="sample",
            step=self._run.step,
        )
        try:
            with self._endpoint.place() as place:
                reply = await through(place, estimated_tokens(sent), lambda: self._tried(generation))
        except ProviderError as error:
            if is_uncharged(error_info(error)):
                self._settle(key, NO_USAGE, granted)
            else:
                self._assume(granted)
            raise
        usage, _ = await self._prices.known(self._run.provider, self._run.model, reply)
        self.usage = (self.usage or NO_USAGE) + usage
        has_reply = bool(reply.reply.contents)
        if granted is not None and not is_reported(usage, granted.amount.as_charge(), has_reply=has_reply):
            self._assume(granted)
        else:
            self._settle(key, usage, granted)
        return Sample(reply.reply, self._run.model, reply.finish_reason)

    async def _tried(self, request: GenerationRequest) -> Generation:
        limit = self._run.limits.timeout
        try:
            async with asyncio.timeout(limit / 1000):
                return await self._endpoint.provider.generate(request, lambda delta: None)
        except TimeoutError as error:
            raise ProviderError(f"no whole reply within {limit} ms", name="Timeout", is_retryable=True) from error

    def recorded(self) -> None:
        """Tell the ledger that the Run's log contains the usage of this call."""
        if self._spending is not None:
            for number in range(1, next(self._numbers)):
                self._spending.recorded_sample(f"{self._key}/{number}")

    def _settle(self, key: str, usage: Usage, granted: Grant | None) -> None:
        if self._spending is not None and granted is not None:
            self._spending.settle_sample(self._run, key, usage, granted.amount)

    def _assume(self, granted: Grant | None) -> None:
        if granted is not None:
            self.assumed = granted.amount.as_charge() + self.assumed

    async def _reserved(self, request: SampleRequest, sent: int) -> Grant | None:
        """Reserve what a generation may cost; None without a budget."""
        if self._spending is None:
            return None
        mine = (self.usage or NO_USAGE, self.assumed)
        granted = await self._spending.reserve_sample(self._run, sent, request.messages, request.max_tokens, mine)
        if isinstance(granted, Exceeded):
            raise ProviderError("no generation: the budget leaves no room for it", name="ExceededBudget")
        return granted


_PATIENCE = 0.05
"""Seconds to wait for the first result before flushing the started calls, so that they are shown."""


@dataclass(frozen=True, slots=True)
class ToolSurroundings:
    """Services that every tool call of a Run uses."""

    blobs: BlobStore
    emit: Emitter
    clock: Clock
    model: str
    """The model in force, as `provider/model`."""
    endpoint: Endpoint
    """The endpoint of that model."""
    prices: Prices
    spending: Spending | None
    may_ask: bool
    """True if a person can answer what a tool asks."""
    leads_to: Callable[[Call, Catalogue], Awaitable[tuple[str, ...]]]
    """Returns the resolved paths that a call's arguments lead to now."""
    vault: SecretVault | None = None
    """Masks secrets in tool output; None in a Run that masks none."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a call, its duration in milliseconds, and its own cost."""

    result: ToolResult | Question
    duration_ms: int = 0
    usage: Usage | None = None
    sampling: Sampling | None = None
    """Generations that the tool asked the model for."""
    secrets: int = 0
    """The highest number of a secret's placeholder when the call ended."""


async def run_tools(session: RunSession, command: RunTools, catalogue: Catalogue, around: ToolSurroundings) -> None:
    """Run the calls concurrently and record each result, or question, as it arrives.

    Intent before effect: if one of them may have a side effect, all are on disk before any begins. In a Run that plays
    a recording, none begins if one is missing from it.
    """
    played = await _played(session, command.calls, catalogue, around)
    if played is None:
        return
    calls = [call for call in command.calls if not call.decided.asks or await _begins(session, call, catalogue, around)]
    if any(call.decided.effect == "sideEffect" for call in calls):
        await session.flush()
    async with asyncio.TaskGroup() as group:
        running = {group.create_task(_come_of(session, call, catalogue, around, played)): call for call in calls}
        while running:
            patience = _PATIENCE if session.has_unwritten else None
            done, _ = await asyncio.wait(running, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            effects = False
            for task in done:
                call = running.pop(task)
                effects = effects or call.decided.effect == "sideEffect"
                _record(session, call, task.result())
                sampling = task.result().sampling
                if sampling is not None:
                    sampling.recorded()
            if running and (effects or not done):
                await session.flush()


async def _played(
    session: RunSession, calls: Sequence[Call], catalogue: Catalogue, around: ToolSurroundings
) -> Mapping[str, Outcome] | None:
    """Return the recorded results of these calls; None, and fail the Run, if one is missing from the recording."""
    if around.endpoint.provider.player is None:
        return {}
    from perstack.engine.runs.playback import played_results  # only for Runs that play one

    found = await played_results(session, calls, catalogue, around.endpoint.provider, around.blobs)
    return None if found is None else {key: Outcome(one.result, usage=one.usage) for key, one in found.items()}


async def is_unlike_recording(session: RunSession, command: Work, around: ToolSurroundings) -> bool:
    """Return True if a Run that plays a recording differs from it at the end of a step, and so has failed."""
    if around.endpoint.provider.player is None or not isinstance(command, Complete | EndStep):
        return False
    from perstack.engine.runs.playback import is_unlike

    return await is_unlike(session, around.endpoint.provider)


async def _begins(session: RunSession, call: Call, catalogue: Catalogue, around: ToolSurroundings) -> bool:
    """Note that an approved call begins if it is exactly the approved one; otherwise record an error result."""
    if call.began:
        return True
    is_same = digest_of(call) == call.requested and await around.leads_to(call, catalogue) == call.leads_to
    if is_same:
        session.record(call_started(call, session.stamp))
    else:
        text = "Not run: this is not the call that was approved, or its paths lead elsewhere by now."
        session.record(warned(session.run, result_of(call, text, session.stamp, is_error=True)))
    return is_same


def _show_progress(run: Run, call: Call, emit: Emitter, clock: Clock) -> Callable[[str], None]:
    numbers = count(1)

    def show(message: str) -> None:
        emit.display(
            ToolProgress(
                id=f"{call_key(run, call)}-{next(numbers)}",
                timestamp=clock.now(),
                job_id=run.start.job_id,
                run_id=run.id,
                expert_key=run.start.expert_key,
                step_number=run.step,
                tool_call_id=call.decided.id,
                tool_name=call.decided.tool_name,
                message=message,
            )
        )

    return show


def _record(session: RunSession, call: Call, outcome: Outcome) -> None:
    result = outcome.result
    assumed = None if outcome.sampling is None else outcome.sampling.assumed
    if isinstance(result, Question):
        session.record(
            CallInteractiveTool(
                **session.stamp(),
                tool_call_id=call.decided.id,
                tool_name=call.decided.tool_name,
                skill_name=call.decided.skill_name,
                args={"question": result.message},
                question=result,
                usage=outcome.usage,
                assumed=assumed,
            )
        )
        return
    finished = FinishToolCall(
        **session.stamp(),
        tool_call_id=call.decided.id,
        tool_name=call.decided.tool_name,
        contents=result.contents,
        is_error=result.is_error,
        duration_ms=outcome.duration_ms,
        usage=outcome.usage,
        assumed=assumed,
        secrets=outcome.secrets,
    )
    session.record(warned(session.run, finished))


def _sampling(session: RunSession, call: Call, around: ToolSurroundings) -> Sampling:
    async def begin(reserved: Charge) -> None:
        session.record(StartSample(**session.stamp(), tool_call_id=call.decided.id, reserved=reserved))
        await session.flush()

    run = session.run
    key = call_key(run, call)
    place = session.place if around.endpoint.provider.player is not None else None
    return Sampling(run, around.endpoint, around.blobs.get, around.prices, around.spending, key, begin, place)


async def _come_of(
    session: RunSession, call: Call, catalogue: Catalogue, around: ToolSurroundings, played: Mapping[str, Outcome]
) -> Outcome:
    known = played.get(call.decided.id)
    return await perform_call(session, call, catalogue, around) if known is None else known


async def perform_call(session: RunSession, call: Call, catalogue: Catalogue, around: ToolSurroundings) -> Outcome:
    """Run a call and return its outcome. Every error becomes an error result for the model."""
    began, run = time.monotonic(), session.run
    offered = catalogue.find(call.decided)
    if offered is None or offered.session is None:
        text = f"The tool {call.decided.tool_name} is not available now."
        return Outcome(ToolResult.text(text, is_error=True))
    sampling = _sampling(session, call, around) if offered.may_sample else None
    request = ToolCall(
        tool_name=offered.own_name,
        args=call.part.args,
        key=call_key(run, call),
        run_id=run.id,
        expert_key=run.start.expert_key,
        blobs=around.blobs,
        on_progress=_show_progress(run, call, around.emit, around.clock),
        answers=call.answers,
        may_ask=around.may_ask,
        opens=call.decided.opens,
        sample=sampling,
    )
    if around.vault is None:
        result = await _called(offered.session, request)
    else:
        result = await _called_masked(offered, offered.session, request, around.vault)
    spent = sampling.usage if sampling is not None else None
    highest = 0 if around.vault is None else around.vault.highest
    return Outcome(result, round((time.monotonic() - began) * 1000), spent, sampling, highest)


async def _called(skill: SkillSession, request: ToolCall) -> ToolResult | Question:
    try:
        return await skill.call(request)
    except PerstackError as error:
        return ToolResult.text(str(error), is_error=True)
    except Exception as error:  # noqa: BLE001 - a fault in a skill's code goes to the model; it must not end the Run
        return ToolResult.text(f"{type(error).__name__}: {error}", is_error=True)


async def _called_masked(
    offered: OfferedTool, skill: SkillSession, request: ToolCall, vault: SecretVault
) -> ToolResult | Question:
    """Call the tool with the secrets in place of their placeholders, and mask the secrets in its result."""
    from perstack.engine.plugins.secret_masking import MaskedCall  # only for Runs that mask

    try:
        call = MaskedCall(vault, request, offered.spec.subject)
    except SkillError as error:
        return ToolResult.text(str(error), is_error=True)
    return await call.outcome(await _called(skill, call.request))
