"""What the rules of a definition file decide about a call that somebody describes. Nothing is opened, nothing runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from perstack.config.check import suggestion
from perstack.config.key_path import KeyPath
from perstack.config.load import DefinitionFile
from perstack.config.source import Reporter
from perstack.core.base import JsonObject
from perstack.core.definitions import Expert, Project
from perstack.core.policy.calls import PolicyCall, policy_call
from perstack.core.policy.chain import rule_sets
from perstack.core.policy.decide import decide_call
from perstack.core.policy.permissions import Permissions
from perstack.core.policy.rules import DELEGATE
from perstack.core.policy.rulings import Ruling
from perstack.core.skill_definitions import with_tools
from perstack.core.tools import ToolSpec
from perstack.dataclass import dataclass
from perstack.engine.catalogue import declared, delegate_tools
from perstack.engine.known_tools import known_tools
from perstack.engine.policy_paths import resolver
from perstack.errors import UsageError
from perstack.ports.skill import SkillFactory


@dataclass(frozen=True, slots=True)
class Tried:
    """What would be decided, and where that is written."""

    ruling: Ruling
    file: str | None = None
    line: int | None = None


def try_call(
    definition: DefinitionFile,
    factories: Sequence[SkillFactory],
    workspace: Path,
    expert_key: str,
    tool: str,
    args: JsonObject,
    *,
    above: Iterable[str] = (),
) -> Tried:
    """Decide about a call of an Expert's Run; `above` are the Experts of the Runs that it works for.

    Raises UsageError for an Expert or a tool that is not there, and DefinitionError for a file with errors.
    """
    project = definition.loaded(strict=False).project
    expert = _expert(project, expert_key)
    runs = dict.fromkeys([*(_expert(project, key).key for key in above), expert.key])
    chain = {one.source: one for key in runs for one in rule_sets(project, project.experts[key])}
    call = described(project, factories, expert, tool, args, workspace)
    ruling = decide_call(list(chain.values()), call)
    places = {one.source: _place(definition, one.expert) for one in chain.values()}
    source, _, name = ruling.source.rpartition(".")
    place = places.get(source) or places.get(ruling.source)
    if place is None:
        return Tried(ruling)
    reporter, at, permissions = place
    return Tried(ruling, str(reporter.source.path), reporter.source.lines.of(_key(at, permissions, ruling, name)))


def described(
    project: Project, factories: Sequence[SkillFactory], expert: Expert, tool: str, args: JsonObject, workspace: Path
) -> PolicyCall:
    """The call of an Expert's tool as rules see it. Raises UsageError if it has none of that name."""
    resolve = resolver(workspace)
    spec = _delegate(project, expert, tool) if tool.startswith(f"{DELEGATE}/") else _tool(factories, expert, tool)
    if spec is None:
        by_name = {one.spec.name: one.spec for one in delegate_tools(expert, project.experts)}
        spec = by_name.get(tool)
    if spec is None:
        raise UsageError(f"{expert.key} has no tool `{tool}`{suggestion(tool, _names(factories, expert))}")
    return policy_call(spec, spec.name, args, resolve, str(workspace))


def _expert(project: Project, key: str) -> Expert:
    project.check_broken(key)
    expert = project.expert(key)
    if expert is None:
        raise UsageError(f"there is no Expert `{key}`{suggestion(key, project.experts)}")
    return expert


def _delegate(project: Project, expert: Expert, tool: str) -> ToolSpec:
    key = tool.removeprefix(f"{DELEGATE}/")
    for one in delegate_tools(expert, project.experts):
        if key in (one.spec.target, one.spec.skill_name.removeprefix(f"{DELEGATE}/")):
            return one.spec
    raise UsageError(f"{expert.key} does not delegate to `{key}`{suggestion(key, expert.delegates)}")


def _tool(factories: Sequence[SkillFactory], expert: Expert, tool: str) -> ToolSpec | None:
    known = known_tools(factories, expert)
    skill, separator, name = tool.rpartition("/")
    if separator and skill not in known:
        raise UsageError(f"{expert.key} has no skill `{skill}`{suggestion(skill, known)}")
    searched: Mapping[str, tuple[ToolSpec, ...] | None] = {skill: known[skill]} if separator else known
    found = [spec for specs in searched.values() for spec in specs or () if spec.name == name]
    if found:
        return found[0]
    unknown = [skill for skill, specs in searched.items() if specs is None]
    if len(unknown) > 1:
        raise UsageError(f"which skill has `{tool}`? Write SKILL/{tool}, with one of: {', '.join(unknown)}")
    if not unknown:
        return None
    definition = next(one for one in with_tools(expert.skills) if one.name == unknown[0])
    return declared(ToolSpec(name=name, skill_name=unknown[0]), definition)


def _names(factories: Sequence[SkillFactory], expert: Expert) -> list[str]:
    return [spec.name for specs in known_tools(factories, expert).values() for spec in specs or ()]


def _place(definition: DefinitionFile, expert: str) -> tuple[Reporter, KeyPath, Permissions] | None:
    """The table that a set of rules is written in."""
    if not expert:
        permissions, reporter = definition.project.permissions, definition.report
        return None if permissions is None or reporter is None else (reporter, ("permissions",), permissions)
    draft = definition.drafts[expert]
    permissions = draft.expert.permissions
    return None if permissions is None else (draft.report, (*draft.at, "permissions"), permissions)


def _key(at: KeyPath, permissions: Permissions, ruling: Ruling, name: str) -> KeyPath:
    if not ruling.rule:
        return (*at, name) if name == "default" else at
    rules: tuple[str, ...] = getattr(permissions, ruling.list)
    return (*at, ruling.list, rules.index(ruling.rule))
