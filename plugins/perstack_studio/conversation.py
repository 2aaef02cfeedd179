"""The texts of a Run's model and the results of its tools, folded from events into entries. Pure.

`Conversation.apply` takes one event and returns the entries that it made or changed. An entry keeps its id, which is
made of the place of the event that began it, so a page replaces what has changed. A fold may begin in the middle of a
log: a result whose call lies before it gets an entry of its own.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from perstack.core.base.records import JsonObject
from perstack.core.definitions.skills import DecidedCall
from perstack.core.messages.messages import BlobPart, ProviderToolPart, TextPart, ThinkingPart, ToolCallPart, text_of
from perstack.core.runs import events
from perstack.core.runs.log_rows import EventContext, RowItem
from perstack.dataclass import dataclass
from perstack.doors.shared.call_diffs import edit_from_args
from perstack.doors.shared.text import minute
from perstack_studio.words import MAX_TEXT_CHARS

EntryKind = Literal["query", "thought", "text", "call", "note", "result"]
CallState = Literal["decided", "waits", "runs", "done", "failed", "delegated"]

# rows that an entry replaces
_DRAWN: frozenset[RowItem | None] = frozenset(
    ("query", "model", "thought", "text", "call", "result", "delegate", "approval", "place")
)


@dataclass(slots=True)
class CallEntry:
    """A tool call: its arguments, why it may run, and its result."""

    name: str
    skill: str = ""
    args: JsonObject | None = None
    raw_args: str = ""  # what the model wrote, if it is no JSON object
    state: CallState = "decided"
    rule: str = ""  # the permission rule that decided about the call, or has a person asked
    decider: str = ""  # the stage that refused the call or has a person asked; empty if every stage allows it
    approved_by: str = ""  # event with the approval for the whole Job that covers the call
    problem: str = ""  # why the call was refused, as the model reads it
    decision: str = ""  # what was decided, by whom, through which door
    result: str = ""
    media: tuple[BlobPart, ...] = ()
    diff: tuple[str, ...] = ()  # the change of a file, as lines of a unified diff
    took_ms: int = 0
    delegate_run_id: str = ""
    changed_args: JsonObject | None = None  # the arguments that a person gave in place of the model's


@dataclass(slots=True)
class ConversationEntry:
    """One item of a conversation."""

    id: str  # of its element in a page
    kind: EntryKind
    seq: int  # place of the event that made it, from 1
    step: int
    at: int  # milliseconds since 1970
    text: str = ""
    word: str = ""  # subject of a note
    colour: str = ""
    call_entry: CallEntry | None = None
    media: tuple[BlobPart, ...] = ()

    @property
    def size(self) -> int:
        """About how many characters a page shows of it."""
        call = self.call_entry
        texts = [len(self.text)]
        if call is not None:
            arguments = [len(str(args)) for args in (call.args, call.changed_args) if args]
            texts += [len(call.raw_args), len(call.result), sum(map(len, call.diff)), *arguments]
        return sum(min(length, MAX_TEXT_CHARS) for length in texts)


@dataclass(slots=True)
class Conversation:
    """The entries of one Run so far."""

    entries: list[ConversationEntry] = field(default_factory=list[ConversationEntry])
    last_seq: int = 0
    _calls: dict[str, ConversationEntry] = field(
        default_factory=dict[str, ConversationEntry]
    )  # calls of the last reply, by id
    _parts: dict[str, ToolCallPart] = field(default_factory=dict[str, ToolCallPart])
    _said: str = ""

    def apply(self, seq: int, event: events.StoredEvent) -> list[ConversationEntry]:
        """Apply the event at a place of the log, and return what it made or changed."""
        self.last_seq = seq
        before, changed = len(self.entries), self._follow(seq, event)
        for number, row in enumerate(event.describe(EventContext(self._parts, minute))):
            is_result = isinstance(event, events.FinishRun) and row.item == "end"
            if row.item not in _DRAWN and not is_result:
                self._add(
                    event, ConversationEntry(f"e{seq}-n{number}", "note", seq, 0, 0, row.text, row.word, row.colour)
                )
        new = self.entries[before:]
        return [*(entry for entry in changed if all(entry is not other for other in new)), *new]

    def _add(self, event: events.StoredEvent, entry: ConversationEntry) -> ConversationEntry:
        entry.step, entry.at = event.step_number, event.timestamp
        self.entries.append(entry)
        return entry

    def _follow(self, seq: int, event: events.StoredEvent) -> list[ConversationEntry]:  # noqa: C901 - one case for each event
        match event:
            case events.StartRun():
                attached = tuple(part for part in event.attachments if isinstance(part, BlobPart))
                self._add(event, ConversationEntry(f"e{seq}", "query", seq, 0, 0, event.query, media=attached))
            case events.FinishGeneration():
                self._reply(seq, event)
            case events.CallTools():
                for decided in event.calls:
                    self._decide(decided)
                return [self._calls[decided.id] for decided in event.calls if decided.id in self._calls]
            case events.RequestApproval():
                return self._change(event.tool_call_id, state="waits", rule=event.rule, skill=event.skill_name)
            case events.DecideApproval():
                words = f"{event.decision} by {event.by}" + (f": {event.text}" if event.text else "")
                return self._change(event.tool_call_id, state="decided", decision=words)
            case events.ChangeCall():
                words = f"changed by {event.by}"
                return self._change(event.tool_call_id, decision=words, changed_args=event.args)
            case events.StartToolCall():
                return self._change(event.tool_call_id, state="runs")
            case events.CallDelegate():
                changed: list[ConversationEntry] = []
                for one in event.delegates:
                    changed += self._change(one.tool_call_id, state="delegated", delegate_run_id=one.run_id)
                return changed
            case events.FinishToolCall():
                return self._result(seq, event)
            case events.FinishRun():
                if event.text.strip() and event.text != self._said:
                    self._add(event, ConversationEntry(f"e{seq}", "result", seq, 0, 0, event.text))
            case _:
                pass
        return []

    def _decide(self, decided: DecidedCall) -> None:
        entry = self._calls.get(decided.id)
        if entry is None or entry.call_entry is None:
            return
        call = entry.call_entry
        call.skill, call.rule, call.decider = decided.skill_name, decided.rule, decided.decider
        call.approved_by, call.problem = decided.approved_by, decided.problem or ""
        call.state = "runs" if decided.kind == "tool" and not decided.asks else "decided"

    def _change(self, call_id: str, **values: object) -> list[ConversationEntry]:
        entry = self._calls.get(call_id)
        if entry is None or entry.call_entry is None:
            return []
        for name, value in values.items():
            setattr(entry.call_entry, name, value)
        return [entry]

    def _reply(self, seq: int, event: events.FinishGeneration) -> None:
        self._calls, self._parts = {}, {part.tool_call_id: part for part in event.message.tool_calls}
        for number, part in enumerate(event.message.contents):
            entry_id = f"e{seq}-{number}"
            match part:
                case ThinkingPart() if part.thinking.strip():
                    self._add(event, ConversationEntry(entry_id, "thought", seq, 0, 0, part.thinking))
                case TextPart() if part.text.strip():
                    self._said = part.text
                    self._add(event, ConversationEntry(entry_id, "text", seq, 0, 0, part.text))
                case ToolCallPart():
                    call = CallEntry(part.tool_name, args=part.args, raw_args=part.raw_args or "")
                    entry = ConversationEntry(entry_id, "call", seq, 0, 0, call_entry=call)
                    self._calls[part.tool_call_id] = self._add(event, entry)
                case ProviderToolPart():
                    state: CallState = "failed" if part.is_error else "done"
                    call = CallEntry(part.tool_name, "the provider runs it", part.args, state=state, result=part.result)
                    self._add(event, ConversationEntry(entry_id, "call", seq, 0, 0, call_entry=call))
                case _:
                    pass

    def _result(self, seq: int, event: events.FinishToolCall) -> list[ConversationEntry]:
        entry = self._calls.get(event.tool_call_id)
        if entry is None or entry.call_entry is None:
            entry = self._add(
                event, ConversationEntry(f"e{seq}", "call", seq, 0, 0, call_entry=CallEntry(event.tool_name))
            )
        call = entry.call_entry
        assert call is not None  # noqa: S101 - an entry of a call has one
        call.state = "failed" if event.is_error else "done"
        call.result, call.took_ms = text_of(event.contents), event.duration_ms
        call.media = tuple(part for part in event.contents if isinstance(part, BlobPart))
        if event.by is not None:
            call.decision = f"answered by {event.by}"
        if call.args and not event.is_error:
            call.diff = tuple(edit_from_args(event.tool_name, call.args, call.result).lines)
        return [entry]
