"""Decide calls by permission rules: allow them, ask a person or deny them.

`decide_call` is the entry point. It takes a chain of rule sets: the project's, the Expert's, and the rule sets of every
Run above, so that a delegate never has more permissions than its callers. A call is cut into targets: each path, each
address, or each simple command and redirection of a command line. Every rule set decides every target, and the
strictest decision holds.

Within one rule set a `deny` wins; of `ask` and `allow` the more specific rule wins, and `ask` if they are equal;
otherwise the default holds. Matching (matching.py) is strict for `deny` and `ask`, which match any reading of a
target, and exact for `allow`, which must match every reading.

Shell scripts are parsed by shell_grammar.py, programs that run other programs are looked up in programs.py. Whatever is
not understood for certain is asked about, unless an `allow` rule is literally that line.
Replay runs the same code (call_rulings.py), so a change here must keep recorded decisions explainable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal, assert_never

from perstack.core.base.records import JsonObject
from perstack.core.definitions.permissions import Decision, PermissionRule, RuleSet, parse_rule
from perstack.core.definitions.skills import PathUse, Subject
from perstack.core.permissions.matching import RuleTarget, could_match, is_about, is_exact, matches
from perstack.core.permissions.policy_calls import PolicyCall, quoted_line
from perstack.core.permissions.programs import SETS_VARIABLES, parts_of, redirects_of
from perstack.core.permissions.shell_syntax import Part, Redirect, ShellCommand, Unparsed, is_harmless
from perstack.dataclass import dataclass

RuleList = Literal["deny", "ask", "allow", "default"]

_STRICTNESS: dict[Decision, int] = {"allow": 0, "ask": 1, "deny": 2}


@dataclass(frozen=True, slots=True)
class Ruling:
    """Decision about a call, with its reason."""

    decision: Decision
    rule: str = ""  # empty for a default, and for a line that is asked about because it cannot be parsed
    list: RuleList = "default"
    source: str = ""  # such as `perstack.toml [permissions].deny`; empty without rules
    subject: str = ""  # part of the call that was judged: a path, or the strictest command
    reason: str = ""  # why a person is asked although no rule asks
    opens: tuple[str, ...] = ()  # resolved protected paths that a rule names and this call may use once allowed

    @property
    def reason_text(self) -> str:
        """Text of the reason: `the rule exec(rm *) of perstack.toml [permissions].deny`."""
        if self.reason:
            return f"{self.reason} ({self.source})" if self.source else self.reason
        if self.rule:
            return f"the rule {self.rule} of {self.source}"
        return f"the default of {self.source.removesuffix('.default')}" if self.source else "no rule is about it"


@dataclass(frozen=True, slots=True)
class ParsedRules:
    """Parsed rule set."""

    source: str
    expert: str
    default: Decision
    deny: tuple[PermissionRule, ...]
    ask: tuple[PermissionRule, ...]
    allow: tuple[PermissionRule, ...]
    approved: tuple[PermissionRule, ...] = ()  # rules that a person approved; each overrides an equal rule in `ask`

    def may_restrict(self, policy_call: PolicyCall) -> bool:
        """Return True if the default or a rule may ask about the tool or deny it."""
        return self.default != "allow" or any(is_about(rule, policy_call) for rule in (*self.deny, *self.ask))

    def ruling(self, decision: Decision, rule: PermissionRule, name: RuleList, target: RuleTarget) -> Ruling:
        """Return the ruling of one rule in the list `name`."""
        return Ruling(decision, rule.text, name, f"{self.source}.{name}", target.shown)

    def ruling_on(self, target: RuleTarget) -> Ruling:
        """Return the decision about one target of a call."""
        denied = _heaviest(self.deny, lambda rule: matches(rule, target, is_strict=True))
        if denied is not None:
            return self.ruling("deny", denied, "deny", target)
        possible = _heaviest(self.deny, lambda rule: could_match(rule, target))
        if possible is not None:
            reason = f"what it comes to is known when it runs, and may be {possible.text}"
            return replace(self.ruling("ask", possible, "deny", target), reason=reason)
        approved = [rule for rule in self.approved if matches(rule, target, is_strict=False)]
        ask = [rule for rule in self.ask if all(rule.text != other.text for other in approved)]
        asked = _heaviest(ask, lambda rule: matches(rule, target, is_strict=True) or could_match(rule, target))
        allowed = _heaviest((*self.allow, *approved), lambda rule: matches(rule, target, is_strict=False))
        if allowed is not None and (asked is None or allowed.weight > asked.weight):
            return self.ruling("allow", allowed, "allow", target)
        if asked is not None:
            return self.ruling("ask", asked, "ask", target)
        return Ruling(self.default, "", "default", f"{self.source}.default", target.shown)

    def names_line(self, text: str) -> bool:
        """Return True if a rule restricts the line itself, not only commands within it."""
        rule = parse_rule(text)
        return (rule.bare is not None and rule.bare.literal != "") or bool(rule.named)

    def exact_ruling(self, target: RuleTarget) -> Ruling | None:
        """Return the ruling of an allow rule that equals the line; None without one, or if an equal rule asks."""
        approved = next((rule for rule in self.approved if is_exact(rule, target)), None)
        allowed = approved or next((rule for rule in self.allow if is_exact(rule, target)), None)
        if allowed is None or (approved is None and any(is_exact(rule, target) for rule in self.ask)):
            return None
        return self.ruling("allow", allowed, "allow", target)


def strictest(rulings: Iterable[Ruling]) -> Ruling:
    """Return the strictest ruling; of equally strict ones, the first with a rule or a reason."""
    return max(rulings, key=lambda ruling: (_STRICTNESS[ruling.decision], bool(ruling.rule or ruling.reason)))


def rules_of(rule_set: RuleSet) -> ParsedRules:
    """Parse a rule set. Raises ValueError for a rule that cannot be parsed."""
    permissions = rule_set.permissions
    return _parsed_rules(
        rule_set.source,
        rule_set.expert,
        permissions.otherwise,
        permissions.deny,
        permissions.ask,
        permissions.allow,
        rule_set.approved,
    )


@lru_cache(maxsize=256)
def _parsed_rules(
    source: str,
    expert: str,
    default: Decision,
    deny: tuple[str, ...],
    ask: tuple[str, ...],
    allow: tuple[str, ...],
    approved: tuple[str, ...],
) -> ParsedRules:
    lists = (tuple(map(parse_rule, texts)) for texts in (deny, ask, allow, approved))
    return ParsedRules(source, expert, default, *lists)


def _heaviest(rules: Sequence[PermissionRule], applies: Callable[[PermissionRule], bool]) -> PermissionRule | None:
    return max((rule for rule in rules if applies(rule)), key=lambda rule: rule.weight, default=None)


_WRITE = "writeTextFile"
_READ = "readTextFile"
_FILES = {
    _READ: Subject(paths=("path",), reads=("path",)),
    _WRITE: Subject(paths=("path",), writes=("path",)),
}


def decide_command(rules: ParsedRules, policy_call: PolicyCall) -> Ruling:
    """Return one rule set's decision about a call that runs a program."""
    assignments = tuple(f"{name}={value}" for name, value in policy_call.variables.items() if not is_harmless(name))
    command = ShellCommand(policy_call.command, assignments)
    full_target = _target(policy_call, command)
    if policy_call.script is not None:
        full_target = replace(full_target, shown=policy_call.script, lines=(policy_call.script, *full_target.lines))
    rulings = [ruling for part in parts_of(command) for ruling in _rulings_on_part(rules, policy_call, part)]
    exact = rules.exact_ruling(full_target)
    if exact is not None:
        return strictest([exact, *(ruling for ruling in rulings if ruling.decision == "deny" and ruling.rule)])
    return strictest(rulings) if rulings else rules.ruling_on(full_target)


