"""Registration with the host. The tools are made when a Job first wants them."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.core.definitions import PluginSkill, Skill
from perstack.core.tools import ToolSpec
from perstack.ports.hooks import hookimpl
from perstack.ports.skill import SkillContext, SkillFactory, SkillSession

NAME = "@perstack/execution-memory"


class TaskSkills:
    """`type = "pluginSkill"`, `plugin = "@perstack/execution-memory"`."""

    name = NAME

    def handles(self, definition: Skill) -> bool:
        """Whether the declaration names this skill."""
        return isinstance(definition, PluginSkill) and definition.plugin == self.name

    def known_tools(self, definition: Skill) -> tuple[ToolSpec, ...]:
        """All of them, always the same."""
        from perstack_memory.tools import kit

        return kit.known_tools(definition)

    async def open(self, definition: Skill, context: SkillContext) -> SkillSession:
        """Raises SkillError for settings that it does not have."""
        from perstack_memory.tools import kit

        return await kit.open(definition, context)


@hookimpl
def perstack_skills() -> Sequence[SkillFactory]:
    """The execution memory."""
    return [TaskSkills()]
