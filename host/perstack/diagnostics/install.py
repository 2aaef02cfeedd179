"""`perstack install`: ask every skill of some Experts once for its tools. Also finds the skill for a login."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from perstack.core.definitions.experts import Expert
from perstack.core.definitions.skills import (
    InteractiveSkill,
    McpSseSkill,
    Skill,
    is_base_skill,
    shared_definition,
    tool_skills,
)
from perstack.dataclass import dataclass
from perstack.diagnostics.lock_update import digest_of_expert
from perstack.engine.plugins.job_skills import open_skill
from perstack.engine.plugins.trust_checks import TrustCheck
from perstack.errors import SkillError, UsageError
from perstack.lockfile.lock import Lock, LockedExpert, LockedSkill, digest_of_skill
from perstack.next_steps import Note, SetOption
from perstack.ports.skill import SkillContext, SkillFactory, Toolset

_ANSWER_TIMEOUT_MS = 120_000
"""Milliseconds that a skill without a `timeout` may take; plugins may have shorter limits of their own."""


@dataclass(frozen=True, slots=True)
class InstallStep:
    """The progress of one skill."""

    skill: str  # the skill's name, followed by the Expert's key if skills of one name differ
    status: Literal["starting", "ready", "failed"]
    tools: int = 0
    duration_ms: int = 0
    problem: Note | None = None


@dataclass(frozen=True, slots=True)
class Installed:
    """The lock file that was written, and the result of each skill."""

    path: Path
    skills: tuple[InstallStep, ...]

    @property
    def failed(self) -> tuple[InstallStep, ...]:
        return tuple(step for step in self.skills if step.status == "failed")


OnInstall = Callable[[InstallStep], None]


async def ask_skills(
    factories: Sequence[SkillFactory],
    context_of: Callable[[str], Awaitable[SkillContext]],
    experts: Sequence[Expert],
    on_step: OnInstall,
    agreement: TrustCheck,
) -> tuple[Lock, tuple[InstallStep, ...]]:
    """Open all distinct skills of these Experts concurrently, and close them. A skill that fails is not in the lock."""
    distinct_skills = {
        digest_of_skill(skill): (skill, expert.key)
        for expert in reversed(experts)
        for skill in reversed(tool_skills(expert.skills))
        if not isinstance(skill, InteractiveSkill) and not is_base_skill(skill)
    }
    name_counts = Counter(skill.name for skill, _ in distinct_skills.values())
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(
                _ask_skill(
                    factories,
                    context_of(key),
                    shared_definition(skill),
                    f"{skill.name} ({key})" if name_counts[skill.name] > 1 else skill.name,
                    on_step,
                    agreement,
                )
            )
            for skill, key in reversed(distinct_skills.values())
        ]
    answers = [task.result() for task in tasks]
    locked_skills = tuple(skill for skill, _ in answers if skill is not None)
    locked_experts = {expert.key: LockedExpert(digest=digest_of_expert(expert)) for expert in experts}
    return Lock(experts=locked_experts, skills=locked_skills), tuple(step for _, step in answers)


async def _ask_skill(
    factories: Sequence[SkillFactory],
    context: Awaitable[SkillContext],
    definition: Skill,
    name: str,
    on_step: OnInstall,
    agreement: TrustCheck,
) -> tuple[LockedSkill | None, InstallStep]:
    began = time.monotonic()
    on_step(InstallStep(name, "starting"))

    def elapsed_ms() -> int:
        return round((time.monotonic() - began) * 1000)

    locked_skill: LockedSkill | None = None
    try:
        toolset = await _open_and_list(factories, await context, definition, agreement)
        locked_skill = LockedSkill.of(definition, toolset)
        step = InstallStep(name, "ready", len(toolset.specs), elapsed_ms())
    except SkillError as error:
        step = InstallStep(name, "failed", duration_ms=elapsed_ms(), problem=error.note)
    except Exception as error:  # noqa: BLE001 - an error in one plugin's code must not prevent the others
        step = InstallStep(name, "failed", duration_ms=elapsed_ms(), problem=Note(f"{type(error).__name__}: {error}"))
    on_step(step)
    return locked_skill, step


async def _open_and_list(
    factories: Sequence[SkillFactory], context: SkillContext, definition: Skill, agreement: TrustCheck
) -> Toolset:
    # double the skill's timeout, which is for connecting only: listing the tools comes after it
    timeout_s = 2 * (getattr(definition, "timeout", None) or _ANSWER_TIMEOUT_MS // 2) / 1000
    try:
        async with asyncio.timeout(timeout_s):
            skill_session = await open_skill(factories, definition, context, agreement)
            try:
                return await skill_session.tools()
            finally:
                await skill_session.close()
    except TimeoutError as error:
        raise SkillError(f"skill {definition.name!r} gave no answer within {timeout_s:g} s") from error


# Logins.


def login_of(
    factories: Sequence[SkillFactory], experts: Mapping[str, Expert], skill_name: str, expert_key: str | None = None
) -> tuple[SkillFactory, Skill]:
    """Return the plugin and definition for a login. Raises UsageError without one, or if Experts differ in it."""
    declarations = {
        key: skill
        for key, expert in experts.items()
        for skill in tool_skills(expert.skills)
        if skill.name == skill_name and expert_key in (None, key)
    }
    if not declarations:
        owner = f"Expert {expert_key!r} has" if expert_key is not None else "no Expert has"
        remote_skills = (
            skill for expert in experts.values() for skill in expert.skills if isinstance(skill, McpSseSkill)
        )
        login_names = sorted({skill.name for skill in remote_skills if _login_factory(factories, skill)})
        word = "no skill" if expert_key is not None else "a skill"
        raise UsageError(f"{owner} {word} {skill_name!r}; skills with a login: {', '.join(login_names) or 'none'}")
    definition = next(iter(declarations.values()))
    if any(_without_tool_fields(other) != _without_tool_fields(definition) for other in declarations.values()):
        raise UsageError(
            f"skill {skill_name!r} is declared differently by the Experts that have it ({', '.join(declarations)})",
            next_steps=(SetOption("expert"),),
        )
    factory = _login_factory(factories, definition)
    if factory is None:
        raise UsageError(f"skill {skill_name!r} ({definition.type}) has no login")
    return factory, definition


def _login_factory(factories: Sequence[SkillFactory], definition: Skill) -> SkillFactory | None:
    factory = next((factory for factory in factories if factory.handles(definition)), None)
    return factory if factory is not None and factory.has_login else None


def _without_tool_fields(definition: Skill) -> Skill:
    return definition.model_copy(update={"pick": (), "omit": (), "rule": None, "description": None})