def _rulings_on_part(rules: ParsedRules, policy_call: PolicyCall, part: Part) -> Iterator[Ruling]:
    match part:
        case ShellCommand():
            yield from _rulings_on_command(rules, _target(policy_call, part), part)
        case Redirect(is_guess=True):
            rulings = (
                ()
                if part.path is None
                else _rulings_on_file(rules, policy_call, part.path, _READ if part.is_read else _WRITE)
            )
            yield from (ruling for ruling in rulings if ruling.decision == "deny" and ruling.rule)
        case Redirect() if part.path is None:
            yield _ask_instead(
                rules, None, RuleTarget(policy_call, part.shown), "what it is redirected to is known when it runs"
            )
        case Redirect():
            yield from _rulings_on_file(rules, policy_call, part.path or "", _READ if part.is_read else _WRITE)
        case Unparsed():
            yield _ask_instead(rules, None, RuleTarget(policy_call, part.shown), part.reason)
        case _:
            assert_never(part)


def _rulings_on_command(rules: ParsedRules, target: RuleTarget, command: ShellCommand) -> Iterator[Ruling]:
    ruling = rules.ruling_on(target)
    if command.is_wrapper:
        if ruling.rule and (ruling.decision == "deny" or (ruling.decision == "ask" and rules.names_line(ruling.rule))):
            yield ruling
        return
    reason = command.reason or (SETS_VARIABLES if command.assignments else "")
    is_named = command.is_by_option and not command.assignments  # an allow rule that matches names these options
    if not reason or (is_named and ruling.list == "allow" and rules.names_line(ruling.rule)):
        yield ruling
        return
    denied = ruling.decision == "deny" and ruling.rule
    yield (None if denied else rules.exact_ruling(target)) or _ask_instead(rules, ruling, target, reason)


