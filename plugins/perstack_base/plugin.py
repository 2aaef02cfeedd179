"""Registration with the host."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.core.definitions import BASE_SKILL, McpStdioSkill, Skill
from perstack.ports.hooks import hookimpl
from perstack.ports.skill import SkillContext, SkillFactory, SkillSession


class BaseSkillFactory:
    """Opens `@perstack/base`, also where it is declared as the npm package of that name."""

    name = BASE_SKILL

    def handles(self, definition: Skill) -> bool:
        """Whether a declaration means the built-in skill."""
        if not isinstance(definition, McpStdioSkill):
            return False
        package = definition.package_name or ""
        return definition.name == BASE_SKILL or package == BASE_SKILL or package.startswith(f"{BASE_SKILL}@")

    async def open(self, definition: Skill, context: SkillContext) -> SkillSession:
        """A session on the Job's workspace. Raises SkillError if that is no directory."""
        from perstack_base.skill import BaseSession

        return BaseSession(context)


@hookimpl
def perstack_skills() -> Sequence[SkillFactory]:
    """The skill that every Expert has."""
    return [BaseSkillFactory()]
