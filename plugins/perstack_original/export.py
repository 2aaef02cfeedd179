"""Export of a Job to the original Perstack's format: checkpoints with messages, and one file per event.

The inverse of `importing`. A Run that continued after a stop becomes several runs, one per segment; steps count over
the whole Job. Ids look like the original's and are derived from ours, so the same Job always gives the same files. Data
that the original cannot represent is omitted: todos, the raw text of invalid arguments, durations.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import field
from hashlib import sha256
from typing import assert_never

from perstack.core.base.chain import Head
from perstack.core.base.records import Record
from perstack.core.base.usage import NO_USAGE, Usage
from perstack.core.messages.messages import (
    ExpertMessage,
    Message,
    ProviderToolPart,
    ReplyPart,
    ResultContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from perstack.core.runs import events as ours
from perstack.core.runs.evolve import evolve
from perstack.core.runs.state import Run, begin
from perstack.dataclass import dataclass
from perstack_original import models as theirs

STATUSES = {
    "running": "proceeding",
    "queued": "proceeding",
    "stoppedByMaxSteps": "stoppedByExceededMaxSteps",
    "stoppedByBudget": "stoppedByExceededMaxSteps",
    "stoppedByInterrupt": "stoppedByError",
}
_STOPS = (
    ours.StopRunByDelegate,
    ours.StopRunByInteractiveTool,
    ours.StopRunByExceededMaxSteps,
    ours.StopRunByExceededBudget,
    ours.StopRunByInterrupt,
    ours.ErrorRun,
    ours.FinishRun,
)


@dataclass(slots=True)
class _Stretch:
    """State of the export: one of our Runs, and the original's run that is currently written."""

    run: Run
    ids: list[str]
    run_id: str
    offset: int  # difference between the Job's step numbers and the Run's
    clock: int
    part: int = 0
    is_continuing: bool = False  # True from a resume until all open calls have their results
    usage: Usage = field(default_factory=Usage)  # usage of the last generation

    @property
    def step(self) -> int:
        return self.offset + max(self.run.step, 1)