def _ask_instead(rules: ParsedRules, ruling: Ruling | None, target: RuleTarget, reason: str) -> Ruling:
    """Turn an allowed ruling into a question; a default of deny stays a denial."""
    if ruling is None:
        ruling = Ruling(rules.default, "", "default", f"{rules.source}.default", target.shown)
    if ruling.decision == "deny":
        return ruling
    if ruling.decision == "ask" and ruling.rule:
        return ruling
    return Ruling("ask", "", "default", rules.source, target.shown, reason)


def display_lines(words: Sequence[str]) -> Iterator[str]:
    """Yield a display line for each simple command, file and unparsed part of a command line."""
    for part in parts_of(ShellCommand(tuple(words))):
        match part:
            case ShellCommand(is_wrapper=True):
                pass  # its inner commands have lines of their own, or its words are only a guess
            case Redirect(is_guess=True):
                pass
            case ShellCommand():
                text = " ".join("…" if word is None else quoted_line([word]) for word in part.words)
                text = " ".join((*part.assignments, text))
                yield f"{text}  ({part.reason})" if part.reason else text
            case Redirect():
                yield f"{'<' if part.is_read else '>'} {part.path or part.text or part.shown}"
            case Unparsed():
                yield f"?  {part.reason}"
            case _:
                assert_never(part)


def redirected_file_calls(policy_call: PolicyCall) -> Iterator[PolicyCall]:
    """Yield the files that shells of a call open, each as a call of the file tool that decides it."""
    for redirect in redirects_of(policy_call.command):
        if redirect.path is not None:
            name = policy_call.resolve(redirect.path, policy_call.folder)[0]
            yield _file_call(policy_call, name, _READ if redirect.is_read else _WRITE)


def _file_call(policy_call: PolicyCall, path: str, tool: str) -> PolicyCall:
    return replace(policy_call, tool=tool, shown="", args={"path": path}, subject=_FILES[tool])


def _rulings_on_file(rules: ParsedRules, policy_call: PolicyCall, path: str, tool: str) -> Iterator[Ruling]:
    file_call = _file_call(policy_call, path, tool)
    for name in policy_call.resolve(path, policy_call.folder):
        yield rules.ruling_on(RuleTarget(file_call, name, path=name, use="read" if tool == _READ else "write"))


def _target(policy_call: PolicyCall, command: ShellCommand) -> RuleTarget:
    """Return the command as a separate target, without the script or wrapper around it."""
    known_words = command.known
    line = quoted_line([*command.assignments, *known_words])
    start = None if command.is_known else (f"{line} " if line else "")
    shown = line if start is None else f"{start}…"
    base = known_words[0].rpartition("/")[2] if known_words else ""
    readings: tuple[str, ...] = (quoted_line(known_words), quoted_line([base, *known_words[1:]])) if known_words else ()
    if start is not None:
        # no rule contains this character, so only a wildcard can match it
        readings = tuple(f"{reading} \ue000" for reading in readings)
        line = f"{start}\ue000"
    command_call = replace(policy_call, args={**policy_call.args, **_arguments(policy_call.subject, command)})
    return RuleTarget(command_call, shown, lines=tuple(dict.fromkeys((line, *readings))), start=start, command=command)


def _arguments(subject: Subject | None, command: ShellCommand) -> JsonObject:
    if subject is None or not command.known:
        return {}
    if subject.script:
        return {subject.script: quoted_line(command.known)}
    return {subject.program: command.known[0], subject.arguments: [*command.known[1:]]}


