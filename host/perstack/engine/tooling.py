"""What an Expert's Runs are offered, without running one."""

from __future__ import annotations

from perstack.core.definitions import Expert
from perstack.core.events import Event, SkillDisconnected
from perstack.core.tools import ToolSpec
from perstack.dataclass import dataclass
from perstack.engine.emit import Emitter
from perstack.engine.setup import Setup
from perstack.engine.skills import JobSkills
from perstack.next_steps import Note


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools of one Expert."""

    shown: tuple[ToolSpec, ...]
    """Those that its model is shown at every step."""
    deferred: tuple[ToolSpec, ...] = ()
    """Those that it finds by a search."""
    problems: tuple[Note, ...] = ()
    """Why a skill's tools are missing."""
    guidance: str = ""
    """What the skills say of their tools, after the instruction."""


async def offered_tools(setup: Setup, expert: Expert, *, is_coordinator: bool = True) -> OfferedTools:
    """What a Run of this Expert would be offered. Raises SkillError for a wrong definition."""
    problems: list[Note] = []

    def note(event: Event, _: bytes) -> None:
        if isinstance(event, SkillDisconnected) and event.reason:
            problems.append(event.note or Note(event.reason))

    # a lazy skill's tools count too
    eager = tuple(
        skill.model_copy(update={"lazy_init": False}) if hasattr(skill, "lazy_init") else skill
        for skill in expert.skills
    )
    context = setup.skill_context("tools")
    skills = JobSkills(setup.plugins.skills, context, Emitter((), note), runtimes=setup.runtimes(context.job_id))
    try:
        opened = await skills.open(
            expert.model_copy(update={"skills": eager}),
            setup.project,
            run_id=context.job_id,
            is_coordinator=is_coordinator,
            sandbox=setup.policy(expert),
        )
        catalogue = opened.catalogue
        return OfferedTools(catalogue.shown, catalogue.deferred, tuple(problems), catalogue.guidance)
    finally:
        await skills.close()
