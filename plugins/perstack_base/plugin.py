"""Registration of the plugin with the host."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from perstack.core.definitions.skills import BASE_SKILL, McpStdioSkill, Skill, ToolSpec, is_base_skill
from perstack.ports.hooks import hookimpl
from perstack.ports.runtime import LocalRuntimeFactory, RuntimeFactory
from perstack.ports.skill import SkillContext, SkillFactory, SkillSession

PLUGIN_API = 1


class BaseSkillFactory(SkillFactory):
    """Factory for `@perstack/base`, also if it is declared as the npm package of that name."""

    name = BASE_SKILL

    @override
    def handles(self, definition: Skill) -> bool:
        return is_base_skill(definition)

    @override
    def known_tools(self, definition: Skill) -> tuple[ToolSpec, ...]:
        from perstack_base.tools import SPECS

        return SPECS

    @override
    async def open(self, definition: Skill, context: SkillContext) -> SkillSession:
        from perstack_base.skill import BaseSession

        domains = definition.allowed_domains if isinstance(definition, McpStdioSkill) else ()
        return BaseSession(context, domains)


@hookimpl
def perstack_skills() -> Sequence[SkillFactory]:
    """Return the factory of the base skill."""
    return [BaseSkillFactory()]


@hookimpl
def perstack_runtimes() -> Sequence[RuntimeFactory]:
    """Return the runtime without a sandbox."""
    return [LocalRuntimeFactory()]
