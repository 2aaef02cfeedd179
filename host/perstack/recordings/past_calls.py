"""Read the calls of a recorded Run from its lines, without folding its state: thousands of Jobs are scanned."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, replace
from typing import cast

from pydantic import JsonValue

from perstack.core.base.chain import BrokenSeal, open_line
from perstack.core.base.records import JsonObject
from perstack.core.definitions.permissions import Decision
from perstack.core.definitions.skills import Effect, ToolKind
from perstack.dataclass import dataclass

_RELEVANT_EVENT = re.compile(
    rb'\{"type":"(startRun|finishGeneration|callTools|decideApproval|changeCall|decideChangedCall)"'
)
RULED_KINDS: tuple[ToolKind, ...] = ("tool", "delegate", "refused")


@dataclass(frozen=True, slots=True)
class PastCall:
    """Recorded call that permission rules may apply to."""

    id: str
    step: int
    timestamp: int  # time of the decision, in milliseconds since 1970, UTC
    tool: str  # tool's name as the model saw it
    skill: str
    kind: ToolKind
    effect: Effect
    target: str | None
    args: JsonObject | None  # arguments; None if they were redacted from the log
    decision: Decision
    ran: bool
    changed: str = ""  # how the tool's definition differed from the one that was agreed to


@dataclass(slots=True)
class PastRun:
    """Calls of a recorded Run."""

    id: str
    expert: JsonObject = field(default_factory=dict[str, JsonValue])
    works_for: str | None = None  # id of the calling Run; None for a Coordinator
    calls: list[PastCall] = field(default_factory=list[PastCall])


def read_past_run(run_id: str, lines: Iterable[bytes], kinds: Collection[ToolKind] = RULED_KINDS) -> PastRun:
    """Return a log's Run with its calls of these kinds. Raises ValueError for an invalid line."""
    reader = _PastRunReader(PastRun(run_id), kinds)
    for line in lines:
        kind = _RELEVANT_EVENT.match(line)
        if kind is not None:
            reader.add_event(kind[1], _parse_event(line))
    past_run = reader.past_run
    past_run.calls = [_with_approval(past_call, reader.approved_ids) for past_call in past_run.calls]
    return past_run


@dataclass(slots=True)
class _PastRunReader:
    """Reader of one Run's log."""

    past_run: PastRun
    kinds: Collection[ToolKind]
    approved_ids: set[str] = field(default_factory=set[str])
    _args: dict[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    """Arguments of the calls in the latest reply, by call id."""
    _changes: dict[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    """Arguments with which people replaced them, by call id."""

    def add_event(self, kind: bytes, event: JsonObject) -> None:
        call_id = _text_at(event, "toolCallId")
        match kind:
            case b"startRun":
                self.past_run.expert = _object_at(event, "expert")
                self.past_run.works_for = _text_at(_object_at(event, "delegatedBy"), "runId") or None
            case b"finishGeneration":
                self._args = {
                    _text_at(part, "toolCallId"): _object_at(part, "args") for part in _objects_at(event, "reply")
                }
            case b"decideApproval":
                if event.get("decision") != "no":
                    self.approved_ids.add(call_id)
            case b"changeCall":
                self._changes[call_id] = _object_at(event, "args")
            case b"decideChangedCall":
                self._replace_call(call_id, event)
            case _:
                self._add_calls(_objects_at(event, "calls"), event)

    def _replace_call(self, call_id: str, event: JsonObject) -> None:
        decided, step = _object_at(event, "decided"), _number_at(event, "stepNumber")
        if not decided:
            return
        self._args[call_id] = self._changes.get(call_id, {})
        self.past_run.calls = [
            past_call for past_call in self.past_run.calls if (past_call.step, past_call.id) != (step, call_id)
        ]
        self._add_calls([decided], event)
        if event.get("approved"):
            self.approved_ids.add(call_id)

    def _add_calls(self, decided: Iterable[JsonObject], event: JsonObject) -> None:
        self.past_run.calls += [
            past_call for call in decided if (past_call := _to_past_call(call, event, self._args, self.kinds))
        ]


def _to_past_call(
    call: JsonObject, event: JsonObject, args: Mapping[str, JsonObject], kinds: Collection[ToolKind]
) -> PastCall | None:
    kind = cast("ToolKind", call.get("kind", "tool"))
    is_denied = kind == "refused" and bool(call.get("rule"))
    if kind not in kinds or (kind == "refused" and not is_denied):
        return None
    call_id = _text_at(call, "id")
    return PastCall(
        id=call_id,
        step=_number_at(event, "stepNumber"),
        timestamp=_number_at(event, "timestamp"),
        tool=_text_at(call, "toolName"),
        skill=_text_at(call, "skillName"),
        kind="tool" if is_denied else kind,
        effect=cast("Effect", call.get("effect", "sideEffect")),
        target=_text_at(call, "target") or None,
        args=args.get(call_id),
        decision="deny" if is_denied else "ask" if call.get("asks") or call.get("approvedBy") else "allow",
        ran=not is_denied and not call.get("asks"),
        changed=_text_at(call, "changed"),
    )


def _with_approval(past_call: PastCall, approved_ids: set[str]) -> PastCall:
    if past_call.ran or past_call.decision != "ask" or past_call.id not in approved_ids:
        return past_call
    return replace(past_call, ran=True)


def _parse_event(line: bytes) -> JsonObject:
    try:
        event: JsonValue = json.loads(open_line(line).payload)
    except BrokenSeal as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("a line is nested too deeply") from None
    return event if isinstance(event, dict) else {}


def _object_at(event: JsonObject, name: str) -> JsonObject:
    value = event.get(name)
    return value if isinstance(value, dict) else {}


def _objects_at(event: JsonObject, name: str) -> list[JsonObject]:
    value = event.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text_at(event: JsonObject, name: str) -> str:
    value = event.get(name)
    return value if isinstance(value, str) else ""


def _number_at(event: JsonObject, name: str) -> int:
    value = event.get(name)
    return value if isinstance(value, int) else 0
