"""Agent Skills of Experts and the project's AGENTS.md files, as they were when a process began to drive the Job."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from perstack.config.settings import wants_agents_md
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.instruction import AgentsMdFile
from perstack.core.definitions.project import Project
from perstack.core.definitions.sandbox import SandboxPolicy, is_below
from perstack.core.definitions.skills import AgentSkill, agent_skills
from perstack.dataclass import dataclass
from perstack.engine.plugins.agreements import ToolLock
from perstack.errors import UsageError
from perstack.next_steps import Install
from perstack.system.user import notice

if TYPE_CHECKING:
    from perstack.config.context_files import SkillFolder


@dataclass(frozen=True, slots=True)
class UnpackedSkill:
    """An Agent Skill that was stored with a Job, unpacked on this machine."""

    path: str  # the original path, by which Experts name the skill
    folder: Path
    in_workspace: bool  # True if it was below the workspace, which all programs may read


class SkillLibrary:
    """A cache of skills and AGENTS.md files: all Runs that a process begins for a Job see one content."""

    def __init__(
        self, project: Project, lock: ToolLock, workspace: Path, laid_out: tuple[UnpackedSkill, ...] | None = None
    ) -> None:
        """Create an empty cache; `laid_out` are skills stored with the Job, used instead of those at their paths."""
        self.workspace = workspace
        self._project = project
        self._laid_out = None if laid_out is None else {skill.path: skill.folder for skill in laid_out}
        self._agents_md: tuple[str, tuple[AgentsMdFile, ...]] | None = None
        self._lock = lock
        self._folders: dict[str, SkillFolder | UsageError] = {}

    async def read(self, experts: Iterable[Expert]) -> None:
        """Read these Experts' skills and AGENTS.md files ahead of time. Errors are raised at their first use."""
        team = list(experts)
        skills = [skill for expert in team for skill in agent_skills(expert.skills)]
        needs_agents_md = any(wants_agents_md(self._project, expert, is_coordinator=True) for expert in team)

        def read_all() -> None:
            for skill in skills:
                self._find(skill)
            if needs_agents_md:
                self.agents_md()

        if skills or needs_agents_md:
            await asyncio.to_thread(read_all)

    def agents_md(self) -> tuple[str, tuple[AgentsMdFile, ...]]:
        """Return what a model is shown of the AGENTS.md files, and the list of files. May read from disk."""
        if self._agents_md is None:
            from perstack.config.context_files import read_agents_md

            self._agents_md = read_agents_md(self.workspace)
        return self._agents_md

    def with_skill_digests(self, expert: Expert) -> Expert:
        """Return the Expert with its skills' descriptions and digests, which a Run records.

        An unusable skill that only a pattern has found is left out. Raises UsageError for another one, and for a skill
        that differs from perstack.lock.
        """
        if not agent_skills(expert.skills):
            return expert
        skills = tuple(
            self._with_description(skill, expert) if isinstance(skill, AgentSkill) else skill
            for skill in self.without_skipped(expert).skills
        )
        return expert.model_copy(update={"skills": skills})

    def without_skipped(self, expert: Expert) -> Expert:
        """Return the Expert without the unusable skills that only a pattern has found."""
        if not any(self._is_skipped(skill) for skill in agent_skills(expert.skills)):
            return expert
        kept = (skill for skill in expert.skills if not (isinstance(skill, AgentSkill) and self._is_skipped(skill)))
        return expert.model_copy(update={"skills": tuple(kept)})

    def folder(self, skill: AgentSkill) -> SkillFolder | None:
        """Return the skill's folder if it is unchanged since the Run began; otherwise None. May read from disk."""
        folder = self._find(skill)
        return None if isinstance(folder, UsageError) or folder.digest != skill.digest else folder

    def folders(self, expert: Expert) -> list[SkillFolder]:
        """Return the Expert's skills as they are now; invalid ones are left out."""
        folders = (self._find(skill) for skill in agent_skills(expert.skills))
        return [folder for folder in folders if not isinstance(folder, UsageError)]

    def valid_folders(self, experts: Iterable[Expert]) -> dict[str, SkillFolder]:
        """Return the Experts' skills by the path that these name; invalid ones are left out."""
        folders_by_path = {skill.path: self._find(skill) for expert in experts for skill in agent_skills(expert.skills)}
        return {path: folder for path, folder in folders_by_path.items() if not isinstance(folder, UsageError)}

    def _is_skipped(self, skill: AgentSkill) -> bool:
        return skill.is_found and isinstance(self._find(skill), UsageError)

    def _find(self, skill: AgentSkill) -> SkillFolder | UsageError:
        folder = self._folders.get(skill.path)
        if folder is None:
            folder = self._folders[skill.path] = self._look_at(skill)
            if not isinstance(folder, UsageError):
                for repair in folder.head.repairs:
                    notice(f"skill {skill.name}: {skill.path}: {repair}")
            elif skill.is_found:
                notice(f"{folder}; skipped, because only a pattern names it")
        return folder

    def _look_at(self, skill: AgentSkill) -> SkillFolder | UsageError:
        if self._laid_out is None:
            return read_folder(skill)
        folder = self._laid_out.get(skill.path)
        if folder is None:
            return UsageError(f"skill {skill.name}: {skill.path} was not kept with the Job: submit it again")
        return read_folder(skill.model_copy(update={"path": str(folder)}))

    def _with_description(self, skill: AgentSkill, expert: Expert) -> AgentSkill:
        folder = self._find(skill)
        if isinstance(folder, UsageError):
            raise UsageError(f"Expert {expert.key}: {folder}")
        file = self._project.path
        # skills stored with a Job were compared with the lock when it was submitted
        config = None if self._laid_out is not None else file
        locked_digest = None if config is None else self._lock.folder_digest(config, skill)
        if locked_digest not in (None, folder.digest):
            raise UsageError(
                f"Expert {expert.key}: skill {skill.name} is not the one that perstack.lock has:"
                f" look at what has changed in {skill.path}",
                next_steps=(Install(),),
            )
        fields = {"description": folder.head.description, "digest": folder.digest, "is_found": False}
        return skill.model_copy(update=fields)


