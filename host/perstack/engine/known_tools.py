"""What an Expert's tools are, as far as that can be told without opening a skill."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from perstack.core.definitions import Expert, InteractiveSkill, McpSseSkill, McpStdioSkill, Skill
from perstack.core.skill_definitions import agent_skills, with_base
from perstack.core.tools import Subject, ToolSpec, legal_tool_name
from perstack.engine.catalogue import interactive_tools, picked
from perstack.engine.skill_loading import SKILL_NAME, load_spec
from perstack.ports.skill import KnownTools, SkillFactory


def known_tools(factories: Sequence[SkillFactory], expert: Expert) -> Mapping[str, tuple[ToolSpec, ...] | None]:
    """The tools of each of an Expert's skills, by the skill's name; None for one that only its server can tell."""
    skills = with_base(expert.skills)
    found = {skill.name: tools_of_skill(factories, skill) for skill in skills}
    known = agent_skills(expert.skills)
    return {**found, SKILL_NAME: (load_spec(known),)} if known else found


def names_and_subjects(
    factories: Sequence[SkillFactory], expert: Expert, today: Expert | None = None
) -> Mapping[tuple[str, str], tuple[str, Subject | None]]:
    """What each tool is called in its skill, and what its arguments are, by the skill and the name that models see.

    Of tools of servers only what definitions say is known: that of `today` takes the place of the Expert's own.
    """
    found: dict[tuple[str, str], tuple[str, Subject | None]] = {}
    for skill, specs in known_tools(factories, expert).items():
        found.update(_named(skill, ((spec.name, spec.subject) for spec in specs or ())))
    for one in (*expert.skills, *(() if today is None else today.skills)):
        if isinstance(one, McpStdioSkill | McpSseSkill):
            found.update(_named(one.name, ((tool.name, tool) for tool in one.tools)))
    return found


def _named(
    skill: str, tools: Iterable[tuple[str, Subject | None]]
) -> Iterator[tuple[tuple[str, str], tuple[str, Subject | None]]]:
    for name, subject in tools:
        # the plain name, and the one that it has where two skills have a tool of that name
        for shown in (legal_tool_name(name), legal_tool_name(f"{skill}_{name}")):
            yield (skill, shown), (name, subject)


def tools_of_skill(factories: Sequence[SkillFactory], skill: Skill) -> tuple[ToolSpec, ...] | None:
    """The tools of one skill, after its pick and omit."""
    if isinstance(skill, InteractiveSkill):
        return tuple(one.spec for one in interactive_tools(skill))
    factory = next((one for one in factories if one.handles(skill)), None)
    if not isinstance(factory, KnownTools):
        return None
    specs = factory.known_tools(skill)
    return tuple(
        spec.model_copy(update={"skill_name": skill.name})
        for spec in specs
        if picked(spec.name, skill.pick, skill.omit)
    )
