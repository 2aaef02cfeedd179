"""Import of the original Perstack's Jobs as our events.

The package registers one `JobFormat` (`plugin`): `read_job` here converts a Job directory when a storage opens it, and
`export` writes one. `models` has the original's data as pydantic models. Imported directories are only read; a storage
writes continued Runs next to them.

The original starts a new run whenever a delegate returns or a question is answered; here the same Run continues. So a
chain of such runs (`_Chain`) becomes one log. Runs are numbered in the order of their start, `{jobId}-{n}`, and steps
count from 1 in each Run, as everywhere in this host: ids, totals and limits keep their usual meaning.

Data that the original does not record stays unknown: the model without run-setting.json, and the Expert's own
instruction apart from the final prompt. A question that was answered again from the same checkpoint becomes a Run that
continues from there with the answer as its query.

Change together: event types in `core` with `_convert_event` and `export`; both directions must stay deterministic,
because ids and file names derive from them.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from hashlib import sha256
from typing import TypeVar

from pydantic import ValidationError

from perstack.core.base.chain import Head
from perstack.core.base.ids import event_id_of, run_id_of
from perstack.core.base.records import Record, first_problem
from perstack.core.base.usage import NO_USAGE
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.settings import Limits
from perstack.core.definitions.skills import DecidedCall, ToolKind
from perstack.core.messages.messages import (
    BlobPart,
    ExpertMessage,
    ReplyPart,
    ResultContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from perstack.core.runs import events as ours
from perstack.core.runs import facts
from perstack.core.runs.evolve import evolve
from perstack.core.runs.facts import Todo
from perstack.core.runs.start import UNKNOWN
from perstack.core.runs.state import Phase, Run, begin
from perstack.dataclass import dataclass
from perstack.errors import StorageError
from perstack.ports.formats import ForeignJob, ReadableFolder
from perstack_original import models as theirs
from perstack_original.models import Event, OriginalRunSetting

_BASE_KINDS: dict[str, ToolKind] = {
    "todo": "todo",
    "clearTodo": "clearTodo",
    "attemptCompletion": "attemptCompletion",
}


class _Remaining(Record):
    remaining_todos: tuple[Todo, ...] = ()


def last_message(original_checkpoint: theirs.OriginalCheckpoint | None) -> str:
    """Return the id of the last message in a checkpoint; empty without one."""
    return original_checkpoint.messages[-1].id if original_checkpoint and original_checkpoint.messages else ""


def query_of(start_event: theirs.Event) -> str:
    """Return the text of the user message with which a run begins; empty if it only continues."""
    return "".join(
        _joined_text(message) for message in start_event.input_messages or () if message.type == "userMessage"
    )


def answer_of(start_event: theirs.Event) -> str:
    """Return the text of the results with which a run begins."""
    partial = start_event.initial_checkpoint.partial_tool_results if start_event.initial_checkpoint else ()
    return "\n".join("".join(part.text or "" for part in result.result) for result in partial)


def instruction_of(messages: Iterable[theirs.Message]) -> str:
    """Return the text of the first instruction among these messages; empty without one."""
    return next((_joined_text(message) for message in messages if message.type == "instructionMessage"), "")


def _joined_text(message: theirs.Message) -> str:
    return "".join(part.text or "" for part in message.contents)


def callees_of(event: theirs.Event) -> tuple[theirs.Callee, ...]:
    """Return the delegates that a run waits for after this event."""
    return event.checkpoint.delegate_to if event.checkpoint else ()


def result_order(events: Sequence[theirs.Event], reply_event: theirs.Event) -> dict[str, int]:
    """Return the position of each result in the message that answers this reply."""
    call_ids = {original_tool_call.id for original_tool_call in reply_event.tool_calls or ()}
    messages = (message for event in events for message in event.new_messages or ())
    ids = [part.tool_call_id for message in messages for part in message.contents if part.tool_call_id in call_ids]
    return {str(call_id): index for index, call_id in enumerate(ids)}


def decide_call(part: ToolCallPart, skill: str, events: Sequence[theirs.Event]) -> DecidedCall:
    """Return the decided call, with its kind derived from the events that followed."""
    kind: ToolKind = "tool"
    if part.tool_name in _BASE_KINDS and skill in ("@perstack/base", ""):
        kind = _BASE_KINDS[part.tool_name]
    for event in events:
        if event.type == "callDelegate" and any(
            original_tool_call.id == part.tool_call_id for original_tool_call in event.tool_calls or ()
        ):
            kind = "delegate"
        if event.type == "callInteractiveTool" and event.tool_call and event.tool_call.id == part.tool_call_id:
            kind = "interactive"
    return DecidedCall(id=part.tool_call_id, tool_name=part.tool_name, skill_name=skill, kind=kind)


def expert_message(message: theirs.Message | None) -> ExpertMessage:
    """Convert a reply message; None gives an empty one."""
    return ExpertMessage(contents=tuple(_convert_reply_part(part) for part in (message.contents if message else ())))


def _convert_reply_part(part: theirs.OriginalPart) -> ReplyPart:
    if part.type == "toolCallPart":
        return ToolCallPart(tool_call_id=part.tool_call_id or "", tool_name=part.tool_name or "", args=part.args or {})
    if part.type == "thinkingPart":
        return ThinkingPart(thinking=part.thinking or "")
    return TextPart(text=part.text or "")


def remaining_todos(result: Iterable[theirs.OriginalPart]) -> tuple[Todo, ...]:
    """Return the todos that kept an Expert from completing, read from the tool's result."""
    try:
        return _Remaining.model_validate_json("".join(part.text or "" for part in result)).remaining_todos
    except ValidationError:
        return ()


