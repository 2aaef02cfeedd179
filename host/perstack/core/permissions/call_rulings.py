"""Apply permission rules to decided calls, and compare recorded decisions with the recorded rules during replay.

A log does not have the resolved paths of a call, nor the tool's own name within its skill. So a call has several
possible readings, and a difference counts as certain only if every reading differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

from perstack.core.definitions.permissions import (
    PermissionRule,
    RuleSet,
    StandingApproval,
    call_digest,
    parse_rule,
    rule_problem,
    with_approved,
)
from perstack.core.definitions.skills import (
    RULES_STAGE,
    STRICTNESS_WORDS,
    DecidedCall,
    Strictness,
    legal_tool_name,
    without_verdict,
)
from perstack.core.permissions.command_patterns import literal_word
from perstack.core.permissions.decide_call import Ruling, decide_call
from perstack.core.permissions.policy_calls import Difference, PolicyCall

_MAX_RULE_CHARS = 1_000


def apply_rules(
    chain: Sequence[RuleSet], standing: Sequence[StandingApproval], decided: DecidedCall, policy_call: PolicyCall
) -> DecidedCall:
    """Return the call with the verdict of these rules and Job-wide approvals. Raises ValueError for an invalid rule."""
    ruling = decide_call(chain, policy_call)
    match ruling.decision:
        case "allow":
            return decided.model_copy(update={"opens": ruling.opens}) if ruling.opens else decided
        case "deny":
            problem = f"Not run: {ruling.reason_text} denies this call. Do not try to get round it."
            return decided.model_copy(update={"kind": "refused", "problem": problem, "rule": _rule_name(ruling)})
        case "ask":
            approval = _covering_approval(chain, standing, decided, policy_call)
            update: dict[str, object] = {"rule": _rule_name(ruling), "opens": ruling.opens}
            addition = {"asks": True} if approval is None else {"approved_by": approval.id}
            return decided.model_copy(update={**update, **addition})
        case _:
            assert_never(ruling.decision)


def resolved_paths(policy_call: PolicyCall) -> tuple[str, ...]:
    """Return the resolved paths of a call, each once."""
    return tuple(dict.fromkeys(name for names in policy_call.paths().values() for name in names))


def offered_rules(chain: Sequence[RuleSet], policy_call: PolicyCall) -> tuple[str, ...]:
    """Return the rules that a person may approve instead of this single call; each alone would allow it.

    For a program it is the exact command, options included: a pattern would cover calls that nobody was shown.
    """
    ruling = decide_call(chain, policy_call)
    asking_rule = ruling.rule if ruling.list == "ask" and not policy_call.command else ""
    candidates = dict.fromkeys((asking_rule, _exact_rule(policy_call)))
    return tuple(
        rule for rule in candidates if rule and len(rule) <= _MAX_RULE_CHARS and allows_alone(chain, policy_call, rule)
    )


def _covering_approval(
    chain: Sequence[RuleSet], standing: Sequence[StandingApproval], decided: DecidedCall, policy_call: PolicyCall
) -> StandingApproval | None:
    digest = (
        call_digest(decided.skill_name, decided.tool_name, policy_call.args, decided.definition) if standing else ""
    )
    return next(
        (
            approval
            for approval in standing
            if (
                allows_alone(chain, policy_call, approval.rule)
                if approval.rule
                else approval.call_digest == digest and approval.leads_to == resolved_paths(policy_call)
            )
        ),
        None,
    )


def allows_alone(chain: Sequence[RuleSet], policy_call: PolicyCall, rule: str) -> bool:
    """Return True if the call would run without a question once a person has approved this rule."""
    return decide_call(with_approved(chain, rule), policy_call).decision == "allow"


def _exact_rule(policy_call: PolicyCall) -> str:
    """Return the rule for exactly this command, such as `exec(git push --dry-run)`; empty without one."""
    if (
        not policy_call.command
        or policy_call.script is not None
        or not all(word.isprintable() for word in policy_call.command)
    ):
        return ""
    skill = "" if policy_call.is_host else f"{policy_call.skill}/"
    rule = f"{skill}{policy_call.tool}({' '.join(map(literal_word, policy_call.command))})"
    is_bare = rule_problem(rule) is None and parse_rule(rule).bare is not None
    return rule if is_bare else ""


def _rule_name(ruling: Ruling) -> str:
    return ruling.reason or ruling.rule or f'default = "{ruling.decision}"'


def difference_of(
    chain: Sequence[RuleSet],
    standing: Sequence[StandingApproval],
    decided: DecidedCall,
    readings: Sequence[PolicyCall],
    *,
    is_same_place: bool,
) -> Difference | None:
    """Return how a recorded decision differs from these rules; None if it may agree.

    If another stage decided, the rules may be milder than its verdict. `standing`: approvals for the whole Job.
    `is_same_place`: the workspace is at the path where the Job ran. Raises ValueError for rules that cannot be parsed.
    """
    used_approvals = tuple(approval for approval in standing if approval.id == decided.approved_by)
    plain = without_verdict(decided)
    rulings = [apply_rules(chain, used_approvals, plain, reading) for reading in readings]
    recorded, current = decided.strictness, [ruling.strictness for ruling in rulings]
    subject = f"call {decided.id} of {decided.tool_name}"
    is_hidden = decided.decider not in ("", RULES_STAGE) and min(current) <= min(recorded, Strictness.ASKED)
    if recorded not in current and not is_hidden:
        before, after = STRICTNESS_WORDS[recorded], STRICTNESS_WORDS[current[0]]
        message = f"{subject} is recorded as {before}, but the rules in force make it {after}"
        rule = f" ({rulings[0].rule})" if rulings[0].rule else ""
        is_about_files = any(map(_depends_on_files, readings))
        is_milder = all(level > recorded for level in current) and (is_same_place or bool(decided.ways))
        return Difference(f"{message}{rule}", "" if is_milder or not is_about_files else _DEPENDS_ON_FILES)
    unnamed = next((path for path in decided.opens if not _is_named(chain, path)), None)
    if unnamed is not None:
        return Difference(f"{subject} is recorded with {unnamed} opened, but no rule in force names it")
    return None


def names_in_skill(chain: Sequence[RuleSet], decided: DecidedCall) -> tuple[str, ...]:
    """Return the names that a tool may have in its skill: the model sees another one if it is illegal or not unique."""
    name = decided.tool_name
    prefix = f"{legal_tool_name(decided.skill_name)}_"
    names = {name, name.removeprefix(prefix)}
    rule_names = {rule.tool.text for rule in _parsed_rules(chain) if legal_tool_name(rule.tool.text) in names}
    return tuple(sorted(names | rule_names))


_DEPENDS_ON_FILES = "decided differently by the rules now; where its paths led at that time is not recorded"


def _depends_on_files(policy_call: PolicyCall) -> bool:
    return bool(policy_call.paths()) or bool(policy_call.command)


def _is_named(chain: Sequence[RuleSet], path: str) -> bool:
    return any(
        glob.names_path(path)
        for rule in _parsed_rules(chain)
        for glob in (*(() if rule.bare is None else (rule.bare,)), *(glob for _, glob in rule.named))
    )


def _parsed_rules(chain: Sequence[RuleSet]) -> Iterator[PermissionRule]:
    for rule_set in chain:
        permissions = rule_set.permissions
        yield from map(parse_rule, (*permissions.deny, *permissions.ask, *permissions.allow))
