"""Run the tool calls of one reply. An error in a tool becomes an error result and never ends the Run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from perstack.core.base.usage import NO_USAGE, BudgetRefusal, Charge, Usage
from perstack.core.definitions.skills import DecidedCall
from perstack.core.definitions.tool_definitions import definition_digest
from perstack.core.jobs.budget_ledger import Grant, is_reported, is_uncharged
from perstack.core.messages.adaptations import MAX_RUNGS, Adaptations, in_words, new_adaptations
from perstack.core.messages.messages import (
    BlobPart,
    History,
    TextPart,
    estimated_tokens,
    generated_tokens,
)
from perstack.core.runs.commands import Call, RunTools
from perstack.core.runs.decide import text_result_event
from perstack.core.runs.events.generations import AdaptRequest
from perstack.core.runs.events.questions import CallInteractiveTool
from perstack.core.runs.events.tool_calls import FinishToolCall, StartSample
from perstack.core.runs.facts import ErrorInfo, Question
from perstack.core.runs.state import call_key
from perstack.dataclass import dataclass
from perstack.engine.log.run_session import RunSession
from perstack.engine.plugins.job_skills import tool_in_force
from perstack.engine.plugins.tool_catalogue import OfferedTool
from perstack.engine.runs.approvals import (
    SANDBOXED,
    record_approved_start,
    sandboxed_session,
    show_progress,
)
from perstack.engine.runs.attempts import adaptations_after, adapted_request, error_info
from perstack.engine.runs.input_protocols import MEDIA
from perstack.engine.runs.job_drive import RunDrive
from perstack.engine.runs.playback_protocol import playback_of
from perstack.engine.runs.run_skills import ChangeResult
from perstack.errors import PerstackError, ProviderError, SkillError
from perstack.ports.provider import Generation, GenerationRequest
from perstack.ports.skill import Sample, SampleRequest, SkillSession, ToolCall, ToolResult
from perstack.system.user import notice

if TYPE_CHECKING:
    from perstack.engine.plugins.secret_vault import SecretVault


async def _changed_definition_problem(
    tool: OfferedTool, skill_session: SkillSession, decided: DecidedCall
) -> str | None:
    """Return why a call must not run if its tool has changed since the decision; None if not.

    Compare right before the call, because a server may change its tools at any time after the decision.
    """
    if tool.judged is None:
        return None
    try:
        spec = await tool_in_force(skill_session, tool.own_name)
    except SkillError:
        return None  # the call raises the error again
    if spec is None:
        return f"Skill {decided.skill_name!r} no longer has a tool {tool.own_name!r}."
    is_unknown = not decided.definition and not tool.judged.changed  # decided by an earlier version
    if is_unknown or definition_digest(spec) == decided.definition:
        return None
    return (
        f"Not run: the definition of {decided.tool_name} has changed since this call was decided. Call it again if it"
        " is still needed: a person is then asked."
    )


def refuse_calls(session: RunSession, refused: Iterable[tuple[Call, str]]) -> None:
    """Record an error result, with the text for the model, for each call that does not run."""
    for call, text in refused:
        session.add(text_result_event(call, text, session.stamp, is_error=True).with_warning(session.run))


# Sampling: generations that a tool asks the Run's own model for.


class Sampling:
    """Access of one tool call to the Run's model, with the total usage of its generations."""

    def __init__(self, run_drive: RunDrive, call: Call) -> None:
        self._run_drive = run_drive
        self._call = call
        self._run = run_drive.session.run
        self._key = call_key(self._run, call)
        self.usage: Usage | None = None
        self.assumed: Charge | None = None
        """Reserved amounts of generations whose usage was not reported; they count in addition to `usage`."""
        self._numbers = count(1)

    async def __call__(self, sample_request: SampleRequest) -> Sample:
        """Generate once, without tools and without retries. Raises ProviderError, as when no budget allows it."""
        context, start = self._run_drive, self._run.start
        key = f"{self._key}/{next(self._numbers)}"
        messages = History(sample_request.messages)
        input_bytes = messages.size(len(messages)) + len(sample_request.instruction.encode("utf-8", "surrogatepass"))
        grant = await self._reserve(sample_request, input_bytes)
        if grant is not None:
            await self._record_start(grant.amount.as_charge())
        adaptations = await self._fit_media(messages)
        generation = GenerationRequest(
            model=self._run.model,
            instruction=sample_request.instruction,
            messages=sample_request.messages,
            tools=(),
            blobs=context.drive.blobs.get,
            allow_tools=False,
            max_tokens=sample_request.max_tokens if grant is None else grant.max_tokens,
            temperature=sample_request.temperature,
            adaptations=adaptations,
            expert_key=start.expert_key,
            place=context.session.place if context.plays_recording else None,
            purpose="sample",
            step=self._run.step,
        )
        try:
            with context.endpoint.turns() as turns:
                reply = await turns.take(estimated_tokens(input_bytes), lambda: self._generate_adapting(generation))
        except ProviderError as error:
            if is_uncharged(error_info(error)):
                self._settle_reservation(key, NO_USAGE, grant)
            else:
                self._keep_reservation(grant)
            raise
        usage, _ = await context.drive.prices.cost_and_window(self._run.provider, self._run.model, reply)
        if grant is None and context.endpoint.provider.may_omit_usage:
            usage = usage.with_estimates(estimated_tokens(input_bytes), generated_tokens(reply.reply))
        self.usage = (self.usage or NO_USAGE) + usage
        has_reply = bool(reply.reply.contents)
        if grant is not None and not is_reported(usage, grant.amount.as_charge(), has_reply=has_reply):
            self._keep_reservation(grant)
        else:
            self._settle_reservation(key, usage, grant)
        return Sample(reply.reply, self._run.model, reply.finish_reason)

    async def _generate_adapting(self, request: GenerationRequest) -> Generation:
        """Generate; after a refusal repeat it with the named parts in another form, which the Run then keeps."""
        for rungs_left in range(MAX_RUNGS, -1, -1):
            try:
                return await self._try_once(request)
            except ProviderError as error:
                provider = self._run_drive.endpoint.provider
                adaptations = adaptations_after(provider, request, error) if rungs_left else ()
                if not adaptations:
                    raise
                await self._record_adaptations(adaptations, error_info(error))
                request = adapted_request(request, adaptations)
        raise AssertionError("the last rung returns or raises")

    async def _fit_media(self, messages: History) -> Adaptations:
        """Return the Run's adaptations, with further ones that the images and documents of the request need."""
        context, run_adaptations = self._run_drive, self._run_drive.session.run.adaptations
        if not messages.blobs(len(messages)):
            return run_adaptations
        media, provider = context.drive.setup.parts.get(MEDIA), context.endpoint.provider
        substitutes = await media.find_substitutes(context.session, provider, context.drive.blobs, messages)
        # not recorded: media that are too many only together may fit in another request
        only_for_request = tuple(item for item in substitutes if item.shared_limit)
        if only_for_request:
            tool_name = self._call.decided.tool_name
            notice(f"{self._run.active_model}: a request of {tool_name} is sent {in_words(only_for_request)}")
        await self._record_adaptations(tuple(item for item in substitutes if not item.shared_limit), None)
        return (*run_adaptations, *substitutes)

    async def _record_adaptations(self, adaptations: Adaptations, error: ErrorInfo | None) -> None:
        session, call_id = self._run_drive.session, self._call.decided.id
        # another call may have recorded some of them meanwhile
        unrecorded = new_adaptations(session.run.adaptations, adaptations)
        if unrecorded:
            session.add(
                AdaptRequest(
                    **session.stamp(),
                    model=session.run.active_model,
                    adaptations=unrecorded,
                    error=error,
                    tool_call_id=call_id,
                )
            )
            await session.flush()

    async def _try_once(self, request: GenerationRequest) -> Generation:
        timeout_ms = self._run.limits.timeout
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self._run_drive.endpoint.provider.generate(request, lambda delta: None)
        except TimeoutError as error:
            raise ProviderError(
                f"no complete reply within {timeout_ms} ms", name="Timeout", is_retryable=True
            ) from error

    def confirm_recorded(self) -> None:
        """Tell the ledger that the Run's log contains the usage of this call."""
        budget = self._run_drive.budget
        if budget is not None:
            for number in range(1, next(self._numbers)):
                budget.confirm_sample(f"{self._key}/{number}")

    async def _record_start(self, reserved: Charge) -> None:
        session = self._run_drive.session
        session.add(StartSample(**session.stamp(), tool_call_id=self._call.decided.id, reserved=reserved))
        await session.flush()

    def _settle_reservation(self, key: str, usage: Usage, grant: Grant | None) -> None:
        if self._run_drive.budget is not None and grant is not None:
            self._run_drive.budget.settle_sample(self._run, key, usage, grant.amount)

    def _keep_reservation(self, grant: Grant | None) -> None:
        """Count the whole reservation, because the usage is unknown."""
        if grant is not None:
            self.assumed = grant.amount.as_charge() + self.assumed

    async def _reserve(self, sample_request: SampleRequest, input_bytes: int) -> Grant | None:
        if self._run_drive.budget is None:
            return None
        earlier_usage = (self.usage or NO_USAGE, self.assumed)
        grant = await self._run_drive.budget.reserve_sample(
            self._run, input_bytes, sample_request.messages, sample_request.max_tokens, earlier_usage
        )
        if isinstance(grant, BudgetRefusal):
            raise ProviderError("no generation: the budget leaves no room for it", name="ExceededBudget")
        return grant


