"""Access to the files that Experts learn from: Agent Skills and AGENTS.md. A feature reads them when needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

from perstack.config.resolved_settings import wants_agents_md
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.instruction import AgentsMdFile
from perstack.core.definitions.project import Project
from perstack.core.definitions.skills import AgentSkill, agent_skills
from perstack.engine.plugins.runtimes import UnpackedSkill
from perstack.engine.plugins.tool_catalogue import OfferedTool
from perstack.engine.plugins.trust_checks import ToolLock
from perstack.ports.parts import Part


class KnowledgeLibrary(Protocol):
    """Agent Skills and AGENTS.md files of a project, each read once. All methods may read from disk."""

    def read(self, skills: Iterable[AgentSkill], *, agents_md: bool) -> None:
        """Read these files ahead of time. Errors are raised at their first use."""
        ...

    def with_skill_digests(self, expert: Expert) -> Expert:
        """Return the Expert with its skills' descriptions and digests, which a Run records. Raises UsageError."""
        ...

    def list_skills(self, skills: Sequence[AgentSkill]) -> str:
        """Return the list of skills for the instruction."""
        ...

    def agents_md(self) -> tuple[str, tuple[AgentsMdFile, ...]]:
        """Return the text of the AGENTS.md files that a model is shown, and the list of files."""
        ...

    def loading_tools(self, skills: Sequence[AgentSkill]) -> tuple[OfferedTool, ...]:
        """Return the tools that read skills which a Run has recorded."""
        ...


OpenLibrary = Callable[[Project, ToolLock, Path, tuple[UnpackedSkill, ...] | None], KnowledgeLibrary]
"""Returns the library of a project in a workspace. If the Job was stored with skills, only these are read."""

LIBRARY: Part[OpenLibrary] = Part("Agent Skills")


class Knowledge:
    """Agent Skills and AGENTS.md files of one Job, read once: all Runs that a process begins see equal contents."""

    def __init__(self, project: Project, open_library: Callable[[], KnowledgeLibrary]) -> None:
        """Open nothing yet: the library is opened for the first Expert that needs it."""
        self._project = project
        self._open_library = open_library

    @cached_property
    def library(self) -> KnowledgeLibrary:
        return self._open_library()

    async def read(self, experts: Sequence[Expert]) -> None:
        """Read the files of these Experts ahead of time. Errors are raised at the first use."""
        skills = [skill for expert in experts for skill in agent_skills(expert.skills)]
        needs_agents_md = any(wants_agents_md(self._project, expert, is_coordinator=True) for expert in experts)
        if skills or needs_agents_md:
            await asyncio.to_thread(self.library.read, skills, agents_md=needs_agents_md)

    def with_skill_digests(self, expert: Expert) -> Expert:
        """Return the Expert with its Agent Skills as a Run records them. Raises UsageError for an unusable one."""
        return self.library.with_skill_digests(expert) if agent_skills(expert.skills) else expert

    def instruction_parts(
        self, expert: Expert, *, is_coordinator: bool
    ) -> tuple[Mapping[str, str], tuple[AgentsMdFile, ...]]:
        """Return the parts of an Expert's instruction by display name, and the AGENTS.md files that are in them."""
        skills = agent_skills(expert.skills)
        parts = {"agent skills": self.library.list_skills(skills)} if skills else {}
        if not wants_agents_md(self._project, expert, is_coordinator=is_coordinator):
            return parts, ()
        text, files = self.library.agents_md()
        return {**parts, "AGENTS.md": text}, files

    def loading_tools(self, expert: Expert) -> tuple[OfferedTool, ...]:
        """Return the tools that read an Expert's skills; none without skills."""
        skills = agent_skills(expert.skills)
        return self.library.loading_tools(skills) if skills else ()
