"""Which declared skill a person means to log in to, and the plugin that can do it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perstack.core.definitions import Expert, McpSseSkill, Skill
from perstack.core.skill_definitions import with_tools
from perstack.errors import UsageError
from perstack.next_steps import Give
from perstack.ports.skill import LoginFactory, SkillFactory


def login_of(
    factories: Sequence[SkillFactory], experts: Mapping[str, Expert], skill_name: str, expert_key: str | None = None
) -> tuple[LoginFactory, Skill]:
    """The plugin, and the definition. Raises UsageError if there is none, or if Experts differ in it."""
    declared = {
        key: skill
        for key, expert in experts.items()
        for skill in with_tools(expert.skills)
        if skill.name == skill_name and expert_key in (None, key)
    }
    if not declared:
        place = f"Expert {expert_key!r} has" if expert_key is not None else "no Expert has"
        remote = (skill for expert in experts.values() for skill in expert.skills if isinstance(skill, McpSseSkill))
        known = sorted({skill.name for skill in remote if _by(factories, skill)})
        word = "no skill" if expert_key is not None else "a skill"
        raise UsageError(f"{place} {word} {skill_name!r}; skills with a login: {', '.join(known) or 'none'}")
    definition = next(iter(declared.values()))
    if any(_server(other) != _server(definition) for other in declared.values()):
        raise UsageError(
            f"skill {skill_name!r} is declared differently by the Experts that have it ({', '.join(declared)})",
            next_steps=(Give("expert"),),
        )
    factory = _by(factories, definition)
    if factory is None:
        raise UsageError(f"skill {skill_name!r} ({definition.type}) has no login")
    return factory, definition


def _by(factories: Sequence[SkillFactory], definition: Skill) -> LoginFactory | None:
    found = next((factory for factory in factories if factory.handles(definition)), None)
    return found if isinstance(found, LoginFactory) else None


def _server(definition: Skill) -> Skill:
    """What is left of a definition when it says nothing of the tools."""
    return definition.model_copy(update={"pick": (), "omit": (), "rule": None, "description": None})
