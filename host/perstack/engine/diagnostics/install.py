"""`perstack install`: ask every skill of some Experts, once, what it offers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Literal

from perstack.config.lock import (
    Lock,
    LockedExpert,
    LockedSkill,
    digest_of_expert,
    digest_of_skill,
    shared_definition,
)
from perstack.core.definitions import Expert, InteractiveSkill, Skill, is_base_skill
from perstack.core.skill_definitions import with_tools
from perstack.dataclass import dataclass
from perstack.engine.skills import opened
from perstack.errors import SkillError
from perstack.next_steps import Note
from perstack.ports.skill import SkillContext, SkillFactory, Toolset

_PATIENCE = 120_000
"""Milliseconds that a skill without a `timeout` may take; plugins have shorter ones of their own."""


@dataclass(frozen=True, slots=True)
class InstallStep:
    """Where a skill stands."""

    skill: str
    """Its name, and the Expert's where others have another skill of that name."""
    status: Literal["starting", "ready", "failed"]
    tools: int = 0
    duration_ms: int = 0
    problem: Note | None = None


@dataclass(frozen=True, slots=True)
class Installed:
    """What came of it."""

    path: Path
    """The lock, as it was written."""
    skills: tuple[InstallStep, ...]
    """Each skill, ready or failed."""

    @property
    def failed(self) -> tuple[InstallStep, ...]:
        return tuple(one for one in self.skills if one.status == "failed")


OnInstall = Callable[[InstallStep], None]


async def ask_skills(
    factories: Sequence[SkillFactory],
    context_of: Callable[[str], Awaitable[SkillContext]],
    experts: Sequence[Expert],
    on_step: OnInstall,
) -> tuple[Lock, tuple[InstallStep, ...]]:
    """Open all distinct skills of these Experts at the same time, and end them. One that fails is not in the lock.

    `context_of` gives what the skills of an Expert, by its key, are given.
    """
    distinct = {
        digest_of_skill(skill): (skill, expert.key)
        for expert in reversed(experts)
        for skill in reversed(with_tools(expert.skills))
        if not isinstance(skill, InteractiveSkill) and not is_base_skill(skill)
    }
    times = Counter(skill.name for skill, _ in distinct.values())
    async with asyncio.TaskGroup() as group:
        asking = [
            group.create_task(
                _ask(
                    factories,
                    context_of(key),
                    shared_definition(skill),
                    f"{skill.name} ({key})" if times[skill.name] > 1 else skill.name,
                    on_step,
                )
            )
            for skill, key in reversed(distinct.values())
        ]
    answers = [task.result() for task in asking]
    locked = tuple(skill for skill, _ in answers if skill is not None)
    names = {expert.key: LockedExpert(digest=digest_of_expert(expert)) for expert in experts}
    return Lock(experts=names, skills=locked), tuple(step for _, step in answers)


async def _ask(
    factories: Sequence[SkillFactory],
    context: Awaitable[SkillContext],
    definition: Skill,
    name: str,
    on_step: OnInstall,
) -> tuple[LockedSkill | None, InstallStep]:
    began = time.monotonic()
    on_step(InstallStep(name, "starting"))

    def took() -> int:
        return round((time.monotonic() - began) * 1000)

    locked: LockedSkill | None = None
    try:
        toolset = await _toolset(factories, await context, definition)
        locked = LockedSkill.of(definition, toolset)
        step = InstallStep(name, "ready", len(toolset.specs), took())
    except SkillError as error:
        step = InstallStep(name, "failed", duration_ms=took(), problem=error.note)
    except Exception as error:  # noqa: BLE001 - a fault in one plugin's code is no reason to leave the others out
        step = InstallStep(name, "failed", duration_ms=took(), problem=Note(f"{type(error).__name__}: {error}"))
    on_step(step)
    return locked, step


async def _toolset(factories: Sequence[SkillFactory], context: SkillContext, definition: Skill) -> Toolset:
    # a server's own deadline is for connecting, after which it still has to list
    seconds = 2 * (getattr(definition, "timeout", None) or _PATIENCE // 2) / 1000
    try:
        async with asyncio.timeout(seconds):
            session = await opened(factories, definition, context)
            try:
                return await session.tools()
            finally:
                await session.close()
    except TimeoutError as error:
        raise SkillError(f"skill {definition.name!r} gave no answer within {seconds:g} s") from error
