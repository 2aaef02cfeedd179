"""Registration of the plugin with the host. The tools are imported when a Job first needs them."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.core.definitions.skills import PluginSkill, Skill, ToolSpec
from perstack.ports.hooks import hookimpl
from perstack.ports.skill import SkillContext, SkillFactory, SkillSession

PLUGIN_API = 1

NAME = "@perstack/execution-memory"


class TaskSkills(SkillFactory):
    """Factory for `type = "pluginSkill"`, `plugin = "@perstack/execution-memory"`."""

    name = NAME

    def handles(self, definition: Skill) -> bool:
        """Return whether the declaration names this skill."""
        return isinstance(definition, PluginSkill) and definition.plugin == self.name

    def known_tools(self, definition: Skill) -> tuple[ToolSpec, ...]:
        """Return all tools, which never change."""
        from perstack_memory.tools import kit

        return kit.known_tools(definition)

    async def open(self, definition: Skill, context: SkillContext) -> SkillSession:
        """Open the skill. Raises SkillError for an unknown setting."""
        from perstack_memory.tools import kit

        return await kit.open(definition, context)


@hookimpl
def perstack_skills() -> Sequence[SkillFactory]:
    """Return the execution memory's factory."""
    return [TaskSkills()]
