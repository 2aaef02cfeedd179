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

# Rows of an event that are not shown as notes: an entry shows their content.
_ROWS_WITH_ENTRY: frozenset[RowItem | None] = frozenset(
    ("query", "model", "thought", "text", "call", "result", "delegate", "approval", "place")
)


@dataclass(slots=True)
class CallEntry:
    """A tool call: its arguments, why it may run, and its result."""

    name: str
    skill: str = ""
    args: JsonObject | None = None
    raw_args: str = ""  # the arguments as the model wrote them, if they are no JSON object
    state: CallState = "decided"
    rule: str = ""  # the permission rule that decided the call, or made it ask a person
    decider: str = ""  # the stage that refused the call or made it ask a person; empty if every stage allows it
    approved_by: str = ""  # id of the event that approved such calls for the whole Job
    problem: str = ""  # reason of the refusal, as the model reads it
    decision: str = ""  # a person's decision or answer, with its author and door
    result: str = ""
    media: tuple[BlobPart, ...] = ()
    diff: tuple[str, ...] = ()  # lines of a unified diff of the file that the call changed
    took_ms: int = 0
    delegate_run_id: str = ""
    changed_args: JsonObject | None = None  # the arguments that a person gave in place of the model's


@dataclass(slots=True)
class ConversationEntry:
    """One item of a conversation."""

    id: str  # id of its HTML element
    kind: EntryKind
    seq: int  # place of the event that began it, from 1
    step: int
    at: int  # milliseconds since 1970
    text: str = ""
    word: str = ""  # subject of a note
    colour: str = ""
    call_entry: CallEntry | None = None
    media: tuple[BlobPart, ...] = ()

    @property
    def size(self) -> int:
        """Approximate number of characters that a page shows of the entry."""
        call_entry = self.call_entry
        texts = [len(self.text)]
        if call_entry is not None:
            arguments = [len(str(args)) for args in (call_entry.args, call_entry.changed_args) if args]
            texts += [len(call_entry.raw_args), len(call_entry.result), sum(map(len, call_entry.diff)), *arguments]
        return sum(min(length, MAX_TEXT_CHARS) for length in texts)