def error_of(event: theirs.Event) -> facts.ErrorInfo:
    """Return the error that stopped a run, as far as its last event has it."""
    error = event.error or {}
    return facts.ErrorInfo(
        name=str(error.get("name", "Error")), message=str(error.get("message", event.reason or "unknown"))
    )


_EVENT_ORDER = (
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
    id: str
    events: list[theirs.Event]
    starts: list[theirs.Event]
    run: Run | None = None
    log: list[ours.StoredEvent] = field(default_factory=list[ours.StoredEvent])
    step: tuple[str, int] = ("", 0)  # run and step number of the current step, as the original counts


def from_original(
    job_id: str,
    runs: Mapping[str, Sequence[theirs.Event]],
    settings: Mapping[str, theirs.OriginalRunSetting] | None = None,
) -> ForeignJob:
    """Convert the events of a Job's original runs, in any order, to logs."""
    return _Importer(job_id, runs, settings or {}).result()


class _Importer:
    def __init__(
        self,
        job_id: str,
        runs: Mapping[str, Sequence[theirs.Event]],
        settings: Mapping[str, theirs.OriginalRunSetting],
    ) -> None:
        self._job_id = job_id
        self._settings = settings
        self._blobs: dict[str, bytes] = {}
        self._runs_by_message: dict[str, tuple[Run, str]] = {}
        """Run as it was at a checkpoint and the event's id, by the id of the checkpoint's last message."""
        self._checkpoints: dict[str, str] = {}
        self._chain_of: dict[str, _Chain] = {}  # chains by the original's run ids
        self._chains: list[_Chain] = []
        self._delegates: dict[tuple[str, str], str] = {}  # our Run ids of delegates, by the original's run and call ids
        ordered = [sorted(events, key=_sort_key) for events in runs.values()]
        for run in sorted((run for run in ordered if run), key=lambda run: (run[0].timestamp, run[0].run_id)):
            self._add_to_chain(run)
        self._next_number = len(self._chains) + 1

    def result(self) -> ForeignJob:
        """Convert the chains in order: a Run that another one continues from began before it."""
        for chain in self._chains:
            for event in chain.events:
                self._convert_event(chain, event)
        logs = {chain.id: chain.log for chain in self._chains if chain.log}
        return ForeignJob(logs, self._blobs, self._checkpoints)

    def _add_to_chain(self, run: list[theirs.Event]) -> None:
        """Add a run to the chain that it continues, or begin a chain: one Run of ours."""
        start_event = run[0]
        chain = None if query_of(start_event) else self._find_predecessor(start_event, run)
        if chain is None:
            chain = _Chain(run_id_of(self._job_id, len(self._chains) + 1), [], [])
            self._chains.append(chain)
            caller = start_event.initial_checkpoint.delegated_by if start_event.initial_checkpoint else None
            if caller is not None:
                self._delegates[caller.run_id, caller.tool_call_id] = chain.id
        chain.events += run
        chain.starts.append(start_event)
        self._chain_of[start_event.run_id] = chain

    def _find_predecessor(self, start_event: theirs.Event, run: list[theirs.Event]) -> _Chain | None:
        """Return the chain whose last checkpoint a run without a query continues from; None without one."""
        message_id = last_message(start_event.initial_checkpoint)
        if start_event.type != "startRun" or not message_id:
            return None
        for chain in self._chains:
            last = next((event.checkpoint for event in reversed(chain.events) if event.checkpoint), None)
            if last_message(last) == message_id:
                return chain
        return None

    def _convert_event(self, chain: _Chain, event: theirs.Event) -> None:  # noqa: C901 - one case for each kind of event
        """Append our events for an event of the original."""
        match event.type:
            case "startRun":
                self._convert_start(chain, event)
            case "startGeneration":
                self._convert_generation(chain, event)
            case "retry":
                self._append_event(
                    chain, event, ours.Retry, error=error_of(event), attempt=1, delay_ms=0, usage=event.usage
                )
            case "callTools":
                self._convert_reply(chain, event)
            case "callDelegate":
                self._convert_delegation(chain, event)
            case "callInteractiveTool":
                self._convert_question(chain, event)
            case "attemptCompletion":
                self._convert_completion_attempt(chain, event)
            case "finishToolCall" | "finishAllToolCalls" | "resumeToolCalls":
                self._finish_calls(chain, event, event.new_messages or ())
            case "continueToNextStep":
                self._finish_step(chain, event)
            case "completeRun":
                self._convert_completion(chain, event)
            case _:
                self._convert_stop(chain, event)

    def _convert_start(self, chain: _Chain, event: theirs.Event) -> None:
        """Begin our Run, or resume it if this run continues it."""
        if chain.run is not None:
            if chain.run.status != "stoppedByDelegate":
                self._append_event(
                    chain, event, ours.ResumeRun, reason="answer", checkpoint_id=_last_event_id(chain.run)
                )
            return
        original_checkpoint = event.initial_checkpoint
        place = self._find_continued_run(original_checkpoint)
        setting = self._settings.get(event.run_id, theirs.OriginalRunSetting())
        provider = setting.provider_config.get("providerName")
        instruction = instruction_of(
            (*(event.input_messages or ()), *(original_checkpoint.messages if original_checkpoint else ()))
        )
        expert_name = original_checkpoint.expert if original_checkpoint else theirs.ExpertName(key=event.expert_key)
        delegates = {callee.expert.key for item in chain.events for callee in callees_of(item)}
        fields = {
            "query": query_of(event) or answer_of(event),
            "model": setting.model or UNKNOWN,
            "provider": provider if isinstance(provider, str) else UNKNOWN,
            "instruction": instruction,
            "expert": Expert(
                key=expert_name.key,
                version=expert_name.version,
                instruction=instruction,
                delegates=tuple(sorted(delegates)),
            ),
            "limits": Limits(),
            "delegated_by": self._convert_caller(original_checkpoint.delegated_by if original_checkpoint else None),
            "continued_from": facts.ContinuedFrom(run_id=place[0].id, checkpoint_id=place[1]) if place else None,
        }
        start = ours.StartRun.model_validate({**self._common_fields(chain, event, step=0), **fields})
        chain.run = begin(start, Head(1), place[0] if place else None)
        chain.log.append(start)

    def _find_continued_run(self, original_checkpoint: theirs.OriginalCheckpoint | None) -> tuple[Run, str] | None:
        """Return the Run that a run continues from, as it was there. Its last message may only close open calls."""
        messages = reversed(original_checkpoint.messages if original_checkpoint else ())
        return next(
            (self._runs_by_message[message.id] for message in messages if message.id in self._runs_by_message), None
        )

    def _convert_generation(self, chain: _Chain, event: theirs.Event) -> None:
        if chain.run is not None and chain.run.phase is Phase.SETTLED:
            self._finish_step(chain, event)
        position = (event.run_id, event.step_number)
        is_same_step = position == chain.step and chain.run is not None
        step = chain.run.step if is_same_step and chain.run else (chain.run.step if chain.run else 0) + 1
        chain.step = position
        self._append_event(chain, event, ours.StartGeneration, step_number=step)

    def _convert_reply(self, chain: _Chain, event: theirs.Event) -> None:
        reply = expert_message(event.new_message)
        self._append_event(
            chain,
            event,
            ours.FinishGeneration,
            usage=event.usage or NO_USAGE,
            reply=reply.contents,
            finish_reason="toolCalls" if reply.tool_calls else "stop",
            duration_ms=0,
        )
        skills = {original_tool_call.id: original_tool_call.skill_name for original_tool_call in event.tool_calls or ()}
        order = result_order(chain.events, event)
        parts = sorted(reply.tool_calls, key=lambda part: order.get(part.tool_call_id, len(order)))
        if parts:
            calls = tuple(decide_call(part, skills.get(part.tool_call_id, ""), chain.events) for part in parts)
            self._append_event(chain, event, ours.CallTools, calls=calls)

    def _convert_delegation(self, chain: _Chain, event: theirs.Event) -> None:
        callees = [callee for item in chain.events if item.run_id == event.run_id for callee in callees_of(item)]
        keys = {callee.tool_call_id: callee.expert.key for callee in callees}
        delegations = tuple(
            facts.Delegation(
                tool_call_id=original_tool_call.id,
                tool_name=original_tool_call.tool_name,
                expert_key=keys.get(original_tool_call.id, original_tool_call.tool_name),
                run_id=self._delegate_run(event.run_id, original_tool_call.id),
                query=str(original_tool_call.args.get("query", "")),
            )
            for original_tool_call in event.tool_calls or ()
            if original_tool_call.id in _open_call_ids(chain)
        )
        if delegations:
            self._append_event(chain, event, ours.CallDelegate, delegates=delegations)

    def _delegate_run(self, caller: str, call_id: str) -> str:
        if (caller, call_id) not in self._delegates:
            # a delegate that was decided on but never started gets an unused number
            self._delegates[caller, call_id] = run_id_of(self._job_id, self._next_number)
            self._next_number += 1
        return self._delegates[caller, call_id]

    def _convert_question(self, chain: _Chain, event: theirs.Event) -> None:
        original_tool_call = event.tool_call
        if original_tool_call is not None and original_tool_call.id in _open_call_ids(chain):
            facts = original_tool_call.model_dump(exclude={"id"})
            self._append_event(chain, event, ours.CallInteractiveTool, tool_call_id=original_tool_call.id, **facts)

    def _convert_completion_attempt(self, chain: _Chain, event: theirs.Event) -> None:
        result = event.tool_result
        if result is not None and result.id in _open_call_ids(chain):
            todos = remaining_todos(result.result)
            self._append_event(chain, event, ours.AttemptCompletion, tool_call_id=result.id, remaining_todos=todos)

    def _finish_calls(self, chain: _Chain, event: theirs.Event, messages: Sequence[theirs.Message]) -> None:
        # the original puts files read by a tool in a user message after the result; here they are part of the result
        extra = tuple(part for message in messages if message.type == "userMessage" for part in message.contents)
        results = [part for message in messages if message.type == "toolMessage" for part in message.contents]
        for index, part in enumerate(results):
            if part.tool_call_id not in _open_call_ids(chain):
                continue
            contents = (part.contents or ()) + (extra if index == len(results) - 1 else ())
            self._append_event(
                chain,
                event,
                ours.FinishToolCall,
                tool_call_id=part.tool_call_id,
                tool_name=part.tool_name or "",
                contents=tuple(self._convert_content(content) for content in contents),
                is_error=bool(part.is_error),
            )

    def _finish_partial(self, chain: _Chain, event: theirs.Event) -> None:
        for result in event.checkpoint.partial_tool_results if event.checkpoint else ():
            if result.id in _open_call_ids(chain):
                self._append_event(
                    chain,
                    event,
                    ours.FinishToolCall,
                    tool_call_id=result.id,
                    tool_name=result.tool_name,
                    contents=tuple(self._convert_content(part) for part in result.result),
                )

    def _finish_step(self, chain: _Chain, event: theirs.Event) -> None:
        if chain.run is not None and chain.run.phase is Phase.SETTLED:
            usage = chain.run.spending.step_usage
            self._append_event(chain, event, ours.FinishStep, checkpoint_id=_next_event_id(chain.run), usage=usage)

    def _convert_completion(self, chain: _Chain, event: theirs.Event) -> None:
        """Append the final generation, if its result is not a tool's, and the end of the Run."""
        state, original_checkpoint = chain.run, event.checkpoint
        if state is None:
            return
        last = original_checkpoint.messages[-1] if original_checkpoint and original_checkpoint.messages else None
        reply = expert_message(last) if last and last.type == "expertMessage" else ExpertMessage()
        if not reply.contents:
            reply = ExpertMessage(contents=(TextPart(text=event.text or ""),))
        self._settle_open_calls(chain, event)
        state = chain.run or state
        has_text = last is None or last.type == "expertMessage"
        if state.phase is Phase.SETTLED and state.result is None and has_text:
            self._append_event(chain, event, ours.StartGeneration, final=True)
        if chain.run is not None and chain.run.phase is Phase.GENERATING:
            usage = event.usage or NO_USAGE
            self._append_event(
                chain,
                event,
                ours.FinishGeneration,
                usage=usage,
                reply=reply.contents,
                finish_reason="stop",
                duration_ms=0,
            )
        self._finish_step(chain, event)
        self._convert_stop(chain, event)

    def _settle_open_calls(self, chain: _Chain, event: theirs.Event) -> None:
        """Give results to the calls that are open at the end of a run.

        For `attemptCompletion` the original records none if the reply has a text: that text is the result.
        """
        if chain.run is None:
            return
        for call in chain.run.open_calls:
            if call.decided.kind == "attemptCompletion":
                self._append_event(
                    chain, event, ours.AttemptCompletion, tool_call_id=call.decided.id, result=event.text or None
                )
        messages = event.checkpoint.messages if event.checkpoint else ()
        self._finish_calls(chain, event, [message for message in messages if message.type == "toolMessage"])

    def _convert_stop(self, chain: _Chain, event: theirs.Event) -> None:
        """Append the event that ended or stopped the run."""
        if chain.run is None:
            return
        self._finish_partial(chain, event)
        place = _next_event_id(chain.run)
        match event.type:
            case "completeRun":
                text = event.text if event.text is not None else chain.run.result or ""
                usage = chain.run.spending.usage
                self._append_event(chain, event, ours.FinishRun, checkpoint_id=place, text=text, total_usage=usage)
            case "stopRunByDelegate":
                self._append_event(chain, event, ours.StopRunByDelegate, checkpoint_id=place)
            case "stopRunByInteractiveTool":
                self._append_event(chain, event, ours.StopRunByInteractiveTool, checkpoint_id=place)
            case "stopRunByExceededMaxSteps":
                self._finish_step(chain, event)
                place, steps = _next_event_id(chain.run), event.step_number
                self._append_event(chain, event, ours.StopRunByExceededMaxSteps, checkpoint_id=place, max_steps=steps)
            case "stopRunByError":
                self._append_event(chain, event, ours.ErrorRun, checkpoint_id=place, error=error_of(event))
            case _:
                return

    def _append_event(
        self, chain: _Chain, source_event: theirs.Event, kind: type[ours.StoredEvent], **facts: object
    ) -> None:
        if chain.run is None:
            return
        common = self._common_fields(chain, source_event, chain.run.step)
        event = kind.model_validate({**common, **facts})
        chain.log.append(event)
        chain.run = evolve(chain.run, event, Head(len(chain.log)))
        message = last_message(source_event.checkpoint)
        if source_event.checkpoint and "checkpoint_id" in facts:
            self._checkpoints[source_event.checkpoint.id] = event.id
            if message:
                self._runs_by_message[message] = (chain.run, event.id)

    def _common_fields(self, chain: _Chain, source_event: theirs.Event, step: int) -> dict[str, object]:
        return {
            "id": event_id_of(chain.id, len(chain.log) + 1),
            "timestamp": source_event.timestamp,
            "job_id": self._job_id,
            "run_id": chain.id,
            "expert_key": source_event.expert_key,
            "step_number": step,
        }

    def _convert_caller(self, caller: theirs.Caller | None) -> facts.DelegatedBy | None:
        if caller is None:
            return None
        chain = self._chain_of.get(caller.run_id)
        return facts.DelegatedBy(
            expert_key=caller.expert.key,
            run_id=chain.id if chain else caller.run_id,
            tool_call_id=caller.tool_call_id,
            tool_name=caller.tool_name,
        )

    def _convert_content(self, part: theirs.OriginalPart) -> ResultContent:
        if part.encoded_data is None:
            return TextPart(text=part.text if part.text is not None else part.url or "")
        try:
            data = base64.b64decode(part.encoded_data)
        except binascii.Error:
            return TextPart(text="[a file that cannot be decoded]")
        name = sha256(data).hexdigest()
        self._blobs[name] = data
        return BlobPart(sha256=name, mime_type=part.mime_type or "application/octet-stream", size=len(data))


def _sort_key(event: theirs.Event) -> tuple[int, int]:
    return event.timestamp, _EVENT_ORDER.index(event.type) if event.type in _EVENT_ORDER else len(_EVENT_ORDER)


def _last_event_id(run: Run) -> str:
    return event_id_of(run.id, run.head.seq)


def _next_event_id(run: Run) -> str:
    return event_id_of(run.id, run.head.seq + 1)


def _open_call_ids(chain: _Chain) -> frozenset[str | None]:
    return frozenset(call.decided.id for call in chain.run.open_calls) if chain.run else frozenset()


T = TypeVar("T", bound=Record)

_UNREAD = ("-streamRunResult.json", "-startStreamingRunResult.json", "-resolveToolResults.json")
"""File name endings of events without data of their own."""


def read_job(job_id: str, runs: ReadableFolder, names: Sequence[str]) -> ForeignJob:
    """Read a Job's directories. Raises StorageError, naming the file, if one is unreadable."""
    events: dict[str, list[Event]] = {}
    settings: dict[str, OriginalRunSetting] = {}
    for name in names:
        subfolder = runs.find(name)
        if subfolder is None:
            continue
        with subfolder as folder:
            files = sorted(entry.name for entry in folder.entries() if _is_event(entry))
            if not files:
                continue
            settings[name] = _parse_file(OriginalRunSetting, folder, "run-setting.json") or OriginalRunSetting()
            events[name] = [read for file in files if (read := _parse_file(Event, folder, file)) is not None]
            if all(event.type != "startRun" for event in events[name]):
                raise StorageError(f"{folder.path}: it has events, but none of them is startRun")
    return from_original(job_id, events, settings)


def _is_event(entry: os.DirEntry[str]) -> bool:
    return entry.name.startswith("event-") and entry.name.endswith(".json") and not entry.name.endswith(_UNREAD)


def _parse_file(shape: type[T], folder: ReadableFolder, name: str) -> T | None:
    data = folder.read(name)
    if data is None:
        return None
    try:
        return shape.model_validate_json(data)
    except ValidationError as error:
        place, message = first_problem(error)
        raise StorageError(f"{folder.path / name}: {place or 'the file'}: {message}") from error
