"""Reasons why each call of a step was allowed or not: the decision, the rule, the grant, and who approved it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field

from perstack.core.definitions.exec_grant import EXEC, ExecGrant
from perstack.core.definitions.permissions import DECISION_WORDS, RuleSet, apply_widening_to_all
from perstack.core.definitions.skills import DecidedCall
from perstack.core.runs import events
from perstack.dataclass import dataclass

_GRANTS: dict[ExecGrant | None, str] = {
    "named": "the definition names exec",
    "open": "the caller of the Run opened exec",
    "asks": "the definition does not name exec, so a person is asked",
    None: "the log is of a version in which exec needed no grant",
}
_HOST_KINDS = ("todo", "clearTodo", "attemptCompletion")  # calls that the host itself does


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


def rules_after(rule_sets: Sequence[RuleSet], event: events.StoredEvent) -> tuple[RuleSet, ...]:
    """Return the rule sets in force after an event of the Run."""
    match event:
        case events.StartRun():
            return event.permissions
        case events.ResumeRun():
            return (*rule_sets, *event.permissions)
        case events.WidenPermissions():
            return apply_widening_to_all(tuple(rule_sets), event.widening)
        case _:
            return tuple(rule_sets)


def reasons_of(
    lines: Iterable[tuple[int, events.StoredEvent]],
    exec_grant: ExecGrant | None,
    rule_sets: Sequence[RuleSet] | None = None,
) -> list[CallReason]:
    """Return the reasons of the calls of a step, from its events and their places.

    `rule_sets`: those in force before these events; None if they are unknown.
    """
    reasons: dict[str, CallReason] = {}
    for seq, event in lines:
        rule_sets = None if rule_sets is None else rules_after(rule_sets, event)
        if isinstance(event, events.CallTools):
            for decided in event.calls:
                facts = _decision_facts(decided, seq, exec_grant)
                facts.extend(CallFact("rules in force", text, seq) for text in _rule_set_texts(decided, rule_sets))
                verdict = _verdict(decided, exec_grant, rule_sets)
                reasons[decided.id] = CallReason(decided.id, decided.tool_name, verdict, facts)
            continue
        call_id = getattr(event, "tool_call_id", None)
        reason = reasons.get(call_id) if isinstance(call_id, str) else None
        if reason is not None:
            reason.facts.extend(CallFact(name, text, seq) for name, text in _later_facts(event) if text)
    return list(reasons.values())


def _verdict(decided: DecidedCall, exec_grant: ExecGrant | None, rule_sets: Sequence[RuleSet] | None) -> str:
    if decided.kind == "refused":
        return f"refused by {decided.decider}"
    if decided.asks:
        return "a person had to approve it"
    if decided.approved_by:
        return "covered by an approval for the whole Job"
    if decided.kind in _HOST_KINDS:
        return "the host itself does it: no rule applies"
    is_by_default = rule_sets is not None and not any(map(_has_rules, rule_sets))
    if is_by_default and not (decided.tool_name == EXEC and exec_grant == "asks"):
        return "allowed by default: no rule was in force"
    return "allowed: no rule asks about it or denies it"


def _has_rules(rule_set: RuleSet) -> bool:
    permissions = rule_set.permissions
    return bool(permissions.deny or permissions.ask or permissions.allow) or permissions.otherwise != "allow"


def _rule_set_texts(decided: DecidedCall, rule_sets: Sequence[RuleSet] | None) -> Iterable[str]:
    if decided.kind in _HOST_KINDS:
        return
    if rule_sets is None:
        yield "unknown: this page does not read so long a log, or an event before cannot be read"
        return
    for rule_set in rule_sets:
        yield f"{rule_set.source}, default {rule_set.permissions.otherwise}"


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
