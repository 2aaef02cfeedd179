"""Registration of the plugin with the host. The tools are imported when a Job first needs them."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from perstack.core.definitions.skills import PluginSkill, Skill, ToolSpec
from perstack.ports.hooks import hookimpl
from perstack.ports.skill import SkillContext, SkillFactory, SkillSession

PLUGIN_API = 1

NAME = "@perstack/execution-memory"


class TaskSkills(SkillFactory):
    """Factory for `type = "pluginSkill"`, `plugin = "@perstack/execution-memory"`."""

    name = NAME

    @override
    def handles(self, definition: Skill) -> bool:
        return isinstance(definition, PluginSkill) and definition.plugin == self.name

    @override
    def known_tools(self, definition: Skill) -> tuple[ToolSpec, ...]:
        from perstack_memory.tools import kit

        return kit.known_tools(definition)

    @override
    async def open(self, definition: Skill, context: SkillContext) -> SkillSession:
        from perstack_memory.tools import kit

        return await kit.open(definition, context)


@hookimpl
def perstack_skills() -> Sequence[SkillFactory]:
    return [TaskSkills()]
