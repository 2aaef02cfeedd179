"""Redaction: remove the texts of an event, and check what remains of it.

The line of a redacted event keeps its digest and hash, so that the chain stays intact, but has no payload. The Run's
state is folded from a replacement in a later `redactEvent` of that log, which the chain covers: the event with its
ids, numbers and usage, and `[redacted]` for every text that a person, a model or a tool wrote. A `redactEvent` with any
other text is rejected, so that a redaction cannot put words into a log. A new event that contains texts needs a case in
`_blanks`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import assert_never

from perstack.core.base.chain import TakenOut
from perstack.core.base.ids import event_id_of, place_of
from perstack.core.base.records import JsonObject, texts_in
from perstack.core.base.text import REDACTED
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.permissions import Permissions, RuleSet, Widening
from perstack.core.definitions.skills import DecidedCall
from perstack.core.runs import events, step_events
from perstack.core.runs.facts import Answer, Definition, ErrorInfo, Question, is_repeat_warning
from perstack.core.runs.messages import ReplyPart, TextPart, ThinkingPart, ToolCallPart
from perstack.dataclass import dataclass
from perstack.errors import UsageError


@dataclass(frozen=True, slots=True)
class Redaction:
    """A redacted event, for people."""

    run_id: str
    seq: int
    type: str
    by: str
    reason: str
    at: int  # milliseconds since 1970
    fields: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()  # known copies of the text at that time

    def to_json(self) -> JsonObject:
        """Return the JSON of `verify --json`."""
        return {
            "runId": self.run_id,
            "seq": self.seq,
            "type": self.type,
            "by": self.by,
            "reason": self.reason,
            "at": self.at,
            "fields": [*self.fields],
            "blobs": [*self.blobs],
            "copies": [*self.copies],
        }


def blanked(event: events.StoredEvent) -> events.StoredEvent:
    """Return the event without any text of a person, a model or a tool. Idempotent."""
    return event.model_copy(update=_blanks(event))


def fields_taken(event: events.StoredEvent) -> tuple[str, ...]:
    """Return the JSON names of the fields that `blanked` changes in this event; empty if there are none."""
    before, after = _json(event), _json(blanked(event))
    return tuple(key for key in before if before[key] != after.get(key))


def check_fields(event: events.StoredEvent, named: Iterable[str]) -> tuple[str, ...]:
    """Return the fields whose texts are removed: always all, as one digest covers them. Raises UsageError."""
    fields = fields_taken(event)
    if not fields:
        raise UsageError(f"event {event.id} ({event.type}) has no text that could be taken out")
    wrong = [name for name in named if name not in fields]
    if wrong:
        raise UsageError(
            f"{', '.join(wrong)}: event {event.id} ({event.type}) has no such text; what can be taken out of it:"
            f" {', '.join(fields)}"
        )
    return fields


_SETTINGS = frozenset(("expert", "instruction", "definition", "permissions", "output", "widening"))
"""Fields with texts of a definition, which are in every Run of an Expert."""


def texts_taken(event: events.StoredEvent, named: Iterable[str] = ()) -> frozenset[str]:
    """Return the texts that `blanked` removes from the named fields, or from all but settings if none is named."""
    before, after = _json(event), _json(blanked(event))
    wanted = frozenset(named) or before.keys() - _SETTINGS
    kept = frozenset(texts_in(after))
    taken = (texts_in(value) for key, value in before.items() if key in wanted and value != after.get(key))
    return frozenset(text for texts in taken for text in texts if text not in kept)


def _blanks(event: events.StoredEvent) -> Mapping[str, object]:  # noqa: C901 - one case for each kind with content
    match event:
        case events.StartRun():
            expert = _bare(event.expert)
            return {
                "query": REDACTED,
                "instruction": REDACTED,
                "expert": expert,
                "labels": {},
                "output": None,
                "agents_md": (),
                "attachments": (),
                **_bare_rules(event.permissions),
            }
        case events.ResumeRun():
            return {
                "signal": None,
                "definition": _bare_definition(event.definition),
                **_bare_rules(event.permissions),
            }
        case step_events.StartGeneration():
            return {"guidance": _mark(event.guidance), "unreachable": {}}
        case step_events.FinishGeneration():
            return {"reply": tuple(_bare_part(part) for part in event.reply)}
        case step_events.Retry() | events.ErrorRun():
            return {"error": _bare_error(event.error)}
        case step_events.SwitchModel():
            return {"error": None if event.error is None else _bare_error(event.error)}
        case step_events.CallTools():
            return {"calls": tuple(one.model_copy(update=_bare_ruling(one)) for one in event.calls)}
        case events.WidenPermissions():
            return {"widening": Widening(source=REDACTED)}
        case step_events.FinishToolCall():
            report = None if event.report is None else event.report.model_copy(update={"text": REDACTED})
            contents = (TextPart(text=REDACTED),) if event.contents else ()
            warning = event.warning if event.warning is None or is_repeat_warning(event.warning) else REDACTED
            return {"contents": contents, "report": report, "warning": warning}
        case step_events.CallDelegate():
            return {"delegates": tuple(one.model_copy(update={"query": REDACTED}) for one in event.delegates)}
        case step_events.CallInteractiveTool():
            asked = {"question": REDACTED} if event.args else {}
            return {"args": asked, "question": _bare_question(event.question)}
        case step_events.AnswerQuestion():
            question = _bare_question(event.answer.question) or Question(message=REDACTED)
            return {"answer": Answer(question=question, action=event.answer.action)}
        case step_events.RequestApproval():
            places = tuple(REDACTED for _ in event.leads_to)
            return {"args": {}, "rule": REDACTED, "leads_to": places, "offers": tuple(REDACTED for _ in event.offers)}
        case step_events.DecideApproval():
            return {"text": REDACTED if event.text else "", "rule": ""}
        case step_events.AttemptCompletion():
            todos = tuple(todo.model_copy(update={"title": REDACTED}) for todo in event.remaining_todos)
            return {"remaining_todos": todos, "result": _mark(event.result)}
        case step_events.CompactHistory():
            error = None if event.error is None else _bare_error(event.error)
            return {"text": REDACTED, "error": error}
        case step_events.RecordSnapshot():
            return {"left_out": (), "problem": REDACTED if event.problem else ""}
        case events.RejectResult():
            return {"problem": REDACTED, "text": REDACTED}
        case events.FinishRun():
            return {"text": REDACTED, "result": None}
        case events.CloseRun():
            return {"reason": REDACTED if event.reason else ""}
        case _:
            return {}


def _bare_rules(rule_sets: tuple[RuleSet, ...]) -> Mapping[str, object]:
    """Replace rules by a rule that asks a person: unknown rules must neither deny nor allow anything."""
    unknown = RuleSet(source=REDACTED, permissions=Permissions(default="ask"))
    return {"permissions": (unknown,)} if rule_sets else {}


def _bare_ruling(call: DecidedCall) -> Mapping[str, object]:
    rule = REDACTED if call.rule else ""
    return {"problem": _mark(call.problem), "rule": rule, "opens": (), "ways": {}}


def _mark(text: str | None) -> str | None:
    return None if text is None else REDACTED


def _bare(expert: Expert) -> Expert:
    """Return the Expert with only its identity and maximum steps: its settings may contain any text."""
    return Expert(key=expert.key, version=expert.version, instruction=REDACTED, max_steps=expert.max_steps)


def _bare_definition(definition: Definition | None) -> Definition | None:
    if definition is None:
        return None
    return definition.model_copy(update={"instruction": REDACTED, "expert": _bare(definition.expert), "agents_md": ()})


def _bare_part(part: ReplyPart) -> ReplyPart:
    match part:
        case TextPart():
            return TextPart(text=REDACTED)
        case ThinkingPart():
            return ThinkingPart(thinking=REDACTED)
        case ToolCallPart():
            return ToolCallPart(tool_call_id=part.tool_call_id, tool_name=part.tool_name)
        case _:
            assert_never(part)


def _bare_error(error: ErrorInfo) -> ErrorInfo:
    return error.model_copy(update={"message": REDACTED})


def _bare_question(question: Question | None) -> Question | None:
    return None if question is None else Question(message=REDACTED)


class NotVouchedFor(ValueError):
    """A line that claims to be redacted without a valid `redactEvent` in its log."""


def stand_in(left: TakenOut, digest: str, seq: int, redactions: Iterable[events.RedactEvent]) -> events.StoredEvent:
    """Return the replacement of the redacted event at `seq` by a log's redactEvents. Raises NotVouchedFor."""
    event = next((one for one in redactions if one.event_id == left.id and place_of(one.id)[2] > seq), None)
    if event is None or left.id != event_id_of(event.run_id, seq):
        raise NotVouchedFor("its content was taken out, and no redactEvent says by whom")
    if (event.event_type, event.digest) != (left.type, digest):
        raise NotVouchedFor(f"its content was taken out, and {event.id}, which says so, means another")
    remains = parse_remains(event)
    if remains is None or remains.type != left.type or not events.is_at_home(remains, event.job_id, event.run_id, seq):
        raise NotVouchedFor(f"{event.id} puts something in its place that a redaction does not leave")
    return remains


def parse_remains(event: events.RedactEvent) -> events.StoredEvent | None:
    """Return the event that a `redactEvent` contains; None if it is invalid or has text in it."""
    try:
        remains = events.parse_event(json.dumps(event.remains).encode())
    except ValueError:
        return None
    return remains if remains == blanked(remains) and not isinstance(remains, events.RedactEvent) else None


def redaction_of(event: events.RedactEvent, seq: int) -> Redaction:
    """Return the redaction for people; `seq`: position of the redacted event."""
    said = event.run_id, seq, event.event_type, str(event.by), event.reason, event.timestamp
    return Redaction(*said, event.fields, event.blobs, event.copies)


def remains_of(event: events.StoredEvent) -> JsonObject:
    """Return the event's remains for a `redactEvent`."""
    return _json(blanked(event))


def _json(event: events.StoredEvent) -> JsonObject:
    found: JsonObject = json.loads(event.to_json())
    return found
