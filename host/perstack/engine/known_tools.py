"""What an Expert's tools are, as far as that can be told without opening a skill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perstack.core.definitions import Expert, InteractiveSkill, Skill
from perstack.core.tools import ToolSpec
from perstack.engine.catalogue import interactive_tools, picked
from perstack.engine.skills import with_base
from perstack.ports.skill import KnownTools, SkillFactory


def known_tools(factories: Sequence[SkillFactory], expert: Expert) -> Mapping[str, tuple[ToolSpec, ...] | None]:
    """The tools of each of an Expert's skills, by the skill's name; None for one that only its server can tell."""
    skills = with_base(expert.skills)
    return {skill.name: tools_of_skill(factories, skill) for skill in skills}


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
