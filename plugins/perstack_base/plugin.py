"""Registration with the host."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.core.definitions import BASE_SKILL, McpStdioSkill, Skill, is_base_skill
from perstack.core.tools import ToolSpec
from perstack.ports.hooks import hookimpl
from perstack.ports.runtime import LocalRuntimeFactory, RuntimeFactory
from perstack.ports.skill import SkillContext, SkillFactory, SkillSession


class BaseSkillFactory:
    """Opens `@perstack/base`, also where it is declared as the npm package of that name."""

    name = BASE_SKILL

    def handles(self, definition: Skill) -> bool:
        """Whether a declaration means the built-in skill."""
        return is_base_skill(definition)

    def known_tools(self, definition: Skill) -> tuple[ToolSpec, ...]:
        """All of them, always the same."""
        from perstack_base.specs import SPECS

        return SPECS

    async def open(self, definition: Skill, context: SkillContext) -> SkillSession:
        """A session on the Job's workspace. Raises SkillError if that is not a directory."""
        from perstack_base.skill import BaseSession

        domains = definition.allowed_domains if isinstance(definition, McpStdioSkill) else ()
        return BaseSession(context, domains)


@hookimpl
def perstack_skills() -> Sequence[SkillFactory]:
    """The skill that every Expert has."""
    return [BaseSkillFactory()]


@hookimpl
def perstack_runtimes() -> Sequence[RuntimeFactory]:
    """Without a sandbox."""
    return [LocalRuntimeFactory()]
