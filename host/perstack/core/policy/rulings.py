"""A set of rules, read, and what it decides about one thing that a call does.

Deny wins; of ask and allow the more particular rule, and if none is, ask; else the default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal

from perstack.core.policy.calls import PolicyCall
from perstack.core.policy.matching import Target, could_match, is_about, is_exact, matches
from perstack.core.policy.permissions import Decision, Permissions, RuleSet
from perstack.core.policy.rules import PermissionRule, read_rule
from perstack.dataclass import dataclass

RuleList = Literal["deny", "ask", "allow", "default"]

_STRICTNESS: dict[Decision, int] = {"allow": 0, "ask": 1, "deny": 2}


@dataclass(frozen=True, slots=True)
class Ruling:
    """What holds for a call, and why."""

    decision: Decision
    rule: str = ""
    """The rule's text; empty for a default, and for a line that is asked about because it cannot be read."""
    list: RuleList = "default"
    source: str = ""
    """Where it is written: `perstack.toml [permissions].deny`. Empty where no rules are."""
    subject: str = ""
    """What of the call it is about: the path, or the command that is strictest."""
    reason: str = ""
    """Why a line is asked about that no rule names."""
    opens: tuple[str, ...] = ()
    """Protected paths that a rule names, which this call may use once it is allowed, as they are resolved."""

    @property
    def said(self) -> str:
        """Why, in words: `the rule exec(rm *) of perstack.toml [permissions].deny`."""
        if self.reason:
            return f"{self.reason} ({self.source})" if self.source else self.reason
        if self.rule:
            return f"the rule {self.rule} of {self.source}"
        return f"the default of {self.source.removesuffix('.default')}" if self.source else "no rule is about it"


@dataclass(frozen=True, slots=True)
class Rules:
    """One set of rules, read."""

    source: str
    expert: str
    default: Decision
    deny: tuple[PermissionRule, ...]
    ask: tuple[PermissionRule, ...]
    allow: tuple[PermissionRule, ...]

    def concern(self, call: PolicyCall) -> bool:
        """Whether anything may ask about the tool, or deny it."""
        return self.default != "allow" or any(is_about(rule, call) for rule in (*self.deny, *self.ask))

    def ruling(self, decision: Decision, rule: PermissionRule, name: RuleList, target: Target) -> Ruling:
        return Ruling(decision, rule.text, name, f"{self.source}.{name}", target.shown)

    def about(self, target: Target) -> Ruling:
        """What they decide about one thing that a call does."""
        denied = _heaviest(self.deny, lambda rule: matches(rule, target, is_strict=True))
        if denied is not None:
            return self.ruling("deny", denied, "deny", target)
        hidden = _heaviest(self.deny, lambda rule: could_match(rule, target))
        if hidden is not None:
            reason = f"what it comes to is known when it runs, and may be {hidden.text}"
            return replace(self.ruling("ask", hidden, "deny", target), reason=reason)
        asked = _heaviest(self.ask, lambda rule: matches(rule, target, is_strict=True) or could_match(rule, target))
        allowed = _heaviest(self.allow, lambda rule: matches(rule, target, is_strict=False))
        if allowed is not None and (asked is None or allowed.weight > asked.weight):
            return self.ruling("allow", allowed, "allow", target)
        if asked is not None:
            return self.ruling("ask", asked, "ask", target)
        return Ruling(self.default, "", "default", f"{self.source}.default", target.shown)

    def names_line(self, text: str) -> bool:
        """Whether a rule says how a line begins, so that it is about that line and not about what is in it."""
        rule = read_rule(text)
        return (rule.bare is not None and rule.bare.literal != "") or bool(rule.named)

    def exactly(self, target: Target) -> Ruling | None:
        """What an allow rule that is the very line decides; None if there is none, or an equal one asks."""
        allowed = next((rule for rule in self.allow if is_exact(rule, target)), None)
        if allowed is None or any(is_exact(rule, target) for rule in self.ask):
            return None
        return self.ruling("allow", allowed, "allow", target)


def strictest(rulings: Iterable[Ruling]) -> Ruling:
    """The first of those that no other is stricter than. One that names a rule comes before one that does not."""
    return max(rulings, key=lambda ruling: (_STRICTNESS[ruling.decision], bool(ruling.rule or ruling.reason)))


def rules_of(rule_set: RuleSet) -> Rules:
    """The same rules, read. Raises ValueError for one that cannot be read."""
    return _read(rule_set.source, rule_set.expert, *_texts(rule_set.permissions))


def _texts(
    permissions: Permissions,
) -> tuple[Decision, tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    return permissions.default, permissions.deny, permissions.ask, permissions.allow


@lru_cache(maxsize=256)
def _read(
    source: str, expert: str, default: Decision, deny: tuple[str, ...], ask: tuple[str, ...], allow: tuple[str, ...]
) -> Rules:
    return Rules(source, expert, default, *(tuple(map(read_rule, texts)) for texts in (deny, ask, allow)))


def _heaviest(rules: Sequence[PermissionRule], is_it: Callable[[PermissionRule], bool]) -> PermissionRule | None:
    return max((rule for rule in rules if is_it(rule)), key=lambda rule: rule.weight, default=None)