def decide_call(chain: Sequence[RuleSet], policy_call: PolicyCall) -> Ruling:
    """Return the decision about a call by all rule sets of a Run. Raises ValueError for a rule that is invalid."""
    if policy_call.is_exempt:
        return Ruling("allow")
    sets = [rules_of(rule_set) for rule_set in chain]
    rulings = [_ruling_by(rules, policy_call) for rules in sets]
    ruling = strictest(rulings) if rulings else Ruling("allow")
    if policy_call.changed:
        ruling = strictest([Ruling("ask", reason=policy_call.changed), ruling])
    if ruling.decision == "deny":
        return ruling
    projects = [rules for rules in sets if not rules.expert]
    files = redirected_file_calls(policy_call) if policy_call.command else (policy_call,)
    opens = tuple(dict.fromkeys(path for file in files for path in _opened_paths(projects, file)))
    return replace(ruling, opens=opens) if opens else ruling


_UNASKED = "the provider runs it, so that nobody can be asked before a use"


def decide_offer(chain: Sequence[RuleSet], policy_call: PolicyCall) -> Ruling:
    """Return `allow` or `deny`: whether the model may be offered a tool that its provider runs.

    Single uses cannot be judged. So a rule that asks denies the tool, and a rule with arguments counts for all uses if
    it denies or asks, and for none if it allows. Raises ValueError for a rule that is invalid.
    """
    ruling = strictest([Ruling("allow"), *(_offer_in(rules_of(rule_set), policy_call) for rule_set in chain)])
    return ruling if ruling.decision == "allow" else replace(ruling, decision="deny")


def _offer_in(rules: ParsedRules, policy_call: PolicyCall) -> Ruling:
    target = RuleTarget(policy_call, policy_call.tool)
    denied = _heaviest(rules.deny, lambda rule: is_about(rule, policy_call))
    if denied is not None:
        return rules.ruling("deny", denied, "deny", target)
    asked = _heaviest(rules.ask, lambda rule: is_about(rule, policy_call))
    allowed = _heaviest(
        rules.allow, lambda rule: is_about(rule, policy_call, is_strict=False) and not rule.has_arguments
    )
    if allowed is not None and (asked is None or allowed.weight > asked.weight):
        return rules.ruling("allow", allowed, "allow", target)
    if asked is not None:
        return replace(rules.ruling("ask", asked, "ask", target), reason=f"the rule {asked.text} asks, and {_UNASKED}")
    reason = f"the default asks, and {_UNASKED}" if rules.default == "ask" else ""
    return Ruling(rules.default, "", "default", f"{rules.source}.default", target.shown, reason)


def _ruling_by(rules: ParsedRules, policy_call: PolicyCall) -> Ruling:
    if policy_call.command:
        if not rules.may_restrict(policy_call):
            return Ruling("allow", "", "default", f"{rules.source}.default")
        return decide_command(rules, policy_call)
    targets = list(_targets(policy_call))
    return strictest(rules.ruling_on(target) for target in targets)


def _targets(policy_call: PolicyCall) -> Iterator[RuleTarget]:
    uses = policy_call.path_uses()
    urls = dict.fromkeys(url for addresses in policy_call.urls().values() for url in addresses)
    if not uses and not urls:
        yield RuleTarget(policy_call, policy_call.tool)
    for name, use in uses:
        yield RuleTarget(policy_call, name, path=name, use=use)
    for url in urls:
        yield RuleTarget(policy_call, url, url=url)


def _opened_paths(projects: Sequence[ParsedRules], policy_call: PolicyCall) -> tuple[str, ...]:
    """Return the call's paths that every rule set of the project names in `allow` or `ask`.

    A path that the tool both reads and changes must be named for both uses: `read(.env)` does not let it be moved.
    """
    uses: dict[str, list[PathUse]] = {}
    for path, use in policy_call.path_uses():
        uses.setdefault(path, []).append(use)
    return tuple(
        path
        for path, needed in uses.items()
        if projects
        and all(_opens_path(rules, RuleTarget(policy_call, path, path, use)) for rules in projects for use in needed)
    )


def _opens_path(rules: ParsedRules, target: RuleTarget) -> bool:
    return any(_names_path(rule, target, is_strict=False) for rule in rules.allow) or any(
        _names_path(rule, target, is_strict=True) for rule in rules.ask
    )


def _names_path(rule: PermissionRule, target: RuleTarget, *, is_strict: bool) -> bool:
    policy_call, path = target.policy_call, target.path or ""
    if not is_about(rule, policy_call, is_strict=is_strict) or rule.group not in (None, target.use):
        return False
    if rule.bare is not None:
        return rule.bare.names_path(path)
    arguments = {name: names for name, names in policy_call.paths().items() if path in names}
    return any(name in arguments and glob.names_path(path) for name, glob in rule.named) and matches(
        rule, target, is_strict=False
    )
