"""Reasons why each call of a step was allowed or not: the decision, the rule, the grant, and who approved it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from perstack.core.definitions.exec_grant import EXEC, ExecGrant
from perstack.core.definitions.permissions import DECISION_WORDS
from perstack.core.definitions.skills import DecidedCall
from perstack.core.runs import events
from perstack.dataclass import dataclass

_GRANTS: dict[ExecGrant | None, str] = {
    "named": "the definition names exec",
    "open": "the caller of the Run opened exec",
    "asks": "the definition does not name exec, so a person is asked",
    None: "the log is of a version in which exec needed no grant",
}


@dataclass(frozen=True, slots=True)
class CallFact:
    """A fact about a call, and the place of the event that records it."""

    name: str
    text: str
    seq: int
    event_id: str = ""  # another event that the fact refers to, possibly of another Run


@dataclass(frozen=True, slots=True)
class CallReason:
    """The facts of the log that explain why a call ran or did not."""

    id: str
    tool_name: str
    verdict: str
    facts: list[CallFact] = field(default_factory=list[CallFact])


def reasons_of(lines: Iterable[tuple[int, events.StoredEvent]], exec_grant: ExecGrant | None) -> list[CallReason]:
    """Return the reasons of the calls of a step, from its events and their places."""
    reasons: dict[str, CallReason] = {}
    for seq, event in lines:
        if isinstance(event, events.CallTools):
            for decided in event.calls:
                facts = _decision_facts(decided, seq, exec_grant)
                reasons[decided.id] = CallReason(decided.id, decided.tool_name, _verdict(decided), facts)
            continue
        call_id = getattr(event, "tool_call_id", None)
        reason = reasons.get(call_id) if isinstance(call_id, str) else None
        if reason is not None:
            reason.facts.extend(CallFact(name, text, seq) for name, text in _later_facts(event) if text)
    return list(reasons.values())


def _verdict(decided: DecidedCall) -> str:
    if decided.kind == "refused":
        return f"refused by {decided.decider}"
    if decided.asks:
        return "a person had to approve it"
    if decided.approved_by:
        return "covered by an approval for the whole Job"
    if decided.kind in ("todo", "clearTodo", "attemptCompletion"):
        return "the host itself does it: no rule applies"
    return "allowed: no rule asks about it or denies it"


def _decision_facts(decided: DecidedCall, seq: int, exec_grant: ExecGrant | None) -> list[CallFact]:
    path_texts = "; ".join(f"{path} leads to {', '.join(targets)}" for path, targets in decided.ways.items())
    pairs = (
        ("skill", decided.skill_name),
        ("effect", decided.effect if decided.kind == "tool" else decided.kind),
        ("decided by", f"stage {decided.decider}" if decided.decider else ""),
        ("rule", decided.rule),
        ("problem", decided.problem or ""),
        ("grant", _GRANTS[exec_grant] if decided.tool_name == EXEC else ""),
        ("opens", ", ".join(decided.opens)),
        ("paths", path_texts),
        ("definition", decided.definition),
        ("not agreed to", decided.changed),
        ("calls", decided.target or ""),
    )
    facts = [CallFact(name, text, seq) for name, text in pairs if text]
    if decided.approved_by:
        facts.append(CallFact("approved by", "the event", seq, decided.approved_by))
    return facts


def _later_facts(event: events.StoredEvent) -> Iterable[tuple[str, str]]:
    match event:
        case events.RequestApproval():
            yield "asked", f"rule {event.rule}" + (f"; again, because {event.again}" if event.again else "")
            yield "bound to", event.call_digest
            yield "paths", ", ".join(event.leads_to)
        case events.DecideApproval():
            yield "decided", f"{DECISION_WORDS[event.decision]}, by {event.by}"
            yield "rule for the Job", event.rule
            yield "reason", event.text
        case events.ChangeCall():
            yield "changed", f"the arguments, by {event.by}"
        case events.DecideChangedCall():
            yield "changed call", event.problem or ("approved as changed" if event.approved else "judged again")
        case events.StartToolCall():
            yield "started", event.call_digest
        case events.CallInteractiveTool():
            yield "asked", "a person answers it"
        case events.AnswerQuestion():
            yield "answered", "" if event.by is None else f"by {event.by}"
        case events.SettleCall():
            yield "settled", event.settlement + ("" if event.by is None else f", by {event.by}")
        case events.FinishToolCall() if event.by is not None:
            yield "answered", f"by {event.by}"
        case _:
            pass
