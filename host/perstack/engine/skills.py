"""The skills of a Job: each opened once, shared by all Runs that declare the same one, closed at the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from perstack.core.definitions import BASE_SKILL, Expert, InteractiveSkill, McpStdioSkill, Skill
from perstack.core.events import SkillConnected, SkillDisconnected, SkillStarting, SkillStderr
from perstack.engine.catalogue import (
    Catalogue,
    Offered,
    delegate_tools,
    interactive_tools,
    skill_tools,
)
from perstack.engine.clock import now_ms
from perstack.engine.emit import DisplayStamp, Emitter
from perstack.errors import SkillError
from perstack.ports.skill import SkillContext, SkillFactory, SkillSession


@dataclass(frozen=True, slots=True)
class _Open:
    """A skill that is up, and the Run that first needed it."""

    name: str
    session: SkillSession
    run_id: str
    is_shown: bool
    """The base skill neither starts nor ends: it is always there."""


class JobSkills:
    """Opens skills when a Run first needs them, and shows that it does."""

    def __init__(self, factories: Sequence[SkillFactory], context: SkillContext, emit: Emitter) -> None:
        self._factories = factories
        self._context = context
        self._emit = emit
        self._open: dict[bytes, _Open] = {}
        self._lock = asyncio.Lock()
        self._numbers = count(1)

    async def catalogue(
        self, expert: Expert, experts: Mapping[str, Expert], *, run_id: str, is_coordinator: bool
    ) -> Catalogue:
        """The tools that a Run of this Expert is offered. Raises SkillError for a skill that nothing provides."""
        offered: list[Offered] = []
        for definition in with_base(expert.skills):
            if isinstance(definition, InteractiveSkill):
                offered += interactive_tools(definition) if is_coordinator else []
            else:
                session = await self._session(definition, run_id)
                offered += skill_tools(definition, session, await session.tools())
        return Catalogue([*offered, *delegate_tools(expert, experts)])

    async def close(self) -> None:
        """End every skill, also when one of them fails to end."""
        opened, self._open = list(self._open.values()), {}
        results = await asyncio.gather(*(one.session.close() for one in opened), return_exceptions=True)
        for one in opened:
            if one.is_shown:
                self._emit.display(SkillDisconnected(**self._stamp(one.run_id), skill_name=one.name))
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            raise SkillError(f"a skill did not end cleanly: {failures[0]}") from failures[0]

    async def _session(self, definition: Skill, run_id: str) -> SkillSession:
        shared = definition.model_copy(update={"pick": (), "omit": (), "rule": None, "description": None})
        key = shared.to_json()
        async with self._lock:
            if key not in self._open:
                session = await self._start(definition, run_id)
                self._open[key] = _Open(definition.name, session, run_id, not is_base(definition))
            return self._open[key].session

    async def _start(self, definition: Skill, run_id: str) -> SkillSession:
        factory = factory_for(self._factories, definition)
        if is_base(definition):
            return await factory.open(definition, self._context)

        def show_stderr(line: str) -> None:
            self._emit.display(SkillStderr(**self._stamp(run_id), skill_name=definition.name, message=line))

        began = time.monotonic()
        self._emit.display(SkillStarting(**self._stamp(run_id), skill_name=definition.name))
        session = await factory.open(definition, replace(self._context, on_stderr=show_stderr))
        tools = len(await session.tools())
        took = round((time.monotonic() - began) * 1000)
        self._emit.display(
            SkillConnected(**self._stamp(run_id), skill_name=definition.name, tools=tools, duration_ms=took)
        )
        return session

    def _stamp(self, run_id: str) -> DisplayStamp:
        return DisplayStamp(
            id=f"{run_id}-skill-{next(self._numbers)}",
            timestamp=now_ms(),
            job_id=self._context.job_id,
            run_id=run_id,
        )


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