@dataclass(slots=True)
class _Export:
    logs: Mapping[str, Sequence[ours.StoredEvent]]
    blobs: Mapping[str, bytes]
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    run_states: dict[str, tuple[Run, list[str]]] = field(default_factory=dict[str, tuple[Run, list[str]]])
    run_ids: dict[str, str] = field(default_factory=dict[str, str])
    last_steps: dict[str, int] = field(default_factory=dict[str, int])
    last_start: int = 0

    def run(self, run_id: str, offset: int) -> None:
        """Write a Run and the Runs that it started; `offset` is the number of the Job's steps before it."""
        log = self.logs.get(run_id, ())
        if not log or run_id in self.last_steps:
            return
        stretch = self._begin_run(log[0], offset)
        for index, event in enumerate(log[1:], 1):
            previous = stretch.run
            if previous.status != "running" and not isinstance(
                event, ours.QueueRun | ours.CloseRun | ours.StartRewind | ours.FinishRewind | ours.RedactEvent
            ):
                self._continue_stretch(stretch, event)
            stretch.run = evolve(previous, event, Head(index + 1))
            stretch.ids += [
                _derive_id(run_id, "message", n) for n in range(len(stretch.ids), len(stretch.run.messages))
            ]
            follower = log[index + 1] if index + 1 < len(log) else None
            self._export_event(stretch, previous, event, follower)
            self.run_states[event.id] = (stretch.run, list(stretch.ids))
        self.last_steps[run_id] = stretch.step

    def _begin_run(self, start: ours.StoredEvent, offset: int) -> _Stretch:
        """Write the start of a Run. Raises ValueError if its log does not begin with `startRun`."""
        if not isinstance(start, ours.StartRun):
            raise ValueError(f"the log of {start.run_id} does not begin with startRun")
        base = self.run_states.get(start.continued_from.checkpoint_id) if start.continued_from else None
        state = begin(start, Head(1), base[0] if base else None)
        base_ids = base[1] if base else []
        ids = base_ids + [_derive_id(start.run_id, "message", n) for n in range(len(base_ids), len(state.messages))]
        self.last_start = clock = max(start.timestamp, self.last_start + 1)
        stretch = _Stretch(state, ids, self._original_run_id(start.run_id, 0), offset, clock - 1)
        self.run_states[start.id] = (state, list(ids))
        messages = self._convert_messages(stretch)
        stretch.is_continuing = is_answer = start.continued_from is not None and (
            start.continued_from.answers or start.continued_from.as_it_was
        )
        earlier_messages, query = (messages, ()) if is_answer else (messages[:-1], messages[-1:])
        initial = self._create_checkpoint(stretch, 0).model_copy(
            update={"status": "init", "messages": earlier_messages if base else (), "usage": NO_USAGE}
        )
        input_messages = query if base else (earlier_messages[0], *query)
        self._write_event(stretch, start, "startRun", initial_checkpoint=initial, input_messages=input_messages)
        setting = theirs.OriginalRunSetting(model=start.model, provider_config={"providerName": start.provider})
        self._write_file(stretch, "run-setting.json", setting)
        return stretch

    def _continue_stretch(self, stretch: _Stretch, event: ours.StoredEvent) -> None:
        started = [call.delegation.run_id for call in stretch.run.calls.values() if call.delegation]
        last = max([stretch.step, *(self.last_steps.get(run_id, 0) for run_id in started)])
        stretch.part += 1
        stretch.is_continuing = True
        stretch.run_id = self._original_run_id(stretch.run.id, stretch.part)
        stretch.offset = last + 1 - max(stretch.run.step, 1)
        stretch.clock = self.last_start = max(event.timestamp, stretch.clock + 1, self.last_start + 1)
        initial = self._create_checkpoint(stretch, stretch.run.head.seq)
        self._write_event(stretch, event, "startRun", initial_checkpoint=initial, input_messages=())

    def _export_event(  # noqa: C901 - one case for each kind of event, each a line or three
        self, stretch: _Stretch, previous_run: Run, event: ours.StoredEvent, follower: ours.StoredEvent | None
    ) -> None:
        """Write what the original records for an event, if anything."""
        match event:
            case ours.StartGeneration():
                stretch.is_continuing = False
                kind = "startStreamingRunResult" if event.final else "startGeneration"
                self._write_event(
                    stretch, event, kind, messages=None if event.final else self._convert_messages(stretch)
                )
            case ours.FinishGeneration():
                stretch.usage = event.usage
                if previous_run.is_final_generation:
                    self._write_event(stretch, event, "completeStreamingRunResult", text=event.message.text)
            case ours.Retry():
                self._write_event(
                    stretch, event, "retry", reason=event.error.message, new_messages=(), usage=event.usage
                )
            case ours.CallTools():
                calls = self._convert_calls(stretch)
                message, usage = self._convert_messages(stretch)[-1], stretch.usage
                self._write_event(stretch, event, "callTools", new_message=message, tool_calls=calls, usage=usage)
            case ours.CallDelegate():
                self._export_delegation(stretch, event)
            case ours.CallInteractiveTool() if event.question is None:
                original_tool_call = next(
                    original_tool_call
                    for original_tool_call in self._convert_calls(stretch)
                    if original_tool_call.id == event.tool_call_id
                )
                self._write_event(
                    stretch, event, "callInteractiveTool", tool_call=original_tool_call, usage=stretch.usage
                )
            case ours.FinishToolCall() | ours.AttemptCompletion():
                self._export_results(stretch, previous_run, event)
            case ours.FinishStep():
                if not isinstance(follower, ours.FinishRun):
                    original_checkpoint = self._create_checkpoint(stretch, stretch.run.head.seq, keep=True)
                    self._write_event(stretch, event, "continueToNextStep", checkpoint=original_checkpoint, usage=None)
            case ours.CompactHistory():
                prefix, count = f"after {event.id}", len(stretch.run.messages)
                stretch.ids = [_derive_id(stretch.run.id, prefix, n) for n in range(count)]
            case _ if isinstance(event, _STOPS):
                self._export_stop(stretch, event)
            case _:
                # The original has no permissions, budgets, workers, snapshots, schemas or compaction. Texts of these
                # that the model sees are among the messages; the rest of a redacted event is at its position.
                pass

    def _export_delegation(self, stretch: _Stretch, event: ours.CallDelegate) -> None:
        called = {delegate.tool_call_id for delegate in event.delegates}
        calls = tuple(
            original_tool_call for original_tool_call in self._convert_calls(stretch) if original_tool_call.id in called
        )
        self._write_event(stretch, event, "callDelegate", tool_calls=calls, usage=stretch.usage)
        for delegation in event.delegates:
            self.run(delegation.run_id, stretch.step)

    def _export_results(
        self, stretch: _Stretch, previous_run: Run, event: ours.FinishToolCall | ours.AttemptCompletion
    ) -> None:
        """Write the results; the original records them when all calls of a reply have one."""
        last = stretch.run.messages[-1]
        if len(stretch.run.messages) == len(previous_run.messages) or not isinstance(last, ToolMessage):
            return
        message = self._convert_messages(stretch)[-1]
        by_id = {part.tool_call_id: part for part in message.contents}
        completion = by_id.pop(event.tool_call_id) if isinstance(event, ours.AttemptCompletion) else None
        if by_id:
            kind = "finishAllToolCalls" if stretch.is_continuing else "finishToolCall"
            message_left = message.model_copy(update={"contents": tuple(by_id.values())})
            self._write_event(stretch, event, kind, new_messages=(message_left,))
        if completion is not None:
            result = theirs.OriginalToolResult(
                id=event.tool_call_id, tool_name=completion.tool_name or "", result=completion.contents or ()
            )
            self._write_event(stretch, event, "attemptCompletion", tool_result=result)

    def _export_stop(self, stretch: _Stretch, event: ours.StoredEvent) -> None:
        original_checkpoint = self._create_checkpoint(stretch, stretch.run.head.seq, keep=True)
        facts: dict[str, object] = {"checkpoint": original_checkpoint}
        if isinstance(event, ours.FinishRun):
            facts |= {"text": event.text, "usage": stretch.usage}
        elif isinstance(event, ours.ErrorRun):
            facts["error"] = {"name": event.error.name, "message": event.error.message}
        elif isinstance(event, ours.StopRunByInterrupt):
            facts["error"] = {"name": "Interrupted", "message": event.reason}
        self._write_event(stretch, event, (*event.original_types, event.type)[0], **facts)

    def _create_checkpoint(self, stretch: _Stretch, seq: int, *, keep: bool = False) -> theirs.OriginalCheckpoint:
        """Return the state as a checkpoint at position `seq`; with `keep` also write its file."""
        state = stretch.run
        caller = state.start.delegated_by
        original_checkpoint = theirs.OriginalCheckpoint(
            id=_derive_id(stretch.run_id, "checkpoint", seq),
            job_id=state.start.job_id,
            run_id=stretch.run_id,
            status=STATUSES.get(state.status, state.status),
            step_number=stretch.step,
            messages=self._convert_messages(stretch),
            expert=_expert_name(state.start.expert.key, state.start.expert.version),
            delegated_by=theirs.Caller(
                expert=_expert_name(caller.expert_key),
                tool_call_id=caller.tool_call_id,
                tool_name=caller.tool_name,
                run_id=self.run_ids.get(caller.run_id, caller.run_id),
            )
            if caller
            else None,
            delegate_to=tuple(
                theirs.Callee(
                    expert=_expert_name(call.delegation.expert_key),
                    tool_call_id=call.decided.id,
                    tool_name=call.decided.tool_name,
                    query=call.delegation.query,
                )
                for call in state.open_calls
                if call.delegation
            ),
            usage=state.spending.usage,
            partial_tool_results=tuple(
                self._convert_partial_result(call.result, call.decided.skill_name)
                for call in state.calls.values()
                if call.result is not None and state.open_calls
            ),
        )
        if keep:
            path = f"jobs/{state.start.job_id}/checkpoints/{original_checkpoint.id}.json"
            self.files[path] = original_checkpoint.to_json()
        return original_checkpoint

    def _convert_partial_result(self, result: ToolResultPart, skill: str) -> theirs.OriginalToolResult:
        contents = tuple(self._convert_content(part) for part in result.contents)
        return theirs.OriginalToolResult(
            id=result.tool_call_id, skill_name=skill, tool_name=result.tool_name, result=contents
        )

    def _convert_calls(self, stretch: _Stretch) -> tuple[theirs.OriginalToolCall, ...]:
        return tuple(
            theirs.OriginalToolCall(
                id=call.decided.id,
                skill_name=call.decided.skill_name or "@perstack/base",
                tool_name=call.decided.tool_name,
                args=call.part.args,
            )
            for call in stretch.run.calls.values()
        )

    def _convert_messages(self, stretch: _Stretch) -> tuple[theirs.Message, ...]:
        instruction = theirs.Message(
            type="instructionMessage",
            id=_derive_id(stretch.run.id, "instruction", 0),
            contents=(theirs.OriginalPart(type="textPart", text=stretch.run.start.instruction),),
        )
        pairs = zip(stretch.run.messages, stretch.ids, strict=True)
        return (instruction, *(self._convert_message(message, message_id) for message, message_id in pairs))

    def _convert_message(self, message: Message, message_id: str) -> theirs.Message:
        match message:
            case UserMessage():
                contents = tuple(self._convert_content(part) for part in message.contents)
            case ExpertMessage():
                contents = tuple(_convert_reply_part(part) for part in message.contents)
            case ToolMessage():
                contents = tuple(
                    theirs.OriginalPart(
                        type="toolResultPart",
                        tool_call_id=part.tool_call_id,
                        tool_name=part.tool_name,
                        contents=tuple(self._convert_content(content) for content in part.contents),
                        is_error=part.is_error or None,
                    )
                    for part in message.contents
                )
            case _:
                assert_never(message)
        parts = tuple(
            part.model_copy(update={"id": _derive_id(message_id, "part", n)}) for n, part in enumerate(contents)
        )
        return theirs.Message(type=message.type, id=message_id, contents=parts)

    def _convert_content(self, part: ResultContent) -> theirs.OriginalPart:
        if isinstance(part, TextPart):
            return theirs.OriginalPart(type="textPart", text=part.text)
        data = self.blobs.get(part.sha256)
        if data is None:
            return theirs.OriginalPart(type="textPart", text=f"[{part.mime_type}, {part.size} bytes, not kept]")
        kind = "imageInlinePart" if part.mime_type.startswith("image/") else "fileInlinePart"
        return theirs.OriginalPart(type=kind, encoded_data=base64.b64encode(data).decode(), mime_type=part.mime_type)

    def _write_event(self, stretch: _Stretch, source: ours.StoredEvent, kind: str, **facts: object) -> None:
        # strictly increasing times, so that the file names keep the order
        """Write an event's file; `facts` are the fields that its kind has."""
        stretch.clock = max(source.timestamp, stretch.clock + 1)
        start = stretch.run.start
        event = theirs.Event.model_validate(
            {
                "type": kind,
                "id": _derive_id(stretch.run_id, kind, stretch.clock),
                "expert_key": start.expert_key,
                "timestamp": stretch.clock,
                "job_id": start.job_id,
                "run_id": stretch.run_id,
                "step_number": stretch.step,
                **facts,
            }
        )
        self._write_file(stretch, event.file_name, event)

    def _write_file(self, stretch: _Stretch, name: str, content: Record) -> None:
        self.files[f"jobs/{stretch.run.start.job_id}/runs/{stretch.run_id}/{name}"] = content.to_json()

    def _original_run_id(self, run_id: str, part: int) -> str:
        new_id = _derive_id(run_id, "run", part)
        self.run_ids[run_id] = new_id
        return new_id


