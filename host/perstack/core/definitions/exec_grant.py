"""Grant of `exec`: what a definition must say before programs run without a question.

`exec` runs any program that a model writes, so it is the one tool of the base skill that a definition must name: by a
rule that allows it or asks about it, by `default` in `[permissions]`, by a `pick`, or by a runtime that is a sandbox.
A rule that allows some commands, `exec(git log *)`, grants these and no others. For a Run whose definition does not
name it, `rules_without_grant` is one more rule set, which asks a person about what no such rule allows. Where
nobody can be asked, the call runs in a sandbox or not at all (`engine.runs.approvals`). The grant is decided when
a Run starts and recorded with it, so a Job keeps the grant that it began with. Runs in logs of earlier versions have
none and are not asked about.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from perstack.core.definitions.experts import Expert
from perstack.core.definitions.permissions import (
    PermissionRule,
    Permissions,
    RuleSet,
    Widening,
    parse_rule,
    rule_problem,
)
from perstack.core.definitions.sandbox import LOCAL, SandboxPolicy
from perstack.core.definitions.skills import (
    BASE_SKILL,
    DecidedCall,
    McpSseSkill,
    McpStdioSkill,
    Subject,
    is_base_skill,
    is_picked,
    legal_tool_name,
    with_base_skill,
)

EXEC = "exec"

# without its schema, which a start does not need
EXEC_SUBJECT = Subject.model_construct(program="command", arguments="args", folder="cwd", variables="env")

ExecGrant = Literal["named", "open", "asks"]
"""`named`: the definition names `exec`. `open`: the caller allowed all programs. `asks`: a person is asked."""

UNGRANTED = "the definition does not name exec"  # source of the rule set that asks

REMEDY = '[permissions] allow = ["exec"]'
"""The shortest addition to a definition that grants `exec`."""

ASKS_NOTE = f"exec is not named, so each program needs a person's yes, or a sandbox; to let programs run: {REMEDY}"


def exec_grant(
    expert: Expert, tables: Iterable[Permissions | Widening | None], policy: SandboxPolicy | None, *, is_open: bool
) -> ExecGrant:
    """Return the grant of a new Run. `tables`: all permission tables that are about the Expert."""
    if is_open:
        return "open"
    if policy is not None and policy.runtime != LOCAL:
        return "named"
    skill = _base_skill(expert)
    is_named = any(EXEC in item.pick for item in with_base_skill(expert.skills) if is_base_skill(item))
    return "named" if is_named or any(names_exec(table, skill) for table in tables if table is not None) else "asks"


def names_exec(table: Permissions | Widening, skill: str = BASE_SKILL) -> bool:
    """Return True if a table decides about `exec` as a whole; rules that deny or allow some calls do not count."""
    if table.default is not None or any(_is_about_exec(parse_rule(text), skill) for text in table.ask):
        return True
    allowing = map(parse_rule, table.allow)
    return any(_is_about_exec(rule, skill) and not rule.has_arguments for rule in allowing)


def denies_exec(expert: Expert, tables: Iterable[Permissions | None]) -> bool:
    """Return True if a table denies every call of `exec`, so that a rule that allows it would have no effect."""
    skill = _base_skill(expert)
    denying = (parse_rule(text) for table in tables if table is not None for text in table.deny)
    return any(_is_about_exec(rule, skill) and not rule.has_arguments for rule in denying)


def _is_about_exec(rule: PermissionRule, skill: str) -> bool:
    return not rule.is_delegate and rule.tool.matches(EXEC) and (rule.skill is None or rule.skill.matches(skill))


def offers_exec(expert: Expert) -> bool:
    """Return True if the Expert's base skill offers `exec`."""
    return any(
        is_picked(EXEC, skill.pick, skill.omit) for skill in with_base_skill(expert.skills) if is_base_skill(skill)
    )


def rules_without_grant(expert: Expert, rule_sets: Iterable[RuleSet] = ()) -> RuleSet:
    """Return the rule set that asks about each program that no rule of this Expert or the project allows."""
    skill = _base_skill(expert)
    allow = tuple(
        dict.fromkeys(
            text
            for rule_set in rule_sets
            for text in rule_set.permissions.allow
            if rule_set.expert in ("", expert.key)
            and rule_problem(text) is None
            and _is_about_exec(parse_rule(text), skill)
        )
    )
    # if no rule can spell the skill's name, ask about `exec` of any skill rather than about none
    rule = f"{skill}/{EXEC}" if re.fullmatch(r"[@\w./-]+", skill) else EXEC
    return RuleSet(source=UNGRANTED, expert=expert.key, permissions=Permissions(ask=(rule,), allow=allow))


def is_exec(decided: DecidedCall, expert: Expert) -> bool:
    """Return True if a decided call may be `exec` of the base skill, under any name that models are shown."""
    return decided.tool_name.endswith(EXEC) and decided.skill_name == _base_skill(expert)


def subject_of(decided: DecidedCall, expert: Expert) -> Subject | None:
    """Return the declared meaning of a call's arguments; None if only the plugin of the tool knows it."""
    if is_exec(decided, expert):
        return EXEC_SUBJECT
    for skill in expert.skills:
        if isinstance(skill, McpStdioSkill | McpSseSkill) and skill.name == decided.skill_name:
            for tool in skill.tools:
                if decided.tool_name in (legal_tool_name(tool.name), legal_tool_name(f"{skill.name}_{tool.name}")):
                    return tool
    return None


def _base_skill(expert: Expert) -> str:
    return next(skill.name for skill in with_base_skill(expert.skills) if is_base_skill(skill))
