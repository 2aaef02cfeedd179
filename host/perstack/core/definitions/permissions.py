"""Permission rules: their syntax, the tables that hold them, approvals, and widenings by a person.

Definitions and events have fields of these types, so every start imports this module. Decisions about calls are in
`perstack.core.permissions`, which is imported when a call is decided.

A widening opens only what it names: its `allow` rules are added and remove the same rule, word for word, from `deny`
and `ask`; its `default` replaces the previous one; its `deny` and `ask` are added. So a `deny` is removed only if
somebody has named it.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from perstack.core.base.records import EMPTIED, JsonObject, Record, Redactable, Text, canonical_json, falsy, fields_of
from perstack.core.base.text import REDACTED
from perstack.core.definitions.keys import Key, Rule
from perstack.core.definitions.skills import PathUse
from perstack.core.files.globs import Glob
from perstack.dataclass import dataclass

# Approval of one call: its digest, its scope, and what the model is shown.

VERSION = "v1"  # version of the hashed form; another form needs another version

UNATTENDED = "unattended"  # door of a decision made without a person, because nobody is present

OPEN = "open"  # door of a decision by the caller's option, which came after the Run began

GRANT = "project grant"  # door of a decision that a person has made for the whole project

ApprovalDecision = Literal["once", "job", "project", "sandboxed", "no"]
"""`once`: this call. `job`: calls of this Job with an equal digest, or calls that a rule names. `project`: calls that a
rule names, in this Job and in later ones of the project. `sandboxed`: this call, in a sandbox, because nobody could be
asked. `no`: do not run it."""

STANDING_DECISIONS: frozenset[ApprovalDecision] = frozenset(("job", "project"))  # hold for the rest of the Job

DECISION_WORDS: dict[ApprovalDecision, str] = {
    "once": "yes",
    "job": "yes, for the whole Job",
    "project": "yes, in this project",
    "sandboxed": "in a sandbox",
    "no": "no",
}


class Approval(Record):
    """Person's answer to a call that waits for approval."""

    decision: ApprovalDecision
    rule: str = Field(default="", exclude_if=falsy)  # rule of a standing decision; empty: calls of an equal digest
    text: str = Field(default="", exclude_if=falsy)  # additional text for the model
    changed: JsonObject | None = None  # only with `once`: arguments of the call to approve instead

    @property
    def denies(self) -> bool:
        return self.decision == "no"


class StandingApproval(Record):
    """Approval that holds for a whole Job."""

    id: str  # id of the event that gave the approval
    call_digest: str
    leads_to: tuple[str, ...] = ()  # resolved paths of the approved call
    rule: str = ""


def call_digest(skill_name: str, tool_name: str, args: JsonObject, definition: str = "") -> str:
    """Return the digest of a call: of its skill, tool and arguments, independent of the order of keys.

    `definition`: digest of the tool's definition, which counts too for a tool of a server or plugin.

    >>> call_digest("s", "t", {"a": 1, "b": 2}) == call_digest("s", "t", {"b": 2, "a": 1})
    True
    """
    parts: list[JsonValue] = [skill_name, tool_name, _sorted(args)]
    return f"{VERSION}:{sha256(canonical_json([*parts, definition] if definition else parts)).hexdigest()}"


def refusal(rule: str, text: str, *, is_unattended: bool) -> str:
    """Return the text that the model sees for a call that was not approved."""
    if is_unattended:
        remedy = f" {text}" if text else ""
        return f"Not run: it needs a person's approval ({rule}), and nobody is there to give it.{remedy}"
    reason = f": {text}" if text else "."
    return f"Not run: a person did not approve this call{reason}"


