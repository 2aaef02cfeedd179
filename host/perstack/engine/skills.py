"""The skills of a Job: each opened once, shared by all Runs that declare the same one, closed at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from perstack.core.definitions import BASE_SKILL, Expert, InteractiveSkill, McpStdioSkill, Skill
from perstack.engine.catalogue import (
    Catalogue,
    Offered,
    delegate_tools,
    interactive_tools,
    skill_tools,
)
from perstack.errors import SkillError
from perstack.ports.skill import SkillContext, SkillFactory, SkillSession


class JobSkills:
    """Opens skills when a Run first needs them."""

    def __init__(
        self,
        factories: Sequence[SkillFactory],
        workspace: Path,
        job_id: str,
        env: Mapping[str, str],
        state_dir: str | None,
    ) -> None:
        self._factories = factories
        self._context = SkillContext(workspace=workspace, job_id=job_id, env=env, state_dir=state_dir)
        self._sessions: dict[str, SkillSession] = {}
        self._lock = asyncio.Lock()

    async def catalogue(self, expert: Expert, experts: Mapping[str, Expert], *, is_coordinator: bool) -> Catalogue:
        """The tools that a Run of this Expert is offered. Raises SkillError for a skill that nothing provides."""
        offered: list[Offered] = []
        for definition in with_base(expert.skills):
            if isinstance(definition, InteractiveSkill):
                offered += interactive_tools(definition) if is_coordinator else []
            else:
                session = await self._session(definition)
                offered += skill_tools(definition, session, await session.tools())
        return Catalogue([*offered, *delegate_tools(expert, experts)])

    async def close(self) -> None:
        """End every skill, also when one of them fails to end."""
        sessions, self._sessions = list(self._sessions.values()), {}
        results = await asyncio.gather(*(session.close() for session in sessions), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            raise SkillError(f"a skill did not end cleanly: {failures[0]}") from failures[0]

    async def _session(self, definition: Skill) -> SkillSession:
        key = (
            definition.model_copy(update={"pick": (), "omit": (), "rule": None, "description": None}).to_json().decode()
        )
        async with self._lock:
            if key not in self._sessions:
                self._sessions[key] = await factory_for(self._factories, definition).open(definition, self._context)
            return self._sessions[key]


def factory_for(factories: Sequence[SkillFactory], definition: Skill) -> SkillFactory:
    """The plugin that provides a skill. Raises SkillError that says what is missing."""
    found = next((factory for factory in factories if factory.handles(definition)), None)
    if found is None:
        raise SkillError(
            f"no installed plugin provides skill {definition.name!r} of type {definition.type!r};"
            " `perstack plugins` lists what there is"
        )
    return found


def with_base(skills: Sequence[Skill]) -> list[Skill]:
    """The declared skills, with the base skill in front if none of them is it."""
    if any(is_base(skill) for skill in skills):
        return list(skills)
    return [McpStdioSkill(name=BASE_SKILL, package_name=BASE_SKILL), *skills]


def is_base(skill: Skill) -> bool:
    """Whether a declaration means the built-in base skill, whatever it is called and whichever version it pins."""
    if not isinstance(skill, McpStdioSkill):
        return False
    package = skill.package_name or ""
    return skill.name == BASE_SKILL or package == BASE_SKILL or package.startswith(f"{BASE_SKILL}@")
