"""What rules decide about a call: over several sets of them, and over all that the call does, the strictest holds.

So a delegate has at most what every Run above it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from perstack.core.policy.calls import PolicyCall
from perstack.core.policy.commands import decide_command, redirected
from perstack.core.policy.matching import Target, is_about, matches
from perstack.core.policy.permissions import RuleSet
from perstack.core.policy.rules import PermissionRule
from perstack.core.policy.rulings import Rules, Ruling, rules_of, strictest


def decide_call(chain: Sequence[RuleSet], call: PolicyCall) -> Ruling:
    """What holds for a call under all these rules together. Rules that cannot be read raise ValueError.

    `chain`: the project's rules, the Expert's, and those of every Run above it.
    """
    if call.is_exempt:
        return Ruling("allow")
    sets = [rules_of(one) for one in chain]
    found = [_in(one, call) for one in sets]
    ruling = strictest(found) if found else Ruling("allow")
    if ruling.decision == "deny":
        return ruling
    projects = [one for one in sets if not one.expert]
    files = redirected(call) if call.command else (call,)
    opens = tuple(dict.fromkeys(path for file in files for path in _opened(projects, file)))
    return replace(ruling, opens=opens) if opens else ruling


def _in(rules: Rules, call: PolicyCall) -> Ruling:
    if call.command:
        if not rules.concern(call):
            return Ruling("allow", "", "default", f"{rules.source}.default")
        return decide_command(rules, call)
    targets = list(_targets(call))
    return strictest(rules.about(target) for target in targets)


def _targets(call: PolicyCall) -> Iterator[Target]:
    names = dict.fromkeys(name for names in call.paths().values() for name in names)
    urls = dict.fromkeys(url for each in call.urls().values() for url in each)
    if not names and not urls:
        yield Target(call, call.tool)
    for name in names:
        yield Target(call, name, path=name)
    for url in urls:
        yield Target(call, url, url=url)


def _opened(projects: Sequence[Rules], call: PolicyCall) -> tuple[str, ...]:
    """The paths of a call that every project's rules name, to allow them or to ask."""
    paths = dict.fromkeys(name for names in call.paths().values() for name in names)
    return tuple(path for path in paths if projects and all(_names(rules, call, path) for rules in projects))


def _names(rules: Rules, call: PolicyCall, path: str) -> bool:
    return any(_opens(rule, call, path) for rule in (*rules.allow, *rules.ask))


def _opens(rule: PermissionRule, call: PolicyCall, path: str) -> bool:
    if not is_about(rule, call):
        return False
    if rule.bare is not None:
        return rule.bare.names_path(path)
    own = {name: names for name, names in call.paths().items() if path in names}
    return any(name in own and glob.names_path(path) for name, glob in rule.named) and matches(
        rule, Target(call, path, path=path), is_strict=False
    )