# seconds to wait for the first result before flushing the started calls, so that they are shown
_FIRST_RESULT_TIMEOUT_S = 0.05


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """Result of a call, its duration, and its usage."""

    result: ToolResult | Question
    duration_ms: int = 0
    usage: Usage | None = None
    sampling: Sampling | None = None  # generations that the tool asked the model for
    secrets: int = 0  # the highest number of a secret's placeholder when the call ended


async def run_tools(run_drive: RunDrive, command: RunTools) -> None:
    """Run the calls concurrently and record each result, or question, as it arrives.

    Intent before effect: if one of them may have a side effect, all are on disk before any begins.
    """
    session, played_outcomes = run_drive.session, await _play_calls(run_drive, command.calls)
    if played_outcomes is None:
        return
    calls = [
        call
        for call in command.calls
        if not call.decided.asks or call.began or await record_approved_start(run_drive, call)
    ]
    if any(call.decided.effect == "sideEffect" for call in calls):
        await session.flush()
    # a single call needs no task: there is nothing else to do meanwhile
    if len(calls) == 1 and not session.has_unwritten:
        outcome = await _await_raising_cancellation(_outcome_of(run_drive, calls[0], played_outcomes))
        _record_outcome(session, calls[0], outcome)
        if outcome.sampling is not None:
            outcome.sampling.confirm_recorded()
        return
    async with asyncio.TaskGroup() as group:
        running = {group.create_task(_outcome_of(run_drive, call, played_outcomes)): call for call in calls}
        while running:
            timeout_s = _FIRST_RESULT_TIMEOUT_S if session.has_unwritten else None
            done, _ = await asyncio.wait(running, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            has_effects = False
            for task in [task for task in running if task in done]:  # in the order in which they changed the Expert
                call = running.pop(task)
                has_effects = has_effects or call.decided.effect == "sideEffect"
                _record_outcome(session, call, task.result())
                sampling = task.result().sampling
                if sampling is not None:
                    sampling.confirm_recorded()
            if running and (has_effects or not done):
                await session.flush()


async def _await_raising_cancellation(work: Awaitable[ToolOutcome]) -> ToolOutcome:
    """Await a tool's work in this task. Raises CancelledError also if the tool swallowed the cancellation."""
    task = asyncio.current_task()
    cancellations = 0 if task is None else task.cancelling()
    outcome = await work
    if task is not None and task.cancelling() > cancellations:
        raise asyncio.CancelledError
    return outcome


async def _play_calls(run_drive: RunDrive, calls: Sequence[Call]) -> Mapping[str, ToolOutcome] | None:
    """Return the recorded results of these calls; None, and fail the Run, if one is missing from the recording."""
    if not run_drive.plays_recording:
        return {}
    results = await playback_of(run_drive).played_results(run_drive, calls)
    if results is None:
        return None
    return {key: ToolOutcome(played.result, usage=played.usage) for key, played in results.items()}


def _record_outcome(session: RunSession, call: Call, outcome: ToolOutcome) -> None:
    result = outcome.result
    assumed = None if outcome.sampling is None else outcome.sampling.assumed
    if isinstance(result, Question):
        session.add(
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
    event = FinishToolCall(
        **session.stamp(),
        tool_call_id=call.decided.id,
        tool_name=call.decided.tool_name,
        contents=result.contents,
        is_error=result.is_error,
        duration_ms=outcome.duration_ms,
        usage=outcome.usage,
        assumed=assumed,
        secrets=outcome.secrets,
        change=result.change if isinstance(result, ChangeResult) else None,
    )
    session.add(event.with_warning(session.run))


async def _outcome_of(run_drive: RunDrive, call: Call, played_outcomes: Mapping[str, ToolOutcome]) -> ToolOutcome:
    outcome = played_outcomes.get(call.decided.id)
    return await perform_call(run_drive, call) if outcome is None else outcome


async def perform_call(run_drive: RunDrive, call: Call) -> ToolOutcome:
    """Run a call and return its outcome. Every error becomes an error result for the model."""
    began, run, drive = time.monotonic(), run_drive.session.run, run_drive.drive
    tool = run_drive.catalogue.find(call.decided)
    if tool is None or tool.skill_session is None:
        text = f"The tool {call.decided.tool_name} is not available now."
        return ToolOutcome(ToolResult.text(text, is_error=True))
    sampling = Sampling(run_drive, call) if tool.may_sample else None
    tool_call = ToolCall(
        tool_name=tool.own_name,
        args=call.part.args,
        key=call_key(run, call),
        run_id=run.id,
        expert_key=run.start.expert_key,
        blobs=drive.blobs,
        on_progress=show_progress(run_drive, call),
        answers=call.answers,
        may_ask=not drive.setup.overrides.unattended,
        opens=call.decided.opens,
        sample=sampling,
    )
    is_confined = call.approval is not None and call.approval.decision == "sandboxed"
    try:
        skill_session = await sandboxed_session(run_drive) if is_confined else tool.skill_session
    except PerstackError as error:
        return ToolOutcome(ToolResult.text(f"Not run: {error}", is_error=True))
    problem = await _changed_definition_problem(tool, skill_session, call.decided)
    if problem is not None:
        return ToolOutcome(ToolResult.text(problem, is_error=True))
    if run_drive.vault is None:
        result = await _call_skill(skill_session, tool_call)
    else:
        result = await _call_masked(tool, skill_session, tool_call, run_drive.vault)
    if is_confined and isinstance(result, ToolResult):
        result = replace(result, contents=(*result.contents, TextPart(text=SANDBOXED)))
    if isinstance(result, ToolResult) and any(isinstance(part, BlobPart) for part in result.contents):
        result = await drive.setup.parts.get(MEDIA).repair_result(result, drive.blobs.get, call.decided.tool_name)
    sampling_usage = sampling.usage if sampling is not None else None
    highest_secret = 0 if run_drive.vault is None else run_drive.vault.highest_number
    return ToolOutcome(result, round((time.monotonic() - began) * 1000), sampling_usage, sampling, highest_secret)


async def _call_skill(skill: SkillSession, tool_call: ToolCall) -> ToolResult | Question:
    try:
        return await skill.call(tool_call)
    except PerstackError as error:
        return ToolResult.text(str(error), is_error=True)
    except Exception as error:  # noqa: BLE001 - a fault in a skill's code goes to the model; it must not end the Run
        return ToolResult.text(f"{type(error).__name__}: {error}", is_error=True)


async def _call_masked(
    tool: OfferedTool, skill: SkillSession, tool_call: ToolCall, vault: SecretVault
) -> ToolResult | Question:
    from perstack.engine.plugins.secret_vault import MaskedCall  # imported late: few Runs mask secrets

    try:
        masked_call = MaskedCall(vault, tool_call, tool.spec.subject)
    except SkillError as error:
        return ToolResult.text(str(error), is_error=True)
    return await masked_call.mask_result(await _call_skill(skill, masked_call.request))
