"""Make a recording from the events of a Job."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from hashlib import sha256
from typing import assert_never

from pydantic import JsonValue

from perstack.compaction.summary_texts import summary_in
from perstack.core.base.records import JsonObject
from perstack.core.base.usage import NO_USAGE
from perstack.core.definitions.job_status import JobStatus
from perstack.core.definitions.models import full_name
from perstack.core.definitions.skills import BASE_SKILL, Effect
from perstack.core.messages import messages
from perstack.core.runs import events
from perstack.core.runs.events import StoredEvent
from perstack.core.runs.events.lifecycle import RedactEvent
from perstack.core.runs.start import StartRun
from perstack.core.secrets.masking import SecretMasker
from perstack.dataclass import dataclass
from perstack.errors import UsageError
from perstack.recordings.model import (
    MAX_BLOB_BYTES,
    MAX_RECORDING_BYTES,
    CalledBy,
    RecordedCall,
    RecordedExpert,
    RecordedFile,
    RecordedReply,
    RecordedRun,
    RecordedText,
    RecordedThinking,
    RecordedTool,
    RecordedUse,
    Recording,
    ReplyPart,
    Said,
    SaidApproval,
    SaidForm,
    SaidText,
    ToldText,
)


@dataclass(slots=True)
class RecordingSource:
    """Input of `recording_of`."""

    job_id: str
    status: JobStatus
    logs: Mapping[str, Sequence[StoredEvent]]  # events of each Run in order, by its id
    statuses: Mapping[str, str]
    sent: Mapping[str, int]  # number of messages that each generation was sent, by the id of its `startGeneration`
    tools: Mapping[str, Sequence[JsonObject]]  # tools of each `toolsDigest`, from the Job's blob of that name
    blobs: Mapping[str, bytes]  # images and documents of results, by their sha256


@dataclass(slots=True)
class _OpenReply:
    """Reply whose calls later events of the log complete."""

    reply: RecordedReply
    calls: dict[str, RecordedCall] = field(default_factory=dict[str, RecordedCall])

    def with_calls(self) -> RecordedReply:
        parts = (self.calls[part.call] if isinstance(part, RecordedCall) else part for part in self.reply.reply)
        return self.reply.model_copy(update={"reply": tuple(parts)})


def digest_of_instruction(instruction: str) -> str:
    """Return the digest of an Expert's instruction, as recordings have it."""
    return f"sha256:{sha256(instruction.encode('utf-8', 'surrogatepass')).hexdigest()}"


def recording_of(source: RecordingSource, masker: SecretMasker, version: str) -> Recording:
    """Return the recording of a Job, without secrets.

    Failed generations that were retried, and replies replaced by a fallback's, are left out. Raises UsageError for a
    Job with a redacted event, or a Job that exceeds a recording's limits.
    """
    _check_recordable(source, masker)
    numbers = {run_id: number for number, run_id in enumerate(source.logs)}
    runs: list[RecordedRun] = []
    experts: dict[str, RecordedExpert] = {}
    for run_id, log in source.logs.items():
        start = log[0]
        if not isinstance(start, StartRun):
            raise UsageError(f"{run_id} cannot be recorded: its log does not begin with startRun")
        reader = _LogReader(start, source, masker)
        for event in log:
            reader.add(event)
        delegation = start.delegated_by
        runs.append(
            RecordedRun(
                expert=start.expert_key,
                query=masker.text(start.query),
                called_by=None
                if delegation is None
                else CalledBy(run=numbers[delegation.run_id], call=delegation.tool_call_id),
                model=full_name(start.provider, start.model),
                status=source.statuses[run_id],
                attached=tuple(_record_result_part(part, masker) for part in start.attachments),
                replies=tuple(recorded.with_calls() for recorded in reader.replies.values()),
                told=tuple(_record_told_text(event, masker) for event in log if isinstance(event, events.TellRun)),
            )
        )
        earlier_expert = experts.get(start.expert_key)
        tools = {
            (tool.skill, tool.name): tool
            for tool in (*(() if earlier_expert is None else earlier_expert.tools), *reader.tools)
        }
        instruction = digest_of_instruction(start.expert.instruction)
        experts[start.expert_key] = RecordedExpert(instruction=instruction, tools=tuple(tools.values()))
    recording = Recording(
        job=source.job_id,
        perstack=version,
        status=source.status,
        experts=experts,
        runs=tuple(runs),
        blobs={name: b64encode(data).decode() for name, data in sorted(source.blobs.items())},
    )
    size = len(recording.to_bytes())
    if size > MAX_RECORDING_BYTES:
        raise UsageError(f"Job {source.job_id} cannot be recorded: it would have {size >> 20} MiB, and may have "
                         f"{MAX_RECORDING_BYTES >> 20}")  # fmt: skip
    return recording


