"""Rules that a person lays over those in force, by name: what they open, and what stays as it was.

Only what is named is opened: an `allow` rule is added, and takes away the same rule of `deny` or `ask`, word for word;
a `default` takes the place of the one before. `deny` and `ask` are added. Nothing else changes, so that a `deny` falls
only if somebody has named it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import Field

from perstack.core.base import Fact, falsy
from perstack.core.policy.permissions import Decision, Permissions, RuleSet


class Widening(Fact):
    """Rules that are laid over all that are in force."""

    source: str
    """The file that they were read from, as people know it."""
    default: Decision | None = None
    """None: the defaults stay."""
    deny: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    ask: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    allow: tuple[str, ...] = Field(default=(), exclude_if=falsy)

    @classmethod
    def of(cls, permissions: Permissions, source: str) -> Widening:
        """What a table says. A default that is not written in it changes nothing."""
        default = permissions.default if "default" in permissions.model_fields_set else None
        return cls(source=source, default=default, deny=permissions.deny, ask=permissions.ask, allow=permissions.allow)


def laid_over(rule_set: RuleSet, widening: Widening) -> RuleSet:
    """A set of rules with others over it."""
    own = rule_set.permissions
    named = set(widening.allow)
    permissions = Permissions(
        default=widening.default or own.default,
        deny=_joined((rule for rule in own.deny if rule not in named), widening.deny),
        ask=_joined((rule for rule in own.ask if rule not in named), widening.ask),
        allow=_joined(own.allow, widening.allow),
    )
    if permissions == own:
        return rule_set
    return rule_set.model_copy(update={"permissions": permissions, "source": f"{rule_set.source} + {widening.source}"})


def all_laid_over(chain: Sequence[RuleSet], widening: Widening) -> tuple[RuleSet, ...]:
    """The same for all the rules that are in force. Where no project has any, these are its rules."""
    found = tuple(laid_over(one, widening) for one in chain)
    if any(not one.expert for one in chain):
        return found
    permissions = Permissions(
        default=widening.default or "allow", deny=widening.deny, ask=widening.ask, allow=widening.allow
    )
    return (RuleSet(source=widening.source, permissions=permissions), *found)


def with_approved(chain: Sequence[RuleSet], rule: str) -> tuple[RuleSet, ...]:
    """The rules in force, where a person has approved of all calls that a rule names: no `deny` falls by it."""
    return tuple(_approved(one, rule) for one in chain)


def _approved(rule_set: RuleSet, rule: str) -> RuleSet:
    own = rule_set.permissions
    update = {"ask": tuple(one for one in own.ask if one != rule), "allow": _joined(own.allow, (rule,))}
    return rule_set.model_copy(update={"permissions": own.model_copy(update=update)})


def under(rule_set: RuleSet, widenings: Iterable[Widening]) -> RuleSet:
    """One set of rules with all that was laid over those of its Job, in that order."""
    for widening in widenings:
        rule_set = laid_over(rule_set, widening)
    return rule_set


def begun_under(
    above: tuple[RuleSet, ...], today: Iterable[RuleSet], widenings: Sequence[Widening]
) -> tuple[RuleSet, ...]:
    """The rules of a new Run: all of those above it, and today's. What was laid over a Job's rules is laid over those
    of its Experts as they begin; a project's that are new since then hold as they are written.
    """
    added = not_in_force(today, above, widenings)
    return (*above, *(under(one, widenings) if one.expert else one for one in added))


def not_in_force(
    today: Iterable[RuleSet], chain: Sequence[RuleSet], widenings: Sequence[Widening]
) -> tuple[RuleSet, ...]:
    """Of today's rules those that a Run does not have yet, as they are or with what was laid over them since."""
    known = [(one.expert, one.permissions) for one in chain]
    return tuple(
        one
        for one in today
        if not any(
            (one.expert, under(one, widenings[since:]).permissions) in known for since in range(len(widenings) + 1)
        )
    )


def missing_from(chain: Sequence[RuleSet], above: Iterable[RuleSet], widening: Widening | None) -> tuple[RuleSet, ...]:
    """Of the rules of the Run above those that are missing from a Run's; `widening` is about to be laid over these."""
    laid = () if widening is None else all_laid_over(chain, widening)
    known = [(one.expert, one.permissions) for one in (*chain, *laid)]
    return tuple(one for one in above if (one.expert, one.permissions) not in known)


def _joined(first: Iterable[str], second: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))
