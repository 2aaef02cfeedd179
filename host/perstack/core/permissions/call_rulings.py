"""Whether recorded decisions about calls are what the recorded rules make of them: for replay, which must not guess.

Where paths led, and what a tool was called in its skill, is not in a log. So a call has several readings, and only what
differs in each of them is a difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perstack.core.policy.approvals import Standing
from perstack.core.policy.calls import PolicyCall
from perstack.core.policy.permissions import RuleSet
from perstack.core.policy.rules import PermissionRule, read_rule
from perstack.core.runs.ruling import ruled
from perstack.core.tools import DecidedCall, legal_tool_name
from perstack.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """That a call was decided otherwise than by the rules."""

    words: str
    is_certain: bool
    """Whether it differs however the call is read."""


def difference_of(
    chain: Sequence[RuleSet],
    standing: Sequence[Standing],
    decided: DecidedCall,
    readings: Sequence[PolicyCall],
    *,
    is_same_place: bool,
) -> Difference | None:
    """In what a recorded decision is not that of these rules; None if it may be.

    `standing` are the approvals for the whole Job that there are; `is_same_place`: the workspace is where it was.
    Raises ValueError for rules that cannot be read.
    """
    if decided.kind == "refused" and not decided.rule:
        return None  # no rule was asked
    given = tuple(one for one in standing if one.id == decided.approved_by)
    plain = decided.model_copy(
        update={"rule": "", "asks": False, "opens": (), "approved_by": "", "problem": None}
        | ({"kind": "delegate" if decided.skill_name.startswith("delegate/") else "tool"} if decided.rule else {})
    )
    anew = [ruled(chain, given, plain, one) for one in readings]
    was, now = _strictness(decided), [_strictness(one) for one in anew]
    shown = f"call {decided.id} of {decided.tool_name}"
    if was not in now:
        words = f"{shown} is recorded as {_WORDS[was]}, where the rules in force make it {_WORDS[now[0]]}"
        rule = f" ({anew[0].rule})" if anew[0].rule else ""
        is_about_files = any(map(_depends_on_files, readings))
        is_milder = all(one > was for one in now) and (is_same_place or bool(decided.ways))
        is_certain = is_milder or not is_about_files
        return Difference(f"{words}{rule}", is_certain)
    unnamed = next((path for path in decided.opens if not _is_named(chain, path)), None)
    if unnamed is not None:
        return Difference(f"{shown} is recorded with {unnamed} opened, which no rule in force names", True)
    return None


def own_names(chain: Sequence[RuleSet], decided: DecidedCall) -> tuple[str, ...]:
    """What a tool may be called in its skill: its name is changed if models cannot have it, or two skills have it."""
    shown = decided.tool_name
    prefix = f"{legal_tool_name(decided.skill_name)}_"
    found = {shown, shown.removeprefix(prefix)}
    written = {rule.tool.text for rule in _rules(chain) if legal_tool_name(rule.tool.text) in found}
    return tuple(sorted(found | written))


_ALLOWED, _APPROVED, _ASKED, _DENIED = range(4)
_WORDS = ("allowed", "approved for the whole Job", "waiting for approval", "denied")


def _strictness(decided: DecidedCall) -> int:
    if decided.kind == "refused":
        return _DENIED
    return _ASKED if decided.asks else _APPROVED if decided.approved_by else _ALLOWED


def _depends_on_files(call: PolicyCall) -> bool:
    return bool(call.paths()) or bool(call.command)


def _is_named(chain: Sequence[RuleSet], path: str) -> bool:
    return any(
        glob.names_path(path)
        for rule in _rules(chain)
        for glob in (*(() if rule.bare is None else (rule.bare,)), *(glob for _, glob in rule.named))
    )


def _rules(chain: Sequence[RuleSet]) -> Iterator[PermissionRule]:
    for one in chain:
        own = one.permissions
        yield from map(read_rule, (*own.deny, *own.ask, *own.allow))