def _check_recordable(source: RecordingSource, masker: SecretMasker) -> None:
    """Raise UsageError for a redacted event, for too many bytes of files, and for a file with a secret."""
    for run_id, log in source.logs.items():
        redacted = next((event for event in log if isinstance(event, RedactEvent)), None)
        if redacted is not None:
            reason = f"{redacted.event_id} was redacted, so it does not say what happened"
            raise UsageError(f"{run_id} cannot be recorded: {reason}; record a Job without redactions")
    size = sum(map(len, source.blobs.values()))
    if size > MAX_BLOB_BYTES:
        limit = f"and may have {MAX_BLOB_BYTES >> 20}"
        raise UsageError(f"Job {source.job_id} cannot be recorded: its results have {size >> 20} MiB of files, {limit}")
    for name, data in source.blobs.items():
        if masker.is_in(data):
            flaw = f"a file that a tool gave, {name[:12]}, has a secret of this environment in it"
            raise UsageError(f"Job {source.job_id} cannot be recorded: {flaw}; record a Job without it")


class _LogReader:
    """Reader of one Run's log, which builds the Run's replies from its events."""

    def __init__(self, start: StartRun, source: RecordingSource, masker: SecretMasker) -> None:
        self._source = source
        self._masker = masker
        self._first = self._model = full_name(start.provider, start.model)
        self._generation_start: events.StartGeneration | None = None
        self._tools: dict[str, JsonObject] = {}  # tools of the latest generation, by name
        self._reply_by_call: dict[str, _OpenReply] = {}  # reply that contains a call, by the call's id
        self._changes: dict[str, JsonObject] = {}  # arguments of calls that a person has changed, by the call's id
        self.replies: dict[tuple[int, str], _OpenReply] = {}
        self.tools: list[RecordedTool] = []

    def add(self, event: StoredEvent) -> None:
        match event:
            case events.StartGeneration():
                self._generation_start = event
                self._tools = {
                    str(tool.get("name")): tool for tool in self._source.tools.get(event.tools_digest or "", ())
                }
            case events.SwitchModel():
                self._model = event.to
            case events.FinishGeneration():
                self._on_reply(event)
            case events.CompactHistory():
                self._on_summary(event)
            case _:
                self._add_call_event(event)

    def _add_call_event(self, event: StoredEvent) -> None:
        match event:
            case events.CallTools():
                self._on_call_tools(event)
            case events.FinishToolCall():
                self._on_finish_tool_call(event)
            case events.CallInteractiveTool():
                self._on_question(event)
            case events.AnswerQuestion():
                self._on_answer(event)
            case events.DecideApproval():
                self._on_decision(event)
            case events.ChangeCall():
                self._changes[event.tool_call_id] = self._masker.args(event.args)
            case events.DecideChangedCall():
                self._on_changed_call(event)
            case _:
                pass  # not recorded: the loop decides it again during playback

    def _on_decision(self, event: events.DecideApproval) -> None:
        if event.decision == "sandboxed":
            return  # not recorded: playback decides it again, and runs no program
        decision = "job" if event.decision == "project" else event.decision
        comment, rule = self._masker.text(event.text), self._masker.text(event.rule)
        self._record_answer(event.tool_call_id, SaidApproval(decision=decision, rule=rule, words=comment))

    def _on_changed_call(self, event: events.DecideChangedCall) -> None:
        args = self._changes.pop(event.tool_call_id, None)
        if event.decided is not None:  # a dropped change has no effect
            self._record_answer(event.tool_call_id, SaidApproval(decision="once", changed=args))

    def _on_reply(self, event: events.FinishGeneration) -> None:
        start_generation = self._generation_start
        is_result = start_generation is not None and start_generation.final
        reply = RecordedReply(
            step=event.step_number,
            kind="result" if is_result else "reply",
            messages=0 if start_generation is None else self._source.sent.get(start_generation.id, 0),
            model="" if self._model == self._first else self._model,
            reply=tuple(self._record_part(part) for part in event.reply),
            finish_reason=event.finish_reason,
            usage=event.usage,
            context_window=event.context_window,
        )
        open_reply = _OpenReply(reply, {recorded_call.call: recorded_call for recorded_call in reply.calls})
        self.replies[reply.step, reply.kind] = open_reply
        self._reply_by_call.update(dict.fromkeys(open_reply.calls, open_reply))

    def _record_part(self, part: messages.ReplyPart) -> ReplyPart:
        match part:
            case messages.TextPart():
                return RecordedText(text=self._masker.text(part.text))
            case messages.ThinkingPart():
                return RecordedThinking(thinking=self._masker.text(part.thinking))
            case messages.ToolCallPart():
                raw = None if part.raw_args is None else self._masker.text(part.raw_args)
                args = self._masker.args(part.args)
                return RecordedCall(call=part.tool_call_id, tool=part.tool_name, args=args, raw=raw)
            case messages.ProviderToolPart():
                args, result = self._masker.args(part.args), self._masker.text(part.result)
                return RecordedUse(use=part.tool_name, args=args, result=result, failed=part.is_error)
            case _:
                assert_never(part)

    def _on_call_tools(self, event: events.CallTools) -> None:
        for decided in event.calls:
            self._update_call(decided.id, skill=decided.skill_name, kind=decided.kind)
            if (
                decided.skill_name != BASE_SKILL
                and decided.kind in ("tool", "refused")
                and decided.tool_name in self._tools
            ):
                self.tools.append(
                    _record_tool(self._tools[decided.tool_name], decided.skill_name, decided.effect, self._masker)
                )

    def _on_finish_tool_call(self, event: events.FinishToolCall) -> None:
        open_reply = self._reply_by_call.get(event.tool_call_id)
        recorded_call = None if open_reply is None else open_reply.calls[event.tool_call_id]
        if recorded_call is None:
            return
        if recorded_call.kind == "interactive":
            self._record_answer(event.tool_call_id, SaidText(text=self._masker.text(messages.text_of(event.contents))))
        parts = tuple(_record_result_part(part, self._masker) for part in event.contents)
        result = parts if recorded_call.kind == "tool" else None
        self._update_call(event.tool_call_id, result=result, failed=event.is_error, usage=event.usage)

    def _record_answer(self, call_id: str, said: Said) -> None:
        open_reply = self._reply_by_call.get(call_id)
        if open_reply is not None:
            self._update_call(call_id, said=(*open_reply.calls[call_id].said, said))

    def _on_question(self, event: events.CallInteractiveTool) -> None:
        if event.question is not None:
            text, schema = self._masker.text(event.question.message), self._masker.args(event.question.requested_schema)
            self._record_answer(event.tool_call_id, SaidForm(question=text, requested_schema=schema))

    def _on_answer(self, event: events.AnswerQuestion) -> None:
        open_reply = self._reply_by_call.get(event.tool_call_id)
        answers = () if open_reply is None else open_reply.calls[event.tool_call_id].said
        if answers and isinstance(answers[-1], SaidForm):
            content = self._masker.args(event.answer.content)
            answer = answers[-1].model_copy(update={"action": event.answer.action, "content": content})
            self._update_call(event.tool_call_id, said=(*answers[:-1], answer))

    def _update_call(self, call_id: str, **changes: object) -> None:
        open_reply = self._reply_by_call.get(call_id)
        if open_reply is not None:
            open_reply.calls[call_id] = open_reply.calls[call_id].model_copy(update=changes)

    def _on_summary(self, event: events.CompactHistory) -> None:
        # A summary without a model is an outline. Playback makes it again if no text is recorded.
        texts = (RecordedText(text=self._masker.text(summary_in(event.text))),) if event.model else ()
        model = "" if event.model in (self._first, "") else event.model
        usage = event.usage or NO_USAGE
        step = event.step_number
        reply = RecordedReply(step=step, kind="summary", reply=texts, model=model, usage=usage)
        self.replies[step, "summary"] = _OpenReply(reply)


def _record_told_text(event: events.TellRun, masker: SecretMasker) -> ToldText:
    return ToldText(step=event.step_number, text=masker.text(event.text))


def _record_tool(tool: JsonObject, skill: str, effect: Effect, masker: SecretMasker) -> RecordedTool:
    schema: JsonValue = tool.get("inputSchema")
    return RecordedTool(
        skill=skill,
        name=str(tool.get("name")),
        description=masker.text(str(tool.get("description", ""))),
        input_schema=masker.args(schema) if isinstance(schema, dict) else {},
        effect=effect,
    )


def _record_result_part(part: messages.ResultContent, masker: SecretMasker) -> RecordedText | RecordedFile:
    if isinstance(part, messages.BlobPart):
        return RecordedFile(blob=part.sha256, mime_type=part.mime_type, size=part.size, name=part.name)
    return RecordedText(text=masker.text(part.text))


def blobs_in(logs: Iterable[Iterable[StoredEvent]]) -> frozenset[str]:
    """Return the sha256 of every image and document in results."""
    contents = (
        part for log in logs for event in log if isinstance(event, events.FinishToolCall) for part in event.contents
    )
    return frozenset(part.sha256 for part in contents if isinstance(part, messages.BlobPart))
