"""Warn of permission rules that can never match, never decide, or cover less than they seem to.

A rule without effect misleads. Each check returns the problem of one rule, as the end of a sentence that begins
with the rule; `warn_of_rules` reports it with file and line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from perstack.core.base.text import suggestion
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.keys import KeyPath, key_and_version
from perstack.core.definitions.permissions import Decision, PermissionRule, Permissions, parse_rule
from perstack.core.definitions.skills import PathUse, ToolSpec, legal_tool_name, path_uses
from perstack.core.files.globs import Glob
from perstack.core.permissions.command_patterns import has_options, parse_command
from perstack.core.permissions.policy_calls import is_exempt
from perstack.dataclass import dataclass
from perstack.ports.provider import ProviderFactory
from perstack.ports.skill import SkillFactory
from perstack.recordings.recorded_calls import host_skills, known_tools
from perstack.toml_reader.definition_with_includes import DefinitionFile
from perstack.toml_reader.source import Reporter

_SAME_RULE_IN_ASK = "never decides anything: the same rule is in ask, which takes precedence"
_LISTS = ("deny", "ask", "allow")


@dataclass(slots=True)
class _Reach:
    """The delegates and tools that some Experts can call."""

    delegates: set[str] = field(default_factory=set[str])
    skills: dict[str, list[tuple[ToolSpec, ...] | None]] = field(
        default_factory=dict[str, "list[tuple[ToolSpec, ...] | None]"]
    )
    host_skills: set[str] = field(default_factory=set[str])

    def add(self, expert: Expert, specs_by_skill: Mapping[str, tuple[ToolSpec, ...] | None]) -> None:
        self.host_skills |= host_skills(expert)
        self.delegates.update(key_and_version(key)[0] for key in expert.delegates)
        for name, specs in specs_by_skill.items():
            self.skills.setdefault(name, []).append(specs)


def warn_of_rules(
    definition: DefinitionFile, factories: Sequence[SkillFactory], providers: Iterable[ProviderFactory] = ()
) -> None:
    """Report each rule that can never match or never decide, with file and line."""
    all_reach = _Reach()
    reach_by_expert: dict[str, _Reach] = {}
    tools = [tool for provider in providers for tool in provider.tools]
    for key, draft in definition.drafts.items():
        specs_by_skill = known_tools(factories, draft.expert, tools)
        all_reach.add(draft.expert, specs_by_skill)
        reach_by_expert.setdefault(key, _Reach()).add(draft.expert, specs_by_skill)
    permissions = definition.project.permissions
    if permissions is not None and definition.report is not None and definition.drafts:
        _warn_of_table(permissions, ("permissions",), definition.report, all_reach, ())
    project_denies = () if permissions is None else permissions.deny
    for key, draft in definition.drafts.items():
        if draft.expert.permissions is not None:
            _warn_of_table(
                draft.expert.permissions, (*draft.at, "permissions"), draft.report, reach_by_expert[key], project_denies
            )


def _warn_of_table(
    table: Permissions, table_key: KeyPath, report: Reporter, reach: _Reach, project_denies: Sequence[str]
) -> None:
    for name in _LISTS:
        rules: tuple[str, ...] = getattr(table, name)
        for index, text in enumerate(rules):
            deny_rules = [*project_denies, *(table.deny[:index] if name == "deny" else table.deny)]
            rule = parse_rule(text)
            problem = _problem(rule, reach) or _covering_deny_problem(text, deny_rules)
            if problem is None:
                problem = (
                    _problem_of_allow(rule, reach)
                    if name == "allow"
                    else _problem_of_refusal(rule, reach, table.otherwise)
                )
            if problem is None and name == "allow" and text in table.ask:
                problem = _SAME_RULE_IN_ASK
            if problem is not None:
                report.warn((*table_key, name, index), f"`{text}` {problem}")


def _problem(rule: PermissionRule, reach: _Reach) -> str | None:
    if rule.is_delegate:
        if any(rule.tool.matches(key) for key in reach.delegates):
            return None
        return f"never matches: no Expert here delegates to it{suggestion(rule.tool.text, reach.delegates)}"
    if rule.skill is not None and not any(map(rule.skill.matches, reach.skills)):
        return f"never matches: there is no such skill{suggestion(rule.skill.text, reach.skills)}"
    return _problem_of_tool(rule, reach)


def _problem_of_tool(rule: PermissionRule, reach: _Reach) -> str | None:
    matching_skills = [
        spec_lists for name, spec_lists in reach.skills.items() if rule.skill is None or rule.skill.matches(name)
    ]
    known_lists = [specs for spec_lists in matching_skills for specs in spec_lists]
    known_specs = [spec for specs in known_lists for spec in specs or ()]
    tools = [spec for spec in known_specs if rule.tool.matches(spec.name)]
    if None in known_lists and not rule.tool.is_literal:
        return None
    if rule.group is not None and any(_has_paths(spec, rule.group) for spec in known_specs):
        return None
    ruled_tools = [spec for spec in tools if not is_exempt(spec.kind, spec.subject)]
    is_delegate = rule.skill is None and any(rule.tool.matches(legal_tool_name(key)) for key in reach.delegates)
    if is_delegate or (not tools and None in known_lists):
        return None
    if not tools:
        names = sorted({spec.name for spec in known_specs})
        return f"never matches: there is no such tool{suggestion(rule.tool.text, names)}"
    if not ruled_tools:
        return "never matches: no rule applies to the loop's own tools or to questions to a person"
    return _problem_of_arguments(rule, ruled_tools)


def _has_paths(spec: ToolSpec, use: PathUse) -> bool:
    subject = spec.subject
    return subject is not None and any(use in path_uses(subject, name, spec.effect) for name in subject.paths)


def _problem_of_allow(rule: PermissionRule, reach: _Reach) -> str | None:
    """Return why a rule that allows never matches, or covers less than it seems to."""
    if rule.is_delegate:
        return None
    tools = [spec for spec in _all_specs(reach) if rule.tool.matches(spec.name)]
    if rule.skill is None and rule.group is None and reach.host_skills.isdisjoint(spec.skill_name for spec in tools):
        skill = next((spec.skill_name for spec in tools), "SKILL")
        return f"never matches: a rule without a skill allows only tools of the base skill; write `{skill}/{rule.text}`"
    runs_program = any(spec.subject is not None and spec.subject.program for spec in tools)
    if rule.bare is None or not runs_program:
        return None
    try:
        pattern = parse_command(rule.bare.text)
    except ValueError as error:
        return f"never matches: it {error}"
    glued_word = pattern.glued_word
    return (
        None
        if glued_word is None
        else f"allows `{glued_word}` as one word and nothing after it: for arguments write ` *`"
    )


def _problem_of_refusal(rule: PermissionRule, reach: _Reach, default_decision: Decision) -> str | None:
    """Return what a rule that denies or asks leaves open although it seems to name a file."""
    if rule.is_delegate or not rule.has_arguments:
        return None
    tools = [
        spec for spec in _all_specs(reach) if rule.tool.matches(spec.name) and spec.skill_name in reach.host_skills
    ]
    runs_program = any(spec.subject is not None and spec.subject.program for spec in tools)
    if runs_program and rule.bare is not None and has_options(rule.bare.text):
        return "never matches: options in braces have a meaning only in allow"
    written_arguments = {name for spec in tools if spec.subject is not None for name in spec.subject.writes}
    if rule.group is not None or not written_arguments or not rule.tool.is_literal or default_decision != "allow":
        return None
    path = rule.bare or next((glob for name, glob in rule.named if name in written_arguments), None)
    advice = "other file tools may still change it; for all write"
    return None if path is None else f"applies only to {rule.tool.text}: {advice} `write({path.text})`"


def _all_specs(reach: _Reach) -> list[ToolSpec]:
    return [spec for spec_lists in reach.skills.values() for specs in spec_lists for spec in specs or ()]


def _problem_of_arguments(rule: PermissionRule, tools: Sequence[ToolSpec]) -> str | None:
    argument_names = {name for name, _ in rule.named}
    property_sets = [set(_properties(spec)) for spec in tools]
    if any(argument_names <= names for names in property_sets):
        return None
    missing = sorted(argument_names - set[str]().union(*property_sets)) or sorted(argument_names)
    names = sorted(set[str]().union(*property_sets))
    runs_programs = any(spec.subject is not None and spec.subject.program for spec in tools)
    hint = f"; in a command line write `{missing[0]}\\=`" if runs_programs else suggestion(missing[0], names)
    return f"never matches: the tool has no argument `{missing[0]}`{hint}"


def _properties(spec: ToolSpec) -> Iterator[str]:
    properties = spec.input_schema.get("properties")
    if isinstance(properties, dict):
        yield from properties


def _covering_deny_problem(text: str, deny_rules: Sequence[str]) -> str | None:
    rule = parse_rule(text)
    for deny_text in deny_rules:
        if deny_text == text or _covers(parse_rule(deny_text), rule):
            return f"never decides anything: `{deny_text}` in deny covers all that it names"
    return None


def _covers(wide: PermissionRule, narrow: PermissionRule) -> bool:
    """Return whether the wide rule matches everything that the narrow one does; False where that is hard to prove."""
    if wide.group != narrow.group and not (wide.tool.text == "*" and wide.skill is None and not wide.has_arguments):
        return False
    if wide.is_delegate != narrow.is_delegate and not (wide.tool.text == "*" and wide.skill is None):
        return False
    if wide.skill is not None and (narrow.skill is None or not _is_within(wide.skill.text, narrow.skill.text)):
        return False
    if not _is_within(wide.tool.text, narrow.tool.text):
        return False
    if not wide.has_arguments:
        return True
    if wide.bare is not None and narrow.bare is not None:
        return wide.bare.text in ("*", "**", narrow.bare.text)
    return bool(wide.named) and wide.named == narrow.named


def _is_within(wide: str, narrow: str) -> bool:
    return wide == narrow or Glob(wide).matches(narrow)
