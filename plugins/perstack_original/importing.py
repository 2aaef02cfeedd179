"""A Job of the original Perstack as events of ours.

The original begins a new run whenever a delegate returns or a question is answered; here that is one Run going on. So
a chain of such runs becomes one log. Runs are numbered in the order in which they began, `{jobId}-{n}`, and steps are
counted from 1 in each Run, as everywhere in this host: ids, totals and limits then mean what they always mean.

What the original does not record stays unknown: the model if there is no run-setting.json, and the Expert's own
instruction apart from the text that was made of it. A question answered a second time, from the same checkpoint,
becomes a Run that continues from there with the answer as its query.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import field
from hashlib import sha256

from perstack.core import events as ours
from perstack.core import run_facts
from perstack.core.chain import Head
from perstack.core.definitions import Expert, Limits
from perstack.core.ids import event_id_of, run_id_of
from perstack.core.messages import (
    BlobPart,
    ExpertMessage,
    ResultContent,
    TextPart,
)
from perstack.core.runs.begin import begin
from perstack.core.runs.evolve import evolve
from perstack.core.runs.state import Phase, Run
from perstack.core.usage import NO_USAGE
from perstack.dataclass import dataclass
from perstack.ports.formats import ForeignJob
from perstack_original import shapes as theirs
from perstack_original.pieces import (
    answer_of,
    callees_of,
    decided,
    error_of,
    expert_message,
    instruction_of,
    last_message,
    query_of,
    remaining_todos,
    result_order,
)

_LIFE = (
    "startRun",
    "finishAllToolCalls",
    "resumeToolCalls",
    "startGeneration",
    "retry",
    "callTools",
    "callInteractiveTool",
    "callDelegate",
    "resolveToolResults",
    "attemptCompletion",
    "finishToolCall",
    "startStreamingRunResult",
    "completeStreamingRunResult",
    "continueToNextStep",
)


@dataclass(slots=True)
class _Chain:
    """Runs of the original that are one Run of ours."""

    id: str
    events: list[theirs.Event]
    starts: list[theirs.Event]
    state: Run | None = None
    log: list[ours.StoredEvent] = field(default_factory=list[ours.StoredEvent])
    step: tuple[str, int] = ("", 0)
    """The original's run and number of the step in hand."""


def from_original(
    job_id: str,
    runs: Mapping[str, Sequence[theirs.Event]],
    settings: Mapping[str, theirs.RunSetting] | None = None,
) -> ForeignJob:
    """The logs of a Job, given the events of each of its original runs, in any order, and their settings."""
    return _Upgrade(job_id, runs, settings or {}).result()


