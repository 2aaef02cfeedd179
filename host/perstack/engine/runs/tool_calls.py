"""Running the tool calls of one reply."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count

from perstack.core.commands import Call, Complete, EndStep, RunTools, Work
from perstack.core.events import CallInteractiveTool, FinishToolCall, StartSample, ToolProgress
from perstack.core.questions import Question
from perstack.core.runs.decide import call_started, digest_of, result_of
from perstack.core.runs.repeats import warned
from perstack.core.runs.state import Run, call_key
from perstack.core.usage import Charge, Usage
from perstack.dataclass import dataclass
from perstack.engine.catalogue import Catalogue
from perstack.engine.emit import Emitter
from perstack.engine.prices import Prices
from perstack.engine.providers import Endpoint
from perstack.engine.sampling import Sampling
from perstack.engine.session import Session
from perstack.engine.spending import Spending
from perstack.errors import PerstackError
from perstack.ports.clock import Clock
from perstack.ports.provider import plays_recording
from perstack.ports.skill import BlobStore, ToolCall, ToolResult

_PATIENCE = 0.05
"""Seconds after which what the tools were called for is written, and shown, before they are done."""


@dataclass(frozen=True, slots=True)
class ToolSurroundings:
    """What every call of a Run is given besides its arguments."""

    blobs: BlobStore
    emit: Emitter
    clock: Clock
    model: str
    """The one that generates, as `provider/model`."""
    endpoint: Endpoint
    """Its endpoint."""
    prices: Prices
    spending: Spending | None
    may_ask: bool
    """Whether a person will answer what a tool asks."""
    leads_to: Callable[[Call, Catalogue], Awaitable[tuple[str, ...]]]
    """Where the paths of a call lead now."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a call, in how many milliseconds, at what cost of its own."""

    result: ToolResult | Question
    duration_ms: int = 0
    usage: Usage | None = None
    sampling: Sampling | None = None
    """What the tool has asked the model for."""


async def run_tools(session: Session, command: RunTools, catalogue: Catalogue, around: ToolSurroundings) -> None:
    """Run the calls concurrently and record each result, or question, as it comes.

    Intent before effect: if one of them may have a side effect, all is on disk before any begins. Where the Run plays a
    recording, none begins if one is not in it.
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
    session: Session, calls: Sequence[Call], catalogue: Catalogue, around: ToolSurroundings
) -> Mapping[str, Outcome] | None:
    """What a recording gives for these calls; None if one is not in it, and so the Run has failed."""
    if not plays_recording(around.endpoint.provider):
        return {}
    from perstack.engine.playing import played_results  # only for Runs that play one

    found = await played_results(session, calls, catalogue, around.endpoint.provider, around.blobs)
    return None if found is None else {key: Outcome(one.result, usage=one.usage) for key, one in found.items()}


async def is_unlike_recording(session: Session, command: Work, around: ToolSurroundings) -> bool:
    """Whether a Run that plays a recording has come to something else by the end of its step, and so has failed."""
    if not plays_recording(around.endpoint.provider) or not isinstance(command, Complete | EndStep):
        return False
    from perstack.engine.playing import is_unlike

    return await is_unlike(session, around.endpoint.provider)


async def _begins(session: Session, call: Call, catalogue: Catalogue, around: ToolSurroundings) -> bool:
    """Note that an approved call begins, if it is what was approved, to the letter; else it has a result now."""
    if call.began:
        return True
    is_same = digest_of(call) == call.requested and await around.leads_to(call, catalogue) == call.leads_to
    if is_same:
        session.note(call_started(call, session.stamp))
    else:
        text = "Not run: this is not the call that was approved, or its paths lead elsewhere by now."
        session.note(warned(session.run, result_of(call, text, session.stamp, is_error=True)))
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


def _record(session: Session, call: Call, outcome: Outcome) -> None:
    result = outcome.result
    assumed = None if outcome.sampling is None else outcome.sampling.assumed
    if isinstance(result, Question):
        session.note(
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
    )
    session.note(warned(session.run, finished))


def _sampling(session: Session, call: Call, around: ToolSurroundings) -> Sampling:
    async def begin(reserved: Charge) -> None:
        session.note(StartSample(**session.stamp(), tool_call_id=call.decided.id, reserved=reserved))
        await session.flush()

    run = session.run
    key = call_key(run, call)
    place = session.place if plays_recording(around.endpoint.provider) else None
    return Sampling(run, around.endpoint, around.blobs.get, around.prices, around.spending, key, begin, place)


async def _come_of(
    session: Session, call: Call, catalogue: Catalogue, around: ToolSurroundings, played: Mapping[str, Outcome]
) -> Outcome:
    """What a recording gives for a call, or what comes of running it."""
    known = played.get(call.decided.id)
    return await perform_call(session, call, catalogue, around) if known is None else known


async def perform_call(session: Session, call: Call, catalogue: Catalogue, around: ToolSurroundings) -> Outcome:
    """What came of a call. Whatever goes wrong becomes an error result for the model."""
    began, run = time.monotonic(), session.run
    offered = catalogue.find(call.decided.tool_name)
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
    try:
        result = await offered.session.call(request)
    except PerstackError as error:
        result = ToolResult.text(str(error), is_error=True)
    except Exception as error:  # noqa: BLE001 - a fault in a skill's code goes to the model, it must not end the Run
        result = ToolResult.text(f"{type(error).__name__}: {error}", is_error=True)
    spent = sampling.usage if sampling is not None else None
    return Outcome(result, round((time.monotonic() - began) * 1000), spent, sampling)
