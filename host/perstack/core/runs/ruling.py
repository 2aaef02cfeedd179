"""What permission rules make of a decided call: it runs, waits for a person's approval, or is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from perstack.core.policy.approvals import Standing, call_digest
from perstack.core.policy.calls import PolicyCall
from perstack.core.policy.decide import decide_call
from perstack.core.policy.permissions import RuleSet
from perstack.core.policy.rulings import Ruling
from perstack.core.policy.widening import with_approved
from perstack.core.tools import DecidedCall

_LONGEST = 1_000
"""Characters of a rule that a person is offered."""


def ruled(
    chain: Sequence[RuleSet], standing: Sequence[Standing], decided: DecidedCall, call: PolicyCall
) -> DecidedCall:
    """The call under these rules, and under what was approved for the whole Job.

    Raises ValueError for rules that cannot be read.
    """
    ruling = decide_call(chain, call)
    match ruling.decision:
        case "allow":
            return decided.model_copy(update={"opens": ruling.opens}) if ruling.opens else decided
        case "deny":
            problem = f"Not run: {ruling.said} denies this call. Do not try to get round it."
            return decided.model_copy(update={"kind": "refused", "problem": problem, "rule": _named(ruling)})
        case "ask":
            covered = _covering(chain, standing, decided, call)
            update: dict[str, object] = {"rule": _named(ruling), "opens": ruling.opens}
            more = {"asks": True} if covered is None else {"approved_by": covered.id}
            return decided.model_copy(update={**update, **more})
        case _:
            assert_never(ruling.decision)


def leads_to(call: PolicyCall) -> tuple[str, ...]:
    """Where the paths of a call lead."""
    return tuple(dict.fromkeys(name for names in call.paths().values() for name in names))


def offers(chain: Sequence[RuleSet], call: PolicyCall) -> tuple[str, ...]:
    """The rules that a person may choose to approve of more than this very call: each of them is enough for it."""
    ruling = decide_call(chain, call)
    is_wide = bool(call.command) and "(" not in ruling.rule  # of all programs there are
    own = ruling.rule if ruling.list == "ask" and not is_wide else ""
    found = dict.fromkeys((own, _suggested(call)))
    return tuple(rule for rule in found if rule and len(rule) <= _LONGEST and _is_enough(chain, call, rule))


def _covering(
    chain: Sequence[RuleSet], standing: Sequence[Standing], decided: DecidedCall, call: PolicyCall
) -> Standing | None:
    digest = call_digest(decided.skill_name, decided.tool_name, call.args) if standing else ""
    return next(
        (
            one
            for one in standing
            if (
                _is_enough(chain, call, one.rule)
                if one.rule
                else one.call_digest == digest and one.leads_to == leads_to(call)
            )
        ),
        None,
    )


def _is_enough(chain: Sequence[RuleSet], call: PolicyCall, rule: str) -> bool:
    """Whether the call would run if this rule allowed it: all that it does is named, and nothing else asks."""
    return decide_call(with_approved(chain, rule), call).decision == "allow"


def _suggested(call: PolicyCall) -> str:
    """A rule for a program and what it is told to do first, such as `exec(git push *)`."""
    words = call.command
    if len(words) < 2 or not all(word.replace("-", "").replace("_", "").isalnum() for word in words[:2]):
        return ""
    return "" if words[1].startswith("-") else f"{call.shown or call.tool}({words[0]} {words[1]} *)"


def _named(ruling: Ruling) -> str:
    """The rule as it is recorded, and shown to a person."""
    return ruling.reason or ruling.rule or f'default = "{ruling.decision}"'