def _sorted(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    return value


# Syntax of a rule: `TOOL`, `SKILL/TOOL` or `delegate/EXPERT`, optionally with arguments in parentheses.
# `exec(git push *)` has a bare glob; `deleteDirectory(path=src/**, recursive=true)` names arguments: all must match.
# `read(PATH)` and `write(PATH)` stand for all file tools. What a rule about a program means in `allow` is
# `perstack.core.permissions.command_patterns`.

DELEGATE = "delegate"
PROVIDER = "provider"  # skill name in rules about tools that a model's provider runs: `provider/webSearch`

_GROUPS: dict[str, PathUse] = {"read": "read", "write": "write"}
_MAX_RULE_CHARS = 4_000
_ARGUMENT_NAME = r"\s*(?P<name>[A-Za-z_][\w.-]*)\s*="
_ARGUMENT_SEPARATOR = r",\s*(?=[A-Za-z_][\w.-]*\s*=)"


@dataclass(frozen=True, slots=True)
class PermissionRule:
    """Parsed permission rule."""

    text: str
    tool: Glob  # glob of the tool's name, or of an Expert's key for a delegate
    skill: Glob | None = None
    is_delegate: bool = False
    group: PathUse | None = None
    bare: Glob | None = None
    named: tuple[tuple[str, Glob], ...] = ()

    @property
    def has_arguments(self) -> bool:
        """True if the rule restricts arguments."""
        return self.bare is not None or bool(self.named)

    @property
    def weight(self) -> tuple[bool, int, int, int]:
        """Weight of the rule: of two matching rules the heavier one decides."""
        arguments = _weight_of(self.bare) if self.bare is not None else sum(glob.weight for _, glob in self.named)
        return self.has_arguments, arguments, self.tool.weight, 0 if self.skill is None else self.skill.weight


def _weight_of(bare: Glob) -> int:
    """Return the number of characters before the first wildcard, or before options in braces, which may be absent."""
    options = re.search(r"\{\s*[-+]", bare.literal)
    return bare.weight if options is None else options.start()


@lru_cache(maxsize=4096)
def parse_rule(text: str) -> PermissionRule:
    """Parse a rule. Raises ValueError with a message that follows the name of its key."""
    if not text.strip():
        raise ValueError("must not be empty")
    if len(text) > _MAX_RULE_CHARS:
        raise ValueError(f"has {len(text):,} characters: shorten it to {_MAX_RULE_CHARS:,}")
    if "\0" in text:
        raise ValueError("must not contain a NUL character: leave it out")
    head, parenthesis, rest = text.strip().partition("(")
    if parenthesis and not rest.endswith(")"):
        raise ValueError(f"`{text}` has no `)` at its end: write `TOOL(…)`")
    if not parenthesis and ")" in head:
        raise ValueError(f"`{text}` has no `(`: write `TOOL(…)`")
    is_delegate, skill, tool = _parse_head(head.strip(), text)
    bare, named = _parse_arguments(rest[:-1], text) if parenthesis else (None, ())
    group = None if skill is not None or is_delegate or named else _GROUPS.get(tool)
    return PermissionRule(text, Glob(tool), None if skill is None else Glob(skill), is_delegate, group, bare, named)


def rule_problem(text: str) -> str | None:
    try:
        parse_rule(text)
    except ValueError as error:
        return str(error)
    return None


def _parse_head(head: str, text: str) -> tuple[bool, str | None, str]:
    if head.startswith(f"{DELEGATE}/"):
        expert = head.removeprefix(f"{DELEGATE}/")
        if not expert:
            raise ValueError(f"`{text}` names no Expert: write `delegate/EXPERT`, or `delegate/*` for all")
        return True, None, expert
    skill, separator, tool = head.rpartition("/")
    if not tool or (separator and not skill):
        raise ValueError(f"`{text}` names no tool: write `TOOL`, `SKILL/TOOL` or `delegate/EXPERT`")
    if re.search(r"\s", tool):
        raise ValueError(f"`{text}` has a space in the tool's name: arguments stand in parentheses, `TOOL(…)`")
    return False, skill if separator else None, tool


def _parse_arguments(content: str, text: str) -> tuple[Glob | None, tuple[tuple[str, Glob], ...]]:
    if not content.strip():
        raise ValueError(f"`{text}` has empty parentheses: leave them out, or write `TOOL(*)`")
    if re.match(_ARGUMENT_NAME, content) is None:
        return Glob(content.strip()), ()
    named: dict[str, Glob] = {}
    for part in re.split(_ARGUMENT_SEPARATOR, content):
        match = re.match(_ARGUMENT_NAME, part)
        if match is None:
            raise ValueError(f"`{text}` has an argument without a name: write `name=GLOB, name=GLOB`")
        name = match["name"]
        if name in named:
            raise ValueError(f"`{text}` names the argument {name} twice: write two rules")
        named[name] = Glob(part[match.end() :].strip())
    return None, tuple(named.items())


# `[permissions]` of perstack.toml: which calls run, need approval, or never run.

Decision = Literal["allow", "ask", "deny"]

_Rules = tuple[Annotated[str, Rule(rule_problem)], ...]

_ASKED_ANYWAY = "exec"  # tool of the base skill that asks a person unless the definition names it


def _opens_nothing(value: object) -> bool:
    """Return True if an `allow` rule or a `default` permits no more than a definition without permissions.

    A rule with arguments may open a protected file, and one with a skill names tools that are not the base skill's.
    """
    if not isinstance(value, str) or value == "allow":
        return False
    if value in ("ask", "deny"):
        return True
    rule = parse_rule(value)
    return not (rule.has_arguments or rule.skill or rule.is_delegate or rule.tool.matches(_ASKED_ANYWAY))


class Permissions(Record):
    """Rules as written. If several tables apply to a call, the strictest decides."""

    default: Annotated[
        Decision | None, Key("decision about calls that match no rule", effect="executes", is_inert=_opens_nothing)
    ] = None  # None: allow
    deny: Annotated[_Rules, Field(exclude_if=falsy), Key("calls that never run (rules)", effect="narrows")] = ()
    ask: Annotated[
        _Rules, Field(exclude_if=falsy), Key("calls that a person is asked about (rules)", effect="narrows")
    ] = ()
    allow: Annotated[
        _Rules,
        Field(exclude_if=falsy),
        Key(
            "calls that run although a less specific rule, or `default`, asks",
            effect="executes",
            is_inert=_opens_nothing,
        ),
    ] = ()

    @property
    def otherwise(self) -> Decision:
        """Decision about calls that match no rule."""
        return self.default or "allow"

    @property
    def with_explicit_default(self) -> "Permissions":
        """The table with its default made explicit, to compare tables by what they decide."""
        return self if self.default is not None else self.model_copy(update={"default": self.otherwise})


class RuleSet(Record):
    """Permissions in force for a Run, with their origin."""

    source: str  # file and table for display: `perstack.toml [permissions]`
    expert: str = Field(
        default="", exclude_if=falsy
    )  # the Expert's key; empty for the project's rules: only they open paths
    permissions: Permissions
    # rules that a person approved; each overrides an equal rule in `ask`
    approved: Annotated[tuple[str, ...], EMPTIED, Field(exclude_if=falsy)] = ()


def _as_question(rule_sets: tuple[RuleSet, ...]) -> tuple[RuleSet, ...]:
    """Replace rules by a rule that asks a person: unknown rules must neither deny nor allow anything."""
    return (RuleSet(source=REDACTED, permissions=Permissions(default="ask")),) if rule_sets else ()


_Emptied = Annotated[tuple[str, ...], EMPTIED]
RuleSets = Annotated[tuple[RuleSet, ...], Redactable(_as_question)]


class Widening(Record):
    """Rules with which a person changes all rule sets in force."""

    source: Text  # file that they were read from, for display
    default: Annotated[Decision | None, EMPTIED] = None  # default decision; None keeps the defaults in force
    deny: _Emptied = Field(default=(), exclude_if=falsy)
    ask: _Emptied = Field(default=(), exclude_if=falsy)
    allow: _Emptied = Field(default=(), exclude_if=falsy)

    @classmethod
    def of(cls, permissions: Permissions, source: str) -> "Widening":
        """Return a table as a widening; a default that the table does not state changes nothing."""
        return cls(source=source, **fields_of(permissions, Permissions))


def apply_widening(rule_set: RuleSet, widening: Widening) -> RuleSet:
    current = rule_set.permissions
    allowed = set(widening.allow)
    permissions = Permissions(
        default=widening.default or current.default,
        deny=_union((rule for rule in current.deny if rule not in allowed), widening.deny),
        ask=_union((rule for rule in current.ask if rule not in allowed), widening.ask),
        allow=_union(current.allow, widening.allow),
    )
    if permissions == current:
        return rule_set
    return rule_set.model_copy(update={"permissions": permissions, "source": f"{rule_set.source} + {widening.source}"})


def apply_widening_to_all(chain: Sequence[RuleSet], widening: Widening) -> tuple[RuleSet, ...]:
    """Apply a widening to all rule sets in force; if none is the project's, add it as one."""
    widened = tuple(apply_widening(rule_set, widening) for rule_set in chain)
    if any(not rule_set.expert for rule_set in chain):
        return widened
    permissions = Permissions(default=widening.default, deny=widening.deny, ask=widening.ask, allow=widening.allow)
    return (RuleSet(source=widening.source, permissions=permissions), *widened)


def with_approved(chain: Sequence[RuleSet], rule: str) -> tuple[RuleSet, ...]:
    """Return the rule sets after a person has approved all calls that `rule` allows.

    Rules that deny remain, and so does an equal rule in `ask`: it matches more calls than the rule that allows.
    """
    return tuple(rule_set.model_copy(update={"approved": _union(rule_set.approved, (rule,))}) for rule_set in chain)


def apply_widenings(rule_set: RuleSet, widenings: Iterable[Widening]) -> RuleSet:
    """Return a rule set with a Job's widenings applied in order."""
    for widening in widenings:
        rule_set = apply_widening(rule_set, widening)
    return rule_set


def start_rules(
    parent_rules: tuple[RuleSet, ...], today: Iterable[RuleSet], widenings: Sequence[Widening]
) -> tuple[RuleSet, ...]:
    """Return a new Run's rules: its parent's, then today's that the parent lacks; an Expert's get the widenings."""
    missing = todays_missing_rules(today, parent_rules, widenings)
    added = (apply_widenings(rule_set, widenings) if rule_set.expert else rule_set for rule_set in missing)
    return (*parent_rules, *added)


def todays_missing_rules(
    today: Iterable[RuleSet], chain: Sequence[RuleSet], widenings: Sequence[Widening]
) -> tuple[RuleSet, ...]:
    """Return today's rules that a Run lacks: it has them neither as written nor with some of the widenings applied."""
    existing = [(rule_set.expert, rule_set.permissions.with_explicit_default) for rule_set in chain]
    return tuple(
        rule_set
        for rule_set in today
        if not any(
            (rule_set.expert, apply_widenings(rule_set, widenings[first:]).permissions.with_explicit_default)
            in existing
            for first in range(len(widenings) + 1)
        )
    )


def missing_parent_rules(
    chain: Sequence[RuleSet], parent_rules: Iterable[RuleSet], widening: Widening | None
) -> tuple[RuleSet, ...]:
    """Return the parent's rules that a Run lacks in its `chain` and will lack after `widening` is applied."""
    widened = () if widening is None else apply_widening_to_all(chain, widening)
    existing = [(rule_set.expert, rule_set.permissions.with_explicit_default) for rule_set in (*chain, *widened)]
    return tuple(
        rule_set
        for rule_set in parent_rules
        if (rule_set.expert, rule_set.permissions.with_explicit_default) not in existing
    )


def _union(first: Iterable[str], second: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))