def reachable(policy: SandboxPolicy | None, expert: Expert, workspace: str) -> SandboxPolicy | None:
    """Return a policy under which programs may also read the Expert's skills, so that scripts in them can run."""
    if policy is None:
        return None
    visible = (*policy.writable, *policy.readable, workspace)
    outside = tuple(skill.path for skill in agent_skills(expert.skills) if not is_below(skill.path, visible))
    return policy.model_copy(update={"readable": (*policy.readable, *outside)}) if outside else policy


def relocate_policy(policy: SandboxPolicy | None, laid_out: Iterable[UnpackedSkill]) -> SandboxPolicy | None:
    """Return a policy with this machine's paths of those skills that it lets programs read at their original paths."""
    skills = tuple(laid_out)
    if policy is None or not skills:
        return policy
    allowed, old_paths = (*policy.writable, *policy.readable), {skill.path for skill in skills}
    local_folders = tuple(str(skill.folder) for skill in skills if skill.in_workspace or is_below(skill.path, allowed))
    readable = (*(path for path in policy.readable if path not in old_paths), *local_folders)
    return policy.model_copy(update={"readable": tuple(dict.fromkeys(readable))})


def read_folder(skill: AgentSkill) -> SkillFolder | UsageError:
    from perstack.config.context_files import read_skill, skill_file_of
    from perstack.core.definitions.agent_skills import NotASkill

    try:
        folder = read_skill(Path(skill.path))
    except NotASkill as error:
        return UsageError(f"skill {skill.name}: {skill.path} {error}")
    if folder.problems:
        return UsageError(f"skill {skill.name}: {skill.path}/{skill_file_of(folder)}: {'; '.join(folder.problems)}")
    return folder