@dataclass(slots=True)
class Conversation:
    """The entries of one Run so far."""

    entries: list[ConversationEntry] = field(default_factory=list[ConversationEntry])
    last_seq: int = 0
    # calls of the last reply, by id
    _calls: dict[str, ConversationEntry] = field(default_factory=dict[str, ConversationEntry])
    _parts: dict[str, ToolCallPart] = field(default_factory=dict[str, ToolCallPart])
    _last_text: str = ""

    def apply(self, seq: int, event: events.StoredEvent) -> list[ConversationEntry]:
        """Apply the event at a place of the log, and return the entries that it made or changed."""
        self.last_seq = seq
        entry_count, changed = len(self.entries), self._apply_to_entries(seq, event)
        for number, row in enumerate(event.describe(EventContext(self._parts, minute))):
            is_result = isinstance(event, events.FinishRun) and row.item == "end"
            if row.item not in _ROWS_WITH_ENTRY and not is_result:
                self._add(
                    event, ConversationEntry(f"e{seq}-n{number}", "note", seq, 0, 0, row.text, row.word, row.colour)
                )
        new = self.entries[entry_count:]
        return [*(entry for entry in changed if all(entry is not other for other in new)), *new]

    def _add(self, event: events.StoredEvent, entry: ConversationEntry) -> ConversationEntry:
        entry.step, entry.at = event.step_number, event.timestamp
        self.entries.append(entry)
        return entry

    def _apply_to_entries(self, seq: int, event: events.StoredEvent) -> list[ConversationEntry]:  # noqa: C901 - one case for each event
        match event:
            case events.StartRun():
                attached = tuple(part for part in event.attachments if isinstance(part, BlobPart))
                self._add(event, ConversationEntry(f"e{seq}", "query", seq, 0, 0, event.query, media=attached))
            case events.FinishGeneration():
                self._add_reply(seq, event)
            case events.CallTools():
                for decided in event.calls:
                    self._apply_decision(decided)
                return [self._calls[decided.id] for decided in event.calls if decided.id in self._calls]
            case events.RequestApproval():
                return self._update_call(event.tool_call_id, state="waits", rule=event.rule, skill=event.skill_name)
            case events.DecideApproval():
                words = f"{event.decision} by {event.by}" + (f": {event.text}" if event.text else "")
                return self._update_call(event.tool_call_id, state="decided", decision=words)
            case events.ChangeCall():
                words = f"changed by {event.by}"
                return self._update_call(event.tool_call_id, decision=words, changed_args=event.args)
            case events.StartToolCall():
                return self._update_call(event.tool_call_id, state="runs")
            case events.CallDelegate():
                changed: list[ConversationEntry] = []
                for delegate in event.delegates:
                    changed += self._update_call(
                        delegate.tool_call_id, state="delegated", delegate_run_id=delegate.run_id
                    )
                return changed
            case events.FinishToolCall():
                return self._apply_result(seq, event)
            case events.FinishRun():
                if event.text.strip() and event.text != self._last_text:
                    self._add(event, ConversationEntry(f"e{seq}", "result", seq, 0, 0, event.text))
            case _:
                pass
        return []

    def _apply_decision(self, decided: DecidedCall) -> None:
        entry = self._calls.get(decided.id)
        if entry is None or entry.call_entry is None:
            return
        call_entry = entry.call_entry
        call_entry.skill, call_entry.rule, call_entry.decider = decided.skill_name, decided.rule, decided.decider
        call_entry.approved_by, call_entry.problem = decided.approved_by, decided.problem or ""
        call_entry.state = "runs" if decided.kind == "tool" and not decided.asks else "decided"

    def _update_call(self, call_id: str, **values: object) -> list[ConversationEntry]:
        entry = self._calls.get(call_id)
        if entry is None or entry.call_entry is None:
            return []
        for name, value in values.items():
            setattr(entry.call_entry, name, value)
        return [entry]

    def _add_reply(self, seq: int, event: events.FinishGeneration) -> None:
        self._calls, self._parts = {}, {part.tool_call_id: part for part in event.message.tool_calls}
        for number, part in enumerate(event.message.contents):
            entry_id = f"e{seq}-{number}"
            match part:
                case ThinkingPart() if part.thinking.strip():
                    self._add(event, ConversationEntry(entry_id, "thought", seq, 0, 0, part.thinking))
                case TextPart() if part.text.strip():
                    self._last_text = part.text
                    self._add(event, ConversationEntry(entry_id, "text", seq, 0, 0, part.text))
                case ToolCallPart():
                    call_entry = CallEntry(part.tool_name, args=part.args, raw_args=part.raw_args or "")
                    entry = ConversationEntry(entry_id, "call", seq, 0, 0, call_entry=call_entry)
                    self._calls[part.tool_call_id] = self._add(event, entry)
                case ProviderToolPart():
                    state: CallState = "failed" if part.is_error else "done"
                    call_entry = CallEntry(
                        part.tool_name, "the provider runs it", part.args, state=state, result=part.result
                    )
                    self._add(event, ConversationEntry(entry_id, "call", seq, 0, 0, call_entry=call_entry))
                case _:
                    pass

    def _apply_result(self, seq: int, event: events.FinishToolCall) -> list[ConversationEntry]:
        entry = self._calls.get(event.tool_call_id)
        if entry is None or entry.call_entry is None:
            entry = self._add(
                event, ConversationEntry(f"e{seq}", "call", seq, 0, 0, call_entry=CallEntry(event.tool_name))
            )
        call_entry = entry.call_entry
        assert call_entry is not None  # noqa: S101 - an entry of a call has one
        call_entry.state = "failed" if event.is_error else "done"
        call_entry.result, call_entry.took_ms = text_of(event.contents), event.duration_ms
        call_entry.media = tuple(part for part in event.contents if isinstance(part, BlobPart))
        if event.by is not None:
            call_entry.decision = f"answered by {event.by}"
        if call_entry.args and not event.is_error:
            call_entry.diff = tuple(edit_from_args(event.tool_name, call_entry.args, call_entry.result).lines)
        return [entry]