def to_original(
    logs: Mapping[str, Sequence[ours.StoredEvent]], blobs: Mapping[str, bytes] | None = None
) -> dict[str, bytes]:
    """Return the files of a Job by path below the state directory; `logs` are in the order of Run numbers.

    A missing blob becomes a text that names it.
    """
    export = _Export(logs, blobs or {})
    for run_id, log in logs.items():
        if log and isinstance(log[0], ours.StartRun) and log[0].delegated_by is None:
            export.run(run_id, max(export.last_steps.values(), default=0))
    for run_id in logs:
        export.run(run_id, max(export.last_steps.values(), default=0))
    return export.files


def _expert_name(key: str, version: str = "1.0.0") -> theirs.ExpertName:
    return theirs.ExpertName(key=key, name=key, version=version)


def _convert_reply_part(part: ReplyPart) -> theirs.OriginalPart:
    match part:
        case ToolCallPart():
            return theirs.OriginalPart(
                type="toolCallPart", tool_call_id=part.tool_call_id, tool_name=part.tool_name, args=part.args
            )
        case ThinkingPart():
            return theirs.OriginalPart(type="thinkingPart", thinking=part.thinking)
        case ProviderToolPart():
            return theirs.OriginalPart(type="textPart", text=part.shown)
        case TextPart():
            return theirs.OriginalPart(type="textPart", text=part.text)
        case _:
            assert_never(part)


def _derive_id(owner: str, kind: str, number: int) -> str:
    value = int.from_bytes(sha256(f"{owner} {kind} {number}".encode()).digest())
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    text = letters[value % 26]
    while len(text) < 24:
        value //= 36
        text += letters[value % 36]
    return text