class _Upgrade:
    def __init__(
        self,
        job_id: str,
        runs: Mapping[str, Sequence[theirs.Event]],
        settings: Mapping[str, theirs.RunSetting],
    ) -> None:
        self._job_id = job_id
        self._settings = settings
        self._blobs: dict[str, bytes] = {}
        self._places: dict[str, tuple[Run, str]] = {}
        """By the id of the last message of a checkpoint: the Run as it was there."""
        self._checkpoints: dict[str, str] = {}
        self._chain_of: dict[str, _Chain] = {}
        """By the original's run id."""
        self._chains: list[_Chain] = []
        self._delegates: dict[tuple[str, str], str] = {}
        """By the original's run id and call: the Run of ours that was called."""
        ordered = [sorted(events, key=_order) for events in runs.values()]
        for run in sorted((run for run in ordered if run), key=lambda run: (run[0].timestamp, run[0].run_id)):
            self._link(run)
        self._next = len(self._chains) + 1

    def result(self) -> ForeignJob:
        """Convert chain by chain: what a Run continues from began before it."""
        for chain in self._chains:
            for event in chain.events:
                self._convert(chain, event)
        logs = {chain.id: chain.log for chain in self._chains if chain.log}
        return ForeignJob(logs, self._blobs, self._checkpoints)

    def _link(self, run: list[theirs.Event]) -> None:
        """Make a run a chain of its own, or the end of the one that it goes on with."""
        start = run[0]
        before = None if query_of(start) else self._predecessor(start, run)
        if before is None:
            before = _Chain(run_id_of(self._job_id, len(self._chains) + 1), [], [])
            self._chains.append(before)
            caller = start.initial_checkpoint.delegated_by if start.initial_checkpoint else None
            if caller is not None:
                self._delegates[caller.run_id, caller.tool_call_id] = before.id
        before.events += run
        before.starts.append(start)
        self._chain_of[start.run_id] = before

    def _predecessor(self, start: theirs.Event, run: list[theirs.Event]) -> _Chain | None:
        wanted = last_message(start.initial_checkpoint)
        if start.type != "startRun" or not wanted:
            return None
        for chain in self._chains:
            last = next((event.checkpoint for event in reversed(chain.events) if event.checkpoint), None)
            if last_message(last) == wanted:
                return chain
        return None

    def _convert(self, chain: _Chain, event: theirs.Event) -> None:  # noqa: C901 - one case for each kind of event
        match event.type:
            case "startRun":
                self._start(chain, event)
            case "startGeneration":
                self._generate(chain, event)
            case "retry":
                self._emit(chain, event, ours.Retry, error=error_of(event), attempt=1, delay_ms=0, usage=event.usage)
            case "callTools":
                self._reply(chain, event)
            case "callDelegate":
                self._call_delegates(chain, event)
            case "callInteractiveTool":
                self._ask(chain, event)
            case "attemptCompletion":
                self._attempt(chain, event)
            case "finishToolCall" | "finishAllToolCalls" | "resumeToolCalls":
                self._finish_calls(chain, event)
            case "continueToNextStep":
                self._finish_step(chain, event)
            case "completeRun":
                self._complete(chain, event)
            case _:
                self._stop(chain, event)

    def _start(self, chain: _Chain, event: theirs.Event) -> None:
        if chain.state is not None:
            if chain.state.status != "stoppedByDelegate":
                self._emit(chain, event, ours.ResumeRun, reason="answer", checkpoint_id=_here(chain.state))
            return
        checkpoint = event.initial_checkpoint
        place = self._place(checkpoint)
        setting = self._settings.get(event.run_id, theirs.RunSetting())
        provider = setting.provider_config.get("providerName")
        instruction = instruction_of((*(event.input_messages or ()), *(checkpoint.messages if checkpoint else ())))
        expert = checkpoint.expert if checkpoint else theirs.ExpertName(key=event.expert_key)
        delegates = {callee.expert.key for one in chain.events for callee in callees_of(one)}
        facts = {
            "query": query_of(event) or answer_of(event),
            "model": setting.model or ours.UNKNOWN,
            "provider": provider if isinstance(provider, str) else ours.UNKNOWN,
            "instruction": instruction,
            "expert": Expert(
                key=expert.key, version=expert.version, instruction=instruction, delegates=tuple(sorted(delegates))
            ),
            "limits": Limits(),
            "delegated_by": self._caller(checkpoint.delegated_by if checkpoint else None),
            "continued_from": run_facts.ContinuedFrom(run_id=place[0].id, checkpoint_id=place[1]) if place else None,
        }
        start = ours.StartRun.model_validate({**self._common(chain, event, step=0), **facts})
        chain.state = begin(start, Head(1), place[0] if place else None)
        chain.log.append(start)

    def _place(self, checkpoint: theirs.Checkpoint | None) -> tuple[Run, str] | None:
        """The Run that a run continues from, as it was there; its own last message may only close open calls."""
        messages = reversed(checkpoint.messages if checkpoint else ())
        return next((self._places[message.id] for message in messages if message.id in self._places), None)

    def _generate(self, chain: _Chain, event: theirs.Event) -> None:
        if chain.state is not None and chain.state.phase is Phase.SETTLED:
            self._finish_step(chain, event)
        here = (event.run_id, event.step_number)
        again = here == chain.step and chain.state is not None
        step = chain.state.step if again and chain.state else (chain.state.step if chain.state else 0) + 1
        chain.step = here
        self._emit(chain, event, ours.StartGeneration, step_number=step)

    def _reply(self, chain: _Chain, event: theirs.Event) -> None:
        reply = expert_message(event.new_message)
        self._emit(
            chain,
            event,
            ours.FinishGeneration,
            usage=event.usage or NO_USAGE,
            reply=reply.contents,
            finish_reason="toolCalls" if reply.tool_calls else "stop",
            duration_ms=0,
        )
        skills = {call.id: call.skill_name for call in event.tool_calls or ()}
        order = result_order(chain.events, event)
        parts = sorted(reply.tool_calls, key=lambda part: order.get(part.tool_call_id, len(order)))
        if parts:
            calls = tuple(decided(part, skills.get(part.tool_call_id, ""), chain.events) for part in parts)
            self._emit(chain, event, ours.CallTools, calls=calls)

    def _call_delegates(self, chain: _Chain, event: theirs.Event) -> None:
        callees = [callee for one in chain.events if one.run_id == event.run_id for callee in callees_of(one)]
        keys = {callee.tool_call_id: callee.expert.key for callee in callees}
        delegations = tuple(
            run_facts.Delegation(
                tool_call_id=call.id,
                tool_name=call.tool_name,
                expert_key=keys.get(call.id, call.tool_name),
                run_id=self._delegate_run(event.run_id, call.id),
                query=str(call.args.get("query", "")),
            )
            for call in event.tool_calls or ()
            if call.id in _open(chain)
        )
        if delegations:
            self._emit(chain, event, ours.CallDelegate, delegates=delegations)

    def _delegate_run(self, caller: str, call_id: str) -> str:
        if (caller, call_id) not in self._delegates:
            # it was decided on and never began: a number that nobody has
            self._delegates[caller, call_id] = run_id_of(self._job_id, self._next)
            self._next += 1
        return self._delegates[caller, call_id]

    def _ask(self, chain: _Chain, event: theirs.Event) -> None:
        call = event.tool_call
        if call is not None and call.id in _open(chain):
            facts = call.model_dump(exclude={"id"})
            self._emit(chain, event, ours.CallInteractiveTool, tool_call_id=call.id, **facts)

    def _attempt(self, chain: _Chain, event: theirs.Event) -> None:
        result = event.tool_result
        if result is not None and result.id in _open(chain):
            left = remaining_todos(result.result)
            self._emit(chain, event, ours.AttemptCompletion, tool_call_id=result.id, remaining_todos=left)

    def _finish_calls(self, chain: _Chain, event: theirs.Event) -> None:
        messages = event.new_messages or ()
        # files that a tool read come as a message of the user behind the result: here they belong to the result
        extra = tuple(part for one in messages if one.type == "userMessage" for part in one.contents)
        results = [part for one in messages if one.type == "toolMessage" for part in one.contents]
        for index, part in enumerate(results):
            if part.tool_call_id not in _open(chain):
                continue
            contents = (part.contents or ()) + (extra if index == len(results) - 1 else ())
            self._emit(
                chain,
                event,
                ours.FinishToolCall,
                tool_call_id=part.tool_call_id,
                tool_name=part.tool_name or "",
                contents=tuple(self._content(one) for one in contents),
                is_error=bool(part.is_error),
            )

    def _finish_partial(self, chain: _Chain, event: theirs.Event) -> None:
        """The results that a stop found there already."""
        for result in event.checkpoint.partial_tool_results if event.checkpoint else ():
            if result.id in _open(chain):
                self._emit(
                    chain,
                    event,
                    ours.FinishToolCall,
                    tool_call_id=result.id,
                    tool_name=result.tool_name,
                    contents=tuple(self._content(part) for part in result.result),
                )

    def _finish_step(self, chain: _Chain, event: theirs.Event) -> None:
        if chain.state is not None and chain.state.phase is Phase.SETTLED:
            usage = chain.state.step_usage
            self._emit(chain, event, ours.FinishStep, checkpoint_id=_next(chain.state), usage=usage)

    def _complete(self, chain: _Chain, event: theirs.Event) -> None:
        state, checkpoint = chain.state, event.checkpoint
        if state is None:
            return
        last = checkpoint.messages[-1] if checkpoint and checkpoint.messages else None
        reply = expert_message(last) if last and last.type == "expertMessage" else ExpertMessage()
        if not reply.contents:
            reply = ExpertMessage(contents=(TextPart(text=event.text or ""),))
        has_text = last is None or last.type == "expertMessage"
        if state.phase is Phase.SETTLED and state.result is None and has_text:
            self._emit(chain, event, ours.StartGeneration, final=True)
        if chain.state is not None and chain.state.phase is Phase.GENERATING:
            usage = event.usage or NO_USAGE
            self._emit(
                chain,
                event,
                ours.FinishGeneration,
                usage=usage,
                reply=reply.contents,
                finish_reason="stop",
                duration_ms=0,
            )
        self._finish_step(chain, event)
        self._stop(chain, event)

    def _stop(self, chain: _Chain, event: theirs.Event) -> None:
        if chain.state is None:
            return
        self._finish_partial(chain, event)
        place = _next(chain.state)
        match event.type:
            case "completeRun":
                text = event.text if event.text is not None else chain.state.result or ""
                usage = chain.state.usage
                self._emit(chain, event, ours.FinishRun, checkpoint_id=place, text=text, total_usage=usage)
            case "stopRunByDelegate":
                self._emit(chain, event, ours.StopRunByDelegate, checkpoint_id=place)
            case "stopRunByInteractiveTool":
                self._emit(chain, event, ours.StopRunByInteractiveTool, checkpoint_id=place)
            case "stopRunByExceededMaxSteps":
                self._finish_step(chain, event)
                place, steps = _next(chain.state), event.step_number
                self._emit(chain, event, ours.StopRunByExceededMaxSteps, checkpoint_id=place, max_steps=steps)
            case "stopRunByError":
                self._emit(chain, event, ours.ErrorRun, checkpoint_id=place, error=error_of(event))
            case _:
                return

    def _emit(self, chain: _Chain, source: theirs.Event, kind: type[ours.StoredEvent], **facts: object) -> None:
        """Add an event, and let the Run's state follow."""
        if chain.state is None:
            return
        common = self._common(chain, source, chain.state.step)
        event = kind.model_validate({**common, **facts})
        chain.log.append(event)
        chain.state = evolve(chain.state, event, Head(len(chain.log)))
        message = last_message(source.checkpoint)
        if source.checkpoint and "checkpoint_id" in facts:
            self._checkpoints[source.checkpoint.id] = event.id
            if message:
                self._places[message] = (chain.state, event.id)

    def _common(self, chain: _Chain, source: theirs.Event, step: int) -> dict[str, object]:
        return {
            "id": event_id_of(chain.id, len(chain.log) + 1),
            "timestamp": source.timestamp,
            "job_id": self._job_id,
            "run_id": chain.id,
            "expert_key": source.expert_key,
            "step_number": step,
        }

    def _caller(self, caller: theirs.Caller | None) -> run_facts.DelegatedBy | None:
        if caller is None:
            return None
        chain = self._chain_of.get(caller.run_id)
        return run_facts.DelegatedBy(
            expert_key=caller.expert.key,
            run_id=chain.id if chain else caller.run_id,
            tool_call_id=caller.tool_call_id,
            tool_name=caller.tool_name,
        )

    def _content(self, part: theirs.Part) -> ResultContent:
        if part.encoded_data is None:
            return TextPart(text=part.text if part.text is not None else part.url or "")
        try:
            data = base64.b64decode(part.encoded_data)
        except binascii.Error:
            return TextPart(text="[a file that cannot be decoded]")
        name = sha256(data).hexdigest()
        self._blobs[name] = data
        return BlobPart(sha256=name, mime_type=part.mime_type or "application/octet-stream", size=len(data))


def _order(event: theirs.Event) -> tuple[int, int]:
    """Events of one millisecond in the order of a step's life; what ends a step comes last."""
    return event.timestamp, _LIFE.index(event.type) if event.type in _LIFE else len(_LIFE)


def _here(state: Run) -> str:
    return event_id_of(state.id, state.head.seq)


def _next(state: Run) -> str:
    """The id of the event that is added next, which names its checkpoint."""
    return event_id_of(state.id, state.head.seq + 1)


def _open(chain: _Chain) -> frozenset[str | None]:
    return frozenset(call.decided.id for call in chain.state.open_calls) if chain.state else frozenset()
